"""Images from an endpoint.

Decode PNG, JPEG or WebP within bounds, bring images to one size, make an answer of them.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import numpy as np
from PIL import Image

from adapters.http.faults import LOOKED_AT, Fault, body_words
from adapters.http.retries import Outcome
from pe.data.arrays import UInt8Array
from pe.data.decoding import Channels, Resize, decode_image
from pe.data.images import Images
from pe.data.samples import DRAWN, Conditions, Samples
from pe.errors import APIError, BadImage
from pe.plugins.protocols import NOTHING, Answer, Failed, Refused, Usage

if TYPE_CHECKING:
    import httpx2

Pixels = UInt8Array
Received = tuple[list[Pixels | Failed | Refused], Usage | None]
"""The images in order, with Failed or Refused in place of a missing one, and the tokens billed. The
tokens are None if the host names none."""

MOST_BYTES = 2**26
"""Most bytes of one encoded image."""

MOST_ESCAPES = 2**22
"""Most percent signs in a data URI, each of which takes some hundred bytes while the URI is
decoded."""

_URL_SAFE = str.maketrans("-_", "+/")
_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")


def read_base64(text: str) -> bytes:
    """Read base64, or raise ValueError.

    Takes the usual and the URL-safe alphabet, with or without white space and padding.
    """
    text = "".join(text.split()).translate(_URL_SAFE)
    if not text.endswith("="):
        text += "=" * (-len(text) % 4)
    return base64.b64decode(text, validate=True)


def base64_of(image: bytes) -> str:
    """Return the bytes of a file as base64 text."""
    return base64.b64encode(image).decode()


def data_uri(image: bytes) -> str:
    """Return a PNG file as a data URI, an address that holds the whole file."""
    return f"data:image/png;base64,{base64_of(image)}"


@dataclass(frozen=True)
class PictureRule:
    """The form that an endpoint's images must have, and the form of the samples made from them."""

    height: int  # height of the samples, in pixels
    width: int  # width of the samples, in pixels
    channels: Channels = 3  # channels of the samples: 1 (grey) or 3
    # how an image of another size is brought to the samples' size: crop, fit or stretch
    resize: Resize = "crop"
    # (height, width) that every image must have, or it counts as failed; None: any size is taken
    fixed_size: tuple[int, int] | None = None
    # (height, width) of a second copy of each sample, which variations start from; None: no second
    # copy
    kept_size: tuple[int, int] | None = None

    def decode(self, data: bytes) -> Pixels | Failed:
        """Return the pixels of PNG, JPEG or WebP bytes, uint8 h×w×3, or Failed.

        The image keeps its size.
        """
        webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
        if len(data) > MOST_BYTES or not (webp or data.startswith(_STARTS)):
            return Failed(
                f"the endpoint sent {len(data)} bytes that are no PNG, JPEG or WebP image"
            )
        return self.pixels_of(data)

    def pixels_of(self, source: bytes | Image.Image) -> Pixels | Failed:
        """Return the pixels of an image in a format that is allowed, uint8 h×w×3, or Failed."""
        try:
            return decode_image(
                source, size=self.fixed_size, resize=None, channels=3, name="The endpoint's image"
            )
        except BadImage as error:
            return Failed(str(error))

    def decode_text(self, text: object) -> Pixels | Failed:
        """Return the pixels of an image in base64 or in a data URI, or Failed with the reason."""
        if not isinstance(text, str):
            return Failed("the endpoint sent an entry without an image")
        if text.startswith("data:"):
            _, comma, text = text.partition(",")
            if not comma or text.count("%") > MOST_ESCAPES:
                return Failed(
                    f"the endpoint sent a data URI without data, or with over {MOST_ESCAPES} "
                    "escaped bytes"
                )
            data = unquote_to_bytes(text)
            if not data.isascii():  # not in base64, whatever the head says
                return self.decode(data)
            text = data.decode()
        try:
            return self.decode(read_base64(text))
        except ValueError:
            return Failed("the endpoint sent an image whose base64 is broken")

    def fetch(
        self, url: str, get: Callable[[], httpx2.Response], images: dict[str, bytes]
    ) -> Pixels | Failed:
        """Return the pixels of the image at an address, or Failed if a later try cannot bring it.

        `get` asks for it, and `images` (address → bytes) keeps it.

        Raise Fault if a later try may help, or for a bad certificate.
        """
        if url not in images:
            try:
                response = get()
                if response.headers.get("content-type", "").startswith("text/"):  # a portal's page
                    page = response.content[:LOOKED_AT].decode("utf-8", "replace")
                    raise Fault(f"a page in place of an image: {body_words(page)[0]}")
            except Fault as fault:
                if not (fault.heals or fault.bad_certificate):
                    return Failed(f"an image could not be fetched: {fault}")
                fault.words = f"an image could not be fetched: {fault.words}"
                raise
            images[url] = response.content
        return self.decode(images[url])


