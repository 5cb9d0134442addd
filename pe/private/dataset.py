"""The private data set: labels, privacy units, and samples that are decoded as they are needed."""

from __future__ import annotations

import hmac
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
import numpy.typing as npt

from pe.data.samples import Array, Samples, Shape
from pe.errors import BadSample, PEError, PrivateDataError
from pe.private.digests import DIGEST_BYTES, Digests, sample_digest
from pe.private.faults import refusal

OnBadRecord = Literal["fail", "skip"]
Outcome = Array | PEError
"""A decoded sample; or BadSample, or PrivateDataError where the declaration does not fit the record."""
Records = Iterable[Outcome]
"""The samples in order. Each iteration reads anew and yields one outcome per record."""
Where = Callable[[int], str]
"""A record's index → how messages name its place ('Row 7 of labels.csv'), as a sentence begins."""
Labels = npt.NDArray[np.int32]
Units = npt.NDArray[np.int64]
NOBODY = -1
"""The unit of a record whose unit cannot be read."""


@dataclass(frozen=True)
class BadRecord:
    """A record without a readable sample. Confidential: the reason names a private file.

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
        bad: the records without a readable sample.
        fingerprint: of all samples, labels and units, under the caller's key; hexadecimal.
        digests: of each readable record (`sample_digest`), in order: without a key, so they stay in memory.
    """

    bad: Sequence[BadRecord]
    fingerprint: str
    digests: Digests


