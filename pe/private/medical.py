"""Private medical images: DICOM and TIFF files whose values need a declared window.

The rules:

- DICOM: stored values → rescale slope and intercept → window → 0…255; MONOCHROME1 is inverted.
  8-bit colour (RGB, YBR) is taken as it is. Several frames, palettes, modality look-up tables,
  enhanced objects and values that do not end at the lowest bit are refused.
- TIFF, of any real number type, by tifffile: values → window → 0…255; MINISWHITE is inverted;
  colour needs uint8 or uint16, as RGB or as JPEG, and has no window. A fourth channel is opacity
  that is not multiplied in. The orientation is applied. Several pages are refused.
- A strip or tile of a TIFF that is an encoded image of its own (JPEG, JPEG 2000, PNG, WebP) is
  refused if its header announces more than MAX_PIXELS, whatever the file announces. JPEG XL, JPEG
  XR and LERC are refused, because nothing here reads their headers without decoding them.
- The window (centre c, width w) maps x to 255·clip((x - c)/w + ½, 0, 1), rounded (DICOM's
  LINEAR_EXACT); a value that is not a number becomes black. It is public: declared, never taken
  from a file's header.
- Of a DICOM header only the elements that pixels need are read, and PatientID where it is the
  privacy unit. No message holds a header's value.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import KW_ONLY, replace
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image
from pydantic import Field

from pe.data.arrays import UInt8Array
from pe.data.decoding import MAX_PIXELS, check_frames
from pe.data.quiet import quiet
from pe.errors import BadImage, PEError, PrivateDataError
from pe.plugins.devices import import_library
from pe.private.dataset import PrivateDataset
from pe.private.folder import FolderSource
from pe.private.modalities import ImageSource
from pe.private.source import source

PATIENT = "PatientID"
BURNED_IN = (
    "Medical images may have names, dates or numbers burned into their pixels. The toolkit does "
    "not look for them: remove them first, because a generator could learn to draw such text."
)
_TIFF = frozenset({".tif", ".tiff"})
_JPEGS = ("OJPEG", "JPEG", "JPEG_LOSSY", "ALT_JPEG")  # compressions of TIFF
_MARKER = re.compile(rb"\xff([^\x00\xff])")  # of many FF the last: in linear time
_FRAMES = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}  # markers of a header that has the size
_WITHOUT_LENGTH = {1, *range(0xD0, 0xDA)}
_SUFFIXES = _TIFF | {".dcm", ".dicom", ".ima", ""}
# fmt: off
_PIXEL_ELEMENTS = [
    "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames", "Rows",
    "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "RescaleIntercept",
    "RescaleSlope", "ModalityLUTSequence", "ExtendedOffsetTable", "ExtendedOffsetTableLengths",
    "PixelData", "SharedFunctionalGroupsSequence",
]
# fmt: on
_COLOUR = frozenset({"RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT"})
_REQUIRED = [*_PIXEL_ELEMENTS[:2], *_PIXEL_ELEMENTS[4:8], "PixelRepresentation", "PixelData"]
_HEAD = 2**12  # bytes, in which the transfer syntax stands
_DEFLATED = b"1.2.840.10008.1.2.1.99"
_SYNTAXES = {  # taken for files that state none: (implicit VR, little-endian) → transfer syntax
    (True, True): "1.2.840.10008.1.2",
    (False, True): "1.2.840.10008.1.2.1",
    (False, False): "1.2.840.10008.1.2.2",
}

_TIFF_FORMS = (
    "1 MINISBLACK",
    "1 MINISWHITE",
    "3 RGB",
    "4 RGB UNASSALPHA",
)  # channels, colours, the channel besides

Window = tuple[float, Annotated[float, Field(gt=0)]]


@source
class Dicom(FolderSource, ImageSource):
    """A folder of DICOM or TIFF files, one image per file.

    Classes and labels.csv are as for `ImageFolder`; the privacy unit may also be "PatientID", which
    is read from the files unless labels.csv has a column of this name.

    Attributes:
        window: (centre, width), in the values after rescaling (Hounsfield units in CT); None where
            all images are in colour.
    """

    _: KW_ONLY
    window: Window | None
    kind: Literal["dicom"] = "dicom"

    suffixes = _SUFFIXES
    own_units = frozenset({PATIENT})

    def open(self) -> PrivateDataset:
        """List the records, and always warn of burned-in text. Raise as `PrivateSource.open`.

        Pixels are read later. With PatientID as the unit, every file's header is read now. A file
        whose header cannot be read is a bad image from here on; a file without a PatientID is an
        error.
        """
        _libraries()
        warnings.warn(BURNED_IN, stacklevel=2)
        files = self._files()
        if files.units is None and self.privacy_unit == PATIENT:
            units = [
                path if isinstance(path, PEError) else _patient_or_error(self.path / path)
                for path in files.paths
            ]
            paths = [
                one if isinstance(one, PEError) else path
                for path, one in zip(files.paths, units, strict=True)
            ]
            files = replace(files, paths=paths, units=units)
        return self._bind(files)

    def read(self, value: Path, name: str) -> UInt8Array:
        """Return the image in a file.

        Raises:
            BadImage: there is none.
        """
        if not value.is_file():
            raise BadImage(f"{name} is not a readable file.")
        read = _read_tiff if value.suffix.lower() in _TIFF else _read_dicom
        try:
            with quiet():
                pixels = read(value, self.window)
        except PEError:
            raise
        except Exception as error:  # the libraries let almost any exception out of a malformed file
            raise BadImage(
                f"{name} is damaged, not DICOM, or compressed in a way that has no decoder here."
            ) from error
        return super().read(pixels, name)


def apply_window(
    values: npt.NDArray[Any],
    window: tuple[float, float],
    *,
    invert: bool,
) -> UInt8Array:
    """Map values to 0…255 by the window (centre, width).

    With `invert`, low values are white. NaN becomes black.
    """
    centre, width = window
    share = np.clip((values.astype(np.float64) - centre) / width + 0.5, 0.0, 1.0)
    if invert:
        share = 1.0 - share
    return np.rint(np.nan_to_num(share, nan=0.0) * 255.0).astype(np.uint8)


def _libraries() -> tuple[Any, Any]:
    """Return pydicom and tifffile, whose decoders are imagecodecs'."""
    names = ("imagecodecs", "pydicom", "tifffile")
    purpose = "Reading DICOM and medical TIFF files"
    _, pydicom, tifffile = (import_library(name, "medical", purpose) for name in names)
    return pydicom, tifffile


