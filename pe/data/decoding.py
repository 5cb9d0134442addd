"""Images from outside: encoded files become sRGB uint8 arrays by stated rules, executing nothing.

The rules, in the order in which they apply:

1. Only PNG, JPEG, WebP, BMP, GIF and TIFF are opened, by content and not by file name. A file of
   several frames or pages is refused, since only one would count; images that a camera adds to a
   JPEG are passed over.
2. The header's pixels are counted before anything is decoded: more than MAX_PIXELS is refused.
3. A truncated or damaged file is refused, never half-filled.
4. 16-bit values v become v // 256 (0…65535 → 0…255, linear; 12-bit ones v // 16); bilevel becomes 0
   and 255; floating-point, 32-bit and signed pixels are refused, and what Pillow would read as
   other values. `dimness` tells of 12-bit values in images of 16 bits.
5. An embedded ICC profile is applied (→ sRGB, perceptual intent); one that is damaged or describes
   another colour mode is ignored, as image viewers do. CMYK without a profile: r = (255 - c) · (255
   - k) / 255.
6. Transparent pixels are composited over white; in a BMP whose opacity is 0 everywhere, opacity is
   ignored.
7. The EXIF orientation is applied.
8. Colour becomes grey as ITU-R 601 luma where one channel is asked for; grey becomes three equal
   channels.
9. The resize rule: `crop` scales the image until it just covers the size, then cuts its centre out;
   `fit` scales it until it just fits inside, then pads with black; `stretch` ignores the
   proportions. Antialiased bicubic on the sRGB values. An image that already has the size is not
   touched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms, ImageOps, PngImagePlugin, UnidentifiedImageError
from PIL.TiffImagePlugin import (
    BITSPERSAMPLE,
    COMPRESSION,
    PHOTOMETRIC_INTERPRETATION,
    PLANAR_CONFIGURATION,
    SAMPLEFORMAT,
)

from pe.data.arrays import UInt8Array
from pe.data.quiet import quiet, silence_libtiff
from pe.errors import BadImage

Resize = Literal["crop", "fit", "stretch"]
Size = tuple[int, int]
Channels = Literal[1, 3]

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
_OF_FRAMES = ("GIF", "PNG", "TIFF", "WEBP")
MAX_PIXELS = 2**26
"""Most pixels that a header may announce (8192 × 8192). Pillow itself warns only above more."""

_TOO_LARGE = (
    f"{{}} announces more than {MAX_PIXELS:,} pixels and was not decoded: scale it down first."
)
PngImagePlugin.MAX_TEXT_CHUNK = (
    PngImagePlugin.MAX_TEXT_MEMORY
)  # 64 MB in all: one text or profile may have so much
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_PROFILE_SPACES = {"L": "GRAY", "RGB": "RGB", "CMYK": "CMYK"}


def decode_image(
    source: bytes | Path | Image.Image | npt.NDArray[Any],
    *,
    size: Size | None,
    resize: Resize | None,
    channels: Channels,
    name: str | None = None,
    deep: set[bool] | None = None,
) -> UInt8Array:
    """Return the pixels of an image, by the rules above: new, uint8, height × width × channels.

    Args:
        source: the encoded bytes, the file that holds them, the image that Pillow made of it, or
            pixels in an array: uint8, uint16 or bool; h×w or h×w×c, c of 1, 3 or 4, alpha last.
        size: (height, width) of the result; None keeps the image's own.
        resize: how the image gets that size; None requires an image that has that size already.
        channels: 1 (grey) or 3.
        name: of the image in messages; without it, its path or "The image".
        deep: a set for `dimness`: a 16-bit image adds True if a value goes beyond a sixteenth of
            the range, else False.

    Raises:
        BadImage: the file or array cannot be read, or a rule refuses it.
    """
    target = _Target(
        size,
        resize,
        channels,
        name or (str(source) if isinstance(source, Path) else "The image"),
        deep,
    )
    if isinstance(source, np.ndarray):
        return _convert(source, target)
    # Pillow's warnings may quote what stands in a private file.
    with quiet():
        if isinstance(source, Image.Image):
            return _finish(source, target)
        if isinstance(source, Path) and not source.is_file():
            raise BadImage(f"{target.name} is not a readable file.")
        try:
            file = BytesIO(source) if isinstance(source, bytes) else source.open("rb")
        except OSError as error:
            raise BadImage(f"{target.name} cannot be read: {error.strerror}.") from error
        with file:
            return _decode(file, target)


def _convert(pixels: npt.NDArray[Any], target: _Target) -> UInt8Array:
    """Return the pixels of an array."""
    name = target.name
    channels = target.channels
    if pixels.dtype == np.bool_:
        pixels = pixels.astype(np.uint8) * np.uint8(255)
    elif pixels.dtype.kind == "u" and pixels.dtype.itemsize == 2:
        pixels = (pixels >> 8).astype(np.uint8)
        target.note(pixels)
    elif pixels.dtype != np.uint8:
        raise BadImage(
            f"{name} has {pixels.dtype} pixels: scale them to 0…255 and save them as uint8."
        )
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if (
        not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4)))
        or 0 in pixels.shape
    ):
        raise BadImage(
            f"{name} is an array of shape {pixels.shape}, not height × width × 1, 3 or 4 channels."
        )
    _check_pixels(pixels.shape[1], pixels.shape[0], name)
    if (1 if pixels.ndim == 2 else pixels.shape[2]) == channels and target.size in (
        None,
        pixels.shape[:2],
    ):
        return pixels.reshape(*pixels.shape[:2], channels).copy()  # no rule changes it
    image, alpha = _split_alpha(Image.fromarray(np.ascontiguousarray(pixels)), name)
    return target.finish(image, alpha, turn=1)


def dimness(deep: set[bool]) -> str:
    """Return a sentence if there are 16-bit images and all of them are dark, as `deep` says.

    The text is empty otherwise.
    """
    if deep != {False}:
        return ""
    return (
        "No 16-bit image has a value beyond 4,095 of 65,535, so that all would be nearly black: if "
        "the values have 12 bits, multiply them by 16; scale others to the full range."
    )


def check_frames(count: int, name: str) -> None:
    """Raise BadImage if a file holds more than one image."""
    if count > 1:
        raise BadImage(
            f"{name} has {count:,} frames or pages, and one file is one image: save the one that "
            "is meant, or each, as a file of its own."
        )


def _check_pixels(width: int, height: int, name: str) -> None:
    if width * height > MAX_PIXELS:
        raise BadImage(_TOO_LARGE.format(name))


def _decode(file: Any, target: _Target) -> UInt8Array:
    name = target.name
    try:
        image = Image.open(file, formats=FORMATS)
    except UnidentifiedImageError as error:
        raise BadImage(
            f"{name} is not a readable PNG, JPEG, WebP, BMP, GIF or TIFF image: save it as one, in "
            "unsigned integers of 8 or 16 bits."
        ) from error
    except Image.DecompressionBombError as error:
        raise BadImage(_TOO_LARGE.format(name)) from error
    except Exception as error:  # Pillow's parsers let almost any exception out of a malformed file
        raise _damage(name, error) from error
    with image:
        return _finish(image, target)


def _finish(image: Image.Image, target: _Target) -> UInt8Array:
    """Return the pixels of an opened image."""
    name = target.name
    _check_pixels(*image.size, name)
    try:
        if image.format == "TIFF":
            silence_libtiff()
        if image.format in _OF_FRAMES:
            check_frames(getattr(image, "n_frames", 1), name)
        stored = (
            f"{getattr(image, 'tile', '')}{image.mode}"  # names the form of the pixels in the file
        )
        is_deep = ";16" in stored
        why = _misread(image, stored)
        if why:
            raise BadImage(f"{name} has {why}.")
        image.load()
        orientation = image.getexif().get(_ORIENTATION, 1)
        turn = orientation if isinstance(orientation, int) else 1
        profile = image.info.get("icc_profile")
        picture, alpha = _split_alpha(image, name)
        if is_deep:
            target.note(np.asarray(picture))
        picture = _to_srgb(picture, profile)
    except BadImage:
        raise
    except Exception as error:
        raise _damage(name, error) from error
    return target.finish(picture, alpha, turn)


def _misread(image: Image.Image, stored: str) -> str:
    """Return what Pillow would silently read as other values, with the remedy, or ''."""
    # Pillow seeks the colour among pixels of 8 bits
    if "transparency" in image.info and re.search(r"RGB;16|'L;[24]", stored):
        return "a transparent colour of 2, 4 or 16 bits: save it with an alpha channel"
    tags = getattr(image, "tag_v2", {})
    if 2 in tags.get(SAMPLEFORMAT, ()):
        return "signed pixels: save it as unsigned integers of 8 or 16 bits"
    is_planar = tags.get(PLANAR_CONFIGURATION) == 2 and tags.get(COMPRESSION, 1) == 1
    if is_planar and max(tags.get(BITSPERSAMPLE, (1,))) > 8:
        return "16-bit colours, plane by plane: save it compressed, or pixel by pixel"
    return ""


def _damage(name: str, error: Exception) -> BadImage:
    if isinstance(error, ValueError) and "MAX_TEXT" in str(error):
        return BadImage(f"{name} has more than 64 MB of text or profile: save it without.")
    return BadImage(f"{name} is truncated or damaged.")


def _split_alpha(image: Image.Image, name: str) -> tuple[Image.Image, Image.Image | None]:
    """Return the picture as L, RGB or CMYK, and its opacity, as L, where it has any."""
    mode = image.mode
    transparent = image.info.get("transparency")
    if mode.startswith("I;16") or (mode == "I" and image.format == "PNG"):
        values = np.asarray(image)
        tags = getattr(image, "tag_v2", {})
        alpha = (
            None
            if transparent is None
            else Image.fromarray((values != transparent).astype(np.uint8) * 255)
        )
        grey = (values >> (max(tags.get(BITSPERSAMPLE, (16,))) - 8)).clip(0, 255).astype(np.uint8)
        if (
            tags.get(PHOTOMETRIC_INTERPRETATION) == 0
        ):  # white is zero: Pillow inverts 8-bit pixels only
            grey = 255 - grey
        return Image.fromarray(grey), alpha
    if mode in ("LA", "La", "PA", "RGBA", "RGBa") or transparent is not None:
        full = image.convert("RGBA")
        is_grey = mode in ("1", "L", "LA", "La")
        if (
            image.format == "BMP" and full.getchannel("A").getextrema()[1] == 0
        ):  # a mask that nobody filled in
            return full.convert("RGB"), None
        return full.getchannel("R") if is_grey else full.convert("RGB"), full.getchannel("A")
    if mode in ("1", "L"):
        return image.convert("L"), None
    if mode in ("RGB", "P", "YCbCr", "RGBX", "CMYK"):
        return image.convert("CMYK" if mode == "CMYK" else "RGB"), None
    raise BadImage(
        f"{name} has pixels of type {mode}, for which there is no rule: save it as 8- or 16-bit "
        "integers."
    )


def _to_srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """Return a picture (L, RGB or CMYK) in sRGB, as L or RGB.

    Its ICC profile is applied where it fits the picture's mode.
    """
    if profile:
        try:
            source = ImageCms.ImageCmsProfile(BytesIO(profile))
            if source.profile.xcolor_space.strip() == _PROFILE_SPACES[image.mode]:
                target = ImageCms.createProfile("sRGB")
                in_srgb = ImageCms.profileToProfile(image, source, target, outputMode="RGB")
                return in_srgb or image.convert("RGB")
        except (ImageCms.PyCMSError, OSError):
            pass
    return image if image.mode == "L" else image.convert("RGB")


@dataclass(frozen=True)
class _Target:
    """The form that an image is brought to, and its name in messages."""

    size: Size | None
    resize: Resize | None
    channels: Channels
    name: str
    deep: set[bool] | None

    def note(self, pixels: UInt8Array) -> None:
        """Note for `dimness` whether an image of 16 bits goes beyond a sixteenth of the range."""
        if self.deep is not None and pixels.size:
            self.deep.add(bool(pixels.max() > 15))

    def finish(
        self,
        image: Image.Image,
        alpha: Image.Image | None,
        turn: int,
    ) -> UInt8Array:
        """Return the pixels, by rules 6 to 9."""
        if alpha is not None:
            white = Image.new(image.mode, image.size, "white")
            image = Image.composite(image, white, alpha)
        # Pillow's exif_transpose would write the file's EXIF anew, and fail over a damaged one.
        if turn in _TURNS:
            image = image.transpose(_TURNS[turn])
        image = image.convert("L" if self.channels == 1 else "RGB")
        if self.size is not None:
            image = self._resize(image, self.size)
        pixels = np.array(image, dtype=np.uint8)
        return pixels.reshape(*pixels.shape[:2], self.channels)

    def _resize(self, image: Image.Image, size: Size) -> Image.Image:
        (height, width), (own_width, own_height) = size, image.size
        if (own_height, own_width) == size:
            return image
        if self.resize is None:
            raise BadImage(
                f"{self.name} is {own_height}×{own_width} pixels (height × width), not "
                f"{height}×{width}: say how it is to be resized (crop, fit or stretch)."
            )
        bicubic = Image.Resampling.BICUBIC
        if self.resize == "stretch":
            return image.resize((width, height), bicubic)
        if self.resize == "crop":
            return ImageOps.fit(image, (width, height), bicubic)
        # ImageOps.pad rounds the place of the image to even numbers of pixels.
        scale = min(width / own_width, height / own_height)
        inner = (
            max(1, min(width, round(own_width * scale))),
            max(1, min(height, round(own_height * scale))),
        )
        canvas = Image.new(image.mode, (width, height), "black")
        canvas.paste(
            image.resize(inner, bicubic),
            ((width - inner[0]) // 2, (height - inner[1]) // 2),
        )
        return canvas