def answer_of(
    count: int, outcome: Outcome[Received], rule: PictureRule, conditions: Conditions
) -> Answer:
    """Return the answer for `count` items.

    Surplus images are billed but dropped, absent ones are in `missing`.
    """
    items, charge = outcome.result or ([], None)
    entries = outcome.fill(items, count, "images")
    images = [entry for entry in entries if isinstance(entry, np.ndarray)]
    missing = {i: entry for i, entry in enumerate(entries) if isinstance(entry, Failed | Refused)}
    samples = _stack(
        images,
        (rule.height, rule.width),
        rule.resize,
        rule.channels,
    )
    columns = Conditions()
    if rule.kept_size is not None:
        rest = conditions.take([i for i in range(count) if i not in missing])
        columns = Conditions({**rest, DRAWN: _stack(images, rule.kept_size, rule.resize, 3)})
    # Every image that came is billed, and one that failed counts as if it had the stated size.
    sizes = [
        one.shape[:2] if isinstance(one, np.ndarray) else rule.fixed_size or (0,) for one in items
    ]
    pixels = sum(map(math.prod, sizes))
    usage = Usage(outcome.calls, len(items), megapixels=pixels / 1e6) + (charge or NOTHING)
    return Answer(Images(samples), columns, missing, usage)


def _stack(
    images: list[Pixels], size: tuple[int, int], resize: Resize, channels: Channels
) -> Pixels:
    if not images:
        return np.empty((0, *size, channels), dtype=np.uint8)
    form = partial(
        decode_image,
        size=size,
        resize=resize,
        channels=channels,
        name="The image",
    )
    return np.stack([form(image) for image in images])


def value_at(content: object, *keys: str) -> Any:
    """Return the value below these keys, one within the other, of decoded JSON.

    Return None if there is no such value.
    """
    for key in keys:
        if not isinstance(content, dict):
            return None
        content = content.get(key)
    return content


def entries_at(content: object, *keys: str) -> list[Any]:
    """Return the list below these keys of decoded JSON, or an empty list."""
    entries = value_at(content, *keys)
    return entries if isinstance(entries, list) else []


def images_in(answer: Mapping[str, Any], key: str) -> list[Any]:
    """Return the list of images under `key`.

    Raise Fault if there is no list, or an empty list beside an error.
    """
    images = answer.get(key)
    if not isinstance(images, list) or (not images and answer.get("error")):
        raise Fault.of_object(answer, "the answer holds no list of images")
    return images


def encode_picture(samples: Samples) -> list[bytes]:
    """Return each image as a PNG file.

    Raise APIError if the samples are no images.
    """
    if not isinstance(samples, Images):
        raise APIError(f"An image endpoint varies images, not {samples.kind}.")
    return [_png(pixels) for pixels in samples.pixels]


def _png(pixels: Pixels) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    image.convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()