def class_fault(name: str) -> str:
    """Why text cannot name a class: a line of a table, a prompt or a picture cannot show it; empty: it can."""
    if not name.strip():
        return "is empty"
    if name != name.strip():
        return "begins or ends with white space: leave it out"
    unseen = (each for each in name if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp"))
    first = next((each for each in unseen if each not in "\u200c\u200d"), "")  # which Persian, Hindi and emoji need
    return f"holds U+{ord(first):04X}, which a line cannot show: leave it out" if first else ""


def outcome_of(decode: Callable[[], Array]) -> Outcome:
    """What `decode` returns, or the PEError that it raises, as a value."""
    try:
        return decode()
    except PEError as error:
        return error


class PrivateDataset:
    """Private records: samples with one label each, grouped into privacy units.

    Public: `classes`, `unit_name`, `declared_size`, `modality`, `shape`, and nothing else. Confidential: the
    length, `labels`, `units` (the number of distinct ones included) and every block. The repr shows
    public values only. An empty data set is allowed, since it is a neighbour of a set of one record.

    Attributes:
        classes: the public label names; a label is an index into them. Some may have no record.
        labels: int32 (n,), confidential.
        units: int64 (n,), confidential; equal numbers are one privacy unit, 0, 1, … by first appearance. NOBODY where a
            record's unit cannot be read: it must not vote, and is counted nowhere.
        unit_name: "record" (each record its own unit), "subfolder", or the column's name.
        declared_size: the public number of records, or None where none is declared.
        modality: what the samples are.
        shape: what all samples share (see `pe.data.samples.Shape`); of images (height, width, channels).
        on_bad_record: whether `check` fails at a bad record or lists it.
    """

    def __init__(
        self,
        records: Records,
        labels: Labels,
        units: Units,
        *,
        classes: Sequence[str],
        modality: type[Samples],
        shape: Shape,
        unit_name: str = "record",
        declared_size: int | None = None,
        on_bad_record: OnBadRecord = "fail",
        where: Where | None = None,
        misgiving: Callable[[], str] = str,
    ) -> None:
        """Binds records to their labels and units; `where` names a record's place for its owner.

        `misgiving` tells why the records, once all were read, cannot be meant as they are; empty: they can.

        Raises:
            PrivateDataError: labels and units differ in length, a label is no index into `classes`, or
                a class name comes twice, or is none (`class_fault`).
        """
        if labels.shape != units.shape or labels.ndim != 1:
            raise PrivateDataError("Labels and privacy units differ in number: give one of each per record.")
        if len(labels) and not (labels.min() >= 0 and labels.max() < len(classes)):
            raise PrivateDataError("A label is no index into the class list.")
        if len(set(classes)) != len(classes):
            raise PrivateDataError(f"The class list names a class twice: {', '.join(classes)}.")
        for name in classes:
            if fault := class_fault(name):
                raise PrivateDataError(f"The class name {name!r} {fault}.")
        self.classes = tuple(classes)
        self.labels: Labels = labels.astype(np.int32, copy=False)
        self.units: Units = units.astype(np.int64, copy=False)
        self.unit_name = unit_name
        self.declared_size = declared_size
        self.modality = modality
        self.shape = shape
        self.on_bad_record: OnBadRecord = on_bad_record
        self._records = records
        self._where = where or (lambda index: f"Record {index + 1}")
        self._misgiving = misgiving

    @classmethod
    def of(
        cls,
        samples: Samples,
        labels: npt.ArrayLike,
        *,
        classes: Sequence[str],
        units: npt.ArrayLike | None = None,
        unit_name: str = "record",
        declared_size: int | None = None,
    ) -> PrivateDataset:
        """A data set of samples that are in memory (or memory-mapped) already; without `units`, one per record.

        Raises:
            PrivateDataError: as the constructor, or samples and labels differ in number.
        """
        numbers = np.asarray(labels, dtype=np.int32)
        if len(samples) != len(numbers):
            raise PrivateDataError("Samples and labels differ in number: give one label per sample.")
        return cls(
            samples.array,
            numbers,
            np.arange(len(numbers)) if units is None else np.asarray(units, dtype=np.int64),
            classes=classes,
            modality=type(samples),
            shape=samples.shape,
            unit_name=unit_name,
            declared_size=declared_size,
        )

    def __len__(self) -> int:
        """The number of records, bad ones included. Confidential: show `declared_size` instead."""
        return len(self.labels)

    def __repr__(self) -> str:
        return (
            f"PrivateDataset(classes={self.classes}, unit_name={self.unit_name!r}, "
            f"declared_size={self.declared_size}, shape={self.shape})"
        )

    def check(self) -> list[BadRecord]:
        """The bad records of `preflight`."""
        return list(self.preflight(b"").bad)

    def preflight(self, key: bytes) -> Preflight:
        """Decodes every record once, before any API call or release.

        The answer and the error are the data owner's. The bad records are for confidential/ alone; the error, which
        refuses a start, may be told on the console, because no run goes on beside it.

        Args:
            key: of the fingerprint, so that nobody without it can test a guess at the records.

        Returns:
            The bad records, in order (none where `on_bad_record` is "fail"), a fingerprint of all
            samples, labels and units, equal for equal data under an equal key, and a digest of each sample.

        Raises:
            PrivateDataError: `on_bad_record` is "fail" and records are bad (all are named, see `refusal`); or,
                whatever it is, a record does not fit its declaration, the source as a whole cannot be read, or has a
                misgiving.
        """
        bad: list[BadRecord] = []
        self._misgiving()  # of what was read before
        digests, readable = np.empty((len(self), DIGEST_BYTES), np.uint8), 0
        digest = hmac.new(key, repr((self.classes, self.modality.kind, self.shape)).encode(), "sha256")
        for index, outcome in enumerate(self._outcomes()):
            if isinstance(outcome, BadSample):
                bad.append(BadRecord(index, str(outcome)))
            elif isinstance(outcome, PEError):
                raise outcome
            else:
                digest.update(index.to_bytes(8, "little") + outcome.tobytes())
                digests[readable] = np.frombuffer(sample_digest(outcome), np.uint8)
                readable += 1
        if bad and self.on_bad_record == "fail":
            remedy = "Repair or remove {it}, or set on_bad_record: skip to let {it} cast no vote."
            raise refusal([one.reason for one in bad], "private records cannot be read", remedy)
        if why := self._misgiving():
            raise PrivateDataError(why)
        digest.update(np.ascontiguousarray(self.labels).data)
        digest.update(np.ascontiguousarray(self.units).data)
        return Preflight(bad, digest.hexdigest(), digests[:readable])

    def blocks(self, size: int) -> Iterator[tuple[Samples, npt.NDArray[np.bool_]]]:
        """All records in order, in blocks of exactly `size` samples, decoded on the fly. Confidential.

        The last block is padded with blank samples. One block is in memory at a time. A record that
        cannot be decoded, even if it could be at the pre-flight, is a blank sample with valid False and
        never an error. No record, no block.

        Args:
            size: samples per block, ≥ 1.

        Yields:
            `size` samples, and bool (size,): False for bad records and for padding.

        Raises:
            PrivateDataError: the source as a whole (not a record) is gone or unreadable.
        """
        if size < 1:
            raise ValueError(f"size must be at least 1, not {size}")
        outcomes = self._outcomes()
        for start in range(0, len(self), size):
            read = list(islice(outcomes, min(size, len(self) - start)))
            rows = [None if isinstance(one, PEError) else one for one in read] + [None] * (size - len(read))
            yield self.modality.stack(rows, self.shape), np.array([row is not None for row in rows])

    def first(self, count: int) -> Iterator[Outcome]:
        """The outcomes of the first records, of whatever shape: for `pe init` to propose one. Confidential."""
        return islice(iter(self._records), count)

    def padding(self, size: int) -> tuple[Samples, npt.NDArray[np.bool_]]:
        """A block of `size` blank samples, all invalid. Public: it holds no record."""
        return self.modality.stack([None] * size, self.shape), np.zeros(size, dtype=np.bool_)

    def _outcomes(self) -> Iterator[Outcome]:
        """One outcome per record; a sample of another shape is a PrivateDataError."""
        records = iter(self._records)
        for index in range(len(self)):
            try:
                outcome = next(records)
            except StopIteration:
                raise PrivateDataError("The private data changed while they were read: start again.") from None
            misfit = "" if isinstance(outcome, PEError) else self.modality.misfit(outcome, self.shape)
            yield PrivateDataError(f"{self._where(index)} {misfit}.") if misfit else outcome