def _patient_or_error(path: Path) -> str | BadImage | None:
    """Return the PatientID in a file's header, or None. Confidential.

    A file without a header has an error instead.
    """
    pydicom, _ = _libraries()
    try:
        with quiet():
            header = pydicom.dcmread(
                path,
                stop_before_pixels=True,
                specific_tags=[PATIENT, "Rows"],
                force=True,
            )
            if not header.preamble and "Rows" not in header:
                raise ValueError("no header")
            value = header.get(PATIENT)
    except Exception:
        return BadImage(f"{path} is not a readable DICOM file.")
    return None if value is None else str(value)


def _grey_levels(
    path: Path,
    values: npt.NDArray[Any],
    window: tuple[float, float] | None,
    invert: bool,
) -> npt.NDArray[Any]:
    if window is None:
        raise PrivateDataError(
            f"{path} is not in colour: declare a window (centre, width) for its values."
        )
    return apply_window(values, window, invert=invert)


def _check_pixels(path: Path, height: int, width: int) -> None:
    if height < 1 or width < 1 or height * width > MAX_PIXELS:
        raise BadImage(
            f"{path} announces no pixels or more than {MAX_PIXELS:,}, and was not decoded."
        )


def _read_dicom(path: Path, window: tuple[float, float] | None) -> npt.NDArray[Any]:
    pydicom, _ = _libraries()
    from pydicom.pixels import pixel_array

    with path.open("rb") as file:
        head = file.read(_HEAD)
    if _DEFLATED in head:
        raise BadImage(
            f"{path} is a deflated DICOM file, whose size cannot be checked: save it without "
            "deflation."
        )
    data = pydicom.dcmread(
        path,
        specific_tags=_PIXEL_ELEMENTS,
        force=True,
    )  # old files lack the preamble
    for name in _REQUIRED:
        if data.get(name) in (None, "", b""):
            raise BadImage(f"{path} is not an image in DICOM: it has no {name}.")
    if "TransferSyntaxUID" not in data.file_meta:
        implicit, little = data.original_encoding
        data.file_meta.TransferSyntaxUID = _SYNTAXES[implicit, little]
    _check_pixels(path, int(data.Rows), int(data.Columns))
    check_frames(int(data.get("NumberOfFrames") or 1), str(path))
    if data.get("HighBit") not in (None, "", data.BitsStored - 1):
        raise BadImage(
            f"{path} has values that do not end at the lowest bit: save it with HighBit = "
            "BitsStored - 1."
        )
    kind = str(data.PhotometricInterpretation)
    if kind in _COLOUR and data.BitsAllocated == data.BitsStored == 8 and data.SamplesPerPixel == 3:
        return np.asarray(pixel_array(data))
    is_grey = kind in ("MONOCHROME1", "MONOCHROME2") and data.SamplesPerPixel == 1
    # an enhanced object has its rescale in a sequence of groups
    if not is_grey or data.get("ModalityLUTSequence") or data.get("SharedFunctionalGroupsSequence"):
        raise BadImage(
            f"{path} is neither monochrome with a linear rescale in its header nor 8-bit RGB or "
            "YBR."
        )
    slope, intercept = (
        default if (value := data.get(key)) in (None, "") else float(value)
        for key, default in (("RescaleSlope", 1.0), ("RescaleIntercept", 0.0))
    )
    return _grey_levels(path, pixel_array(data) * slope + intercept, window, kind == "MONOCHROME1")


