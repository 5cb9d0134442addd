"""The private data set: labels, privacy units, and images that are decoded as they are needed."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from pe.data.images import UInt8Array
from pe.data.samples import Images
from pe.errors import BadImage, PEError, PrivateDataError
from pe.private.digests import pixel_digest

OnBadImage = Literal["fail", "skip"]
Outcome = UInt8Array | PEError
"""A decoded image (h×w×c); or BadImage, or PrivateDataError where the declaration does not fit the record."""
Records = Iterable[Outcome]
"""The images in order. Each iteration reads anew and yields one outcome per record."""
Where = Callable[[int], str]
"""A record's index → how messages name its place ('Row 7 of labels.csv'), as a sentence begins."""
Labels = npt.NDArray[np.int32]
Units = npt.NDArray[np.int64]
NOBODY = -1
"""The unit of a record whose unit cannot be read."""


@dataclass(frozen=True)
class BadRecord:
    """A record without a readable image. Confidential: the reason names a private file.

    Attributes:
        index: the record's place in the data set.
        reason: one sentence.
    """

    index: int
    reason: str


@dataclass(frozen=True)
class Preflight:
    """What the private pre-flight found. Confidential.

    Attributes:
        bad: the records without a readable image.
        fingerprint: of all pixels, labels and units, under the caller's key; hexadecimal.
        digests: of each readable record (`pixel_digest`), in order: without a key, so they stay in memory.
    """

    bad: Sequence[BadRecord]
    fingerprint: str
    digests: Sequence[bytes]


def outcome_of(decode: Callable[[], UInt8Array]) -> Outcome:
    """What `decode` returns, or the PEError that it raises, as a value."""
    try:
        return decode()
    except PEError as error:
        return error