def _size_within(data: bytes, is_jpeg: bool) -> tuple[int, int]:
    """Return the height and width in the header of an encoded strip or tile.

    Its decoder makes so large an image, whatever size the file as a whole announces.
    """
    if not is_jpeg:  # one whose header Pillow does not know could be of any size
        with Image.open(BytesIO(data), formats=("JPEG2000", "PNG", "WEBP")) as image:
            return image.height, image.width
    marker = _MARKER.search(data)
    while marker:
        place = marker.end()
        if marker[1][0] in _FRAMES:
            sizes = data[place + 3 : place + 7]
            return int.from_bytes(sizes[:2]), int.from_bytes(sizes[2:])
        if marker[1][0] not in _WITHOUT_LENGTH:
            place += int.from_bytes(data[place : place + 2])
        marker = _MARKER.search(data, place)
    raise ValueError("a strip of JPEG without a header")


def _read_tiff(path: Path, window: tuple[float, float] | None) -> npt.NDArray[Any]:
    _, tifffile = _libraries()
    with tifffile.TiffFile(path) as file:
        check_frames(len(file.pages), str(path))
        page = file.pages[0]
        _check_pixels(path, page.imagelength, page.imagewidth)
        _check_pixels(path, *(page.tilelength, page.tilewidth) if page.is_tiled else (1, 1))
        samples = page.samplesperpixel
        kind = page.photometric.name
        if kind == "YCBCR" and page.compression.name == "JPEG":
            kind = "RGB"  # by its decoder
        form = " ".join([str(samples), kind, *(one.name for one in page.extrasamples)])
        if page.imagedepth != 1 or form not in _TIFF_FORMS or page.dtype.kind == "c":
            raise BadImage(
                f"{path} is neither grey nor RGB: save it as one of them, without further channels "
                "but a plain opacity."
            )
        ends = [
            start + length
            for start, length in zip(page.dataoffsets, page.databytecounts, strict=True)
        ]
        if not ends or min(page.databytecounts) == 0 or max(ends) > file.filehandle.size:
            raise BadImage(f"{path} is truncated or damaged.")
        if page.compression in (*tifffile.TIFF.IMAGE_COMPRESSIONS, tifffile.COMPRESSION.LERC):
            for start, length in zip(page.dataoffsets, page.databytecounts, strict=True):
                file.filehandle.seek(start)
                data = (page.jpegheader or b"") + file.filehandle.read(length)
                _check_pixels(path, *_size_within(data, page.compression.name in _JPEGS))
        values: npt.NDArray[Any] = page.asarray(maxworkers=1)
        if samples > 1 and page.planarconfig.name == "SEPARATE":
            values = np.moveaxis(values, 0, -1)
        turn = page.tags.valueof("Orientation", default=1)
        values = values.swapaxes(0, 1) if turn in (5, 6, 7, 8) else values
        values = values[:: -1 if turn in (3, 4, 7, 8) else 1, :: -1 if turn in (2, 3, 6, 7) else 1]
        return (
            values
            if samples > 1
            else _grey_levels(path, values, window, page.photometric.name == "MINISWHITE")
        )