class PrivateDataset:
    """Private records: images with one label each, grouped into privacy units.

    Public: `classes`, `unit_name`, `declared_size`, `image_shape`, and nothing else. Confidential: the
    length, `labels`, `units` (the number of distinct ones included) and every block. The repr shows
    public values only. An empty data set is allowed, since it is a neighbour of a set of one record.

    Attributes:
        classes: the public label names; a label is an index into them. Some may have no record.
        labels: int32 (n,), confidential.
        units: int64 (n,), confidential; equal numbers are one privacy unit, 0, 1, … by first appearance. NOBODY where a
            record's unit cannot be read: it must not vote, and is counted nowhere.
        unit_name: "record" (each record its own unit), "subfolder", or the column's name.
        declared_size: the public number of records, or None where none is declared.
        image_shape: (height, width, channels) of every image.
        on_bad_image: whether `check` fails at a bad image or lists it.
    """

    def __init__(
        self,
        records: Records,
        labels: Labels,
        units: Units,
        *,
        classes: Sequence[str],
        image_shape: tuple[int, int, int],
        unit_name: str = "record",
        declared_size: int | None = None,
        on_bad_image: OnBadImage = "fail",
        where: Where | None = None,
    ) -> None:
        """Binds records to their labels and units; `where` names a record's place for its owner.

        Raises:
            PrivateDataError: labels and units differ in length, a label is no index into `classes`, or
                a class name comes twice.
        """
        if labels.shape != units.shape or labels.ndim != 1:
            raise PrivateDataError("Labels and privacy units differ in number: give one of each per record.")
        if len(labels) and not (labels.min() >= 0 and labels.max() < len(classes)):
            raise PrivateDataError("A label is no index into the class list.")
        if len(set(classes)) != len(classes):
            raise PrivateDataError(f"The class list names a class twice: {', '.join(classes)}.")
        self.classes = tuple(classes)
        self.labels: Labels = labels.astype(np.int32, copy=False)
        self.units: Units = units.astype(np.int64, copy=False)
        self.unit_name = unit_name
        self.declared_size = declared_size
        self.image_shape = image_shape
        self.on_bad_image: OnBadImage = on_bad_image
        self._records = records
        self._where = where or (lambda index: f"Record {index + 1}")

    @classmethod
    def of(
        cls,
        images: Images,
        labels: npt.ArrayLike,
        *,
        classes: Sequence[str],
        units: npt.ArrayLike | None = None,
        unit_name: str = "record",
        declared_size: int | None = None,
    ) -> PrivateDataset:
        """A data set of images that are in memory (or memory-mapped) already; without `units`, one per record.

        Raises:
            PrivateDataError: as the constructor, or images and labels differ in number.
        """
        numbers = np.asarray(labels, dtype=np.int32)
        if len(images) != len(numbers):
            raise PrivateDataError("Images and labels differ in number: give one label per image.")
        return cls(
            images.pixels,
            numbers,
            np.arange(len(numbers)) if units is None else np.asarray(units, dtype=np.int64),
            classes=classes,
            image_shape=images.shape,
            unit_name=unit_name,
            declared_size=declared_size,
        )

    def __len__(self) -> int:
        """The number of records, bad ones included. Confidential: show `declared_size` instead."""
        return len(self.labels)

    def __repr__(self) -> str:
        return (
            f"PrivateDataset(classes={self.classes}, unit_name={self.unit_name!r}, "
            f"declared_size={self.declared_size}, image_shape={self.image_shape})"
        )

    def check(self) -> list[BadRecord]:
        """The bad records of `preflight`."""
        return list(self.preflight(b"").bad)

    def preflight(self, key: bytes) -> Preflight:
        """Decodes every image once, before any API call or release.

        The answer and the error are the data owner's. The bad records are for confidential/ alone; the error, which
        refuses a start, may be told on the console, because no run goes on beside it.

        Args:
            key: of the fingerprint, so that nobody without it can test a guess at the records.

        Returns:
            The bad records, in order (none where `on_bad_image` is "fail"), a fingerprint of all
            pixels, labels and units, equal for equal data under an equal key, and a digest of each image.

        Raises:
            PrivateDataError: `on_bad_image` is "fail" and an image is bad (the first is named); or,
                whatever `on_bad_image` is, an image has another size without a resize rule, a record
                does not fit its declaration, no image at all is readable, or the source as a whole
                cannot be read.
        """
        bad: list[BadRecord] = []
        digests: list[bytes] = []
        digest = hmac.new(key, repr((self.classes, self.image_shape)).encode(), "sha256")
        for index, outcome in enumerate(self._outcomes()):
            if isinstance(outcome, BadImage):
                if self.on_bad_image == "fail":
                    raise PrivateDataError(
                        f"{_printable(outcome)} Repair or remove it, or set on_bad_image: skip to let it cast no vote."
                    ) from outcome
                bad.append(BadRecord(index, _printable(outcome)))
            elif isinstance(outcome, PEError):
                raise outcome
            else:
                digest.update(np.int64(index).tobytes() + outcome.tobytes())
                digests.append(pixel_digest(outcome))
        if bad and len(bad) == len(self):
            raise PrivateDataError(f"Not one private image can be read; the first: {bad[0].reason}")
        digest.update(self.labels.tobytes() + self.units.tobytes())
        return Preflight(bad, digest.hexdigest(), digests)

    def blocks(self, size: int) -> Iterator[tuple[Images, npt.NDArray[np.bool_]]]:
        """All records in order, in blocks of exactly `size` images, decoded on the fly. Confidential.

        The last block is padded with black images. One block is in memory at a time. A record that
        cannot be decoded, even if it could be at the pre-flight, is a black image with valid False and
        never an error. No record, no block.

        Args:
            size: images per block, ≥ 1.

        Yields:
            `size` images, and bool (size,): False for bad records and for padding.

        Raises:
            PrivateDataError: the source as a whole (not a record) is gone or unreadable.
        """
        if size < 1:
            raise ValueError(f"size must be at least 1, not {size}")
        outcomes = self._outcomes()
        for start in range(0, len(self), size):
            images, valid = self.padding(size)
            for row in range(min(size, len(self) - start)):
                outcome = next(outcomes)
                if not isinstance(outcome, PEError):
                    images.pixels[row], valid[row] = outcome, True
            yield images, valid

    def padding(self, size: int) -> tuple[Images, npt.NDArray[np.bool_]]:
        """A block of `size` black images, all invalid. Public: it holds no record."""
        return Images(np.zeros((size, *self.image_shape), dtype=np.uint8)), np.zeros(size, dtype=np.bool_)

    def _outcomes(self) -> Iterator[Outcome]:
        """One outcome per record; an image of another shape is a PrivateDataError."""
        records = iter(self._records)
        for index in range(len(self)):
            try:
                outcome = next(records)
            except StopIteration:
                raise PrivateDataError("The private data changed while they were read: start again.") from None
            if not isinstance(outcome, PEError) and outcome.shape != self.image_shape:
                outcome = PrivateDataError(
                    f"{_printable(self._where(index))} is an image of {_shape(outcome.shape)} where "
                    f"{_shape(self.image_shape)} are declared: set private.resize to crop, fit or stretch, or "
                    "private.size to what all images have."
                )
            yield outcome


def _printable(message: object) -> str:
    """The message in UTF-8; the bytes of file names that are not text become escapes."""
    return str(message).encode("utf-8", "backslashreplace").decode()


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
