"""The private data set: labels, privacy units, and samples that are decoded as they are needed."""

from __future__ import annotations

import hashlib
import hmac
import os
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pe.data.arrays import BoolArray, Int32Array, Int64Array, UInt8Array
from pe.data.remote import RemotePath
from pe.data.samples import Array, Samples, Shape
from pe.errors import (
    BAD_FILES,
    BadRow,
    BadSample,
    BadTable,
    ContractError,
    PEError,
    PrivateDataError,
    printable,
)

OnBadRecord = Literal["fail", "skip"]
Outcome = Array | PEError
"""A decoded sample, or the error as a value: BadSample, or PrivateDataError if the record is not as
declared."""
Records = Iterable[Outcome]
"""The samples in order. Each iteration reads anew and yields one outcome per record."""
Remark = str | PrivateDataError
Where = Callable[[int], str]
"""A function from a record's index to its place in words ('Row 7 of labels.csv'), with which a
sentence begins."""
Labels = Int32Array
Units = Int64Array
NOBODY = -1
"""The unit of a record whose unit cannot be read."""
DIGEST_BYTES = 32
Digests = UInt8Array
"""Digests of samples (`sample_digest`), (n, DIGEST_BYTES)."""


@dataclass(frozen=True)
class BadRecord:
    """A record without a readable sample.

    Confidential: the reason, a sentence, names a private file.
    """

    index: int
    reason: str


@dataclass(frozen=True)
class Preflight:
    """The result of the private pre-flight. Confidential."""

    bad: Sequence[BadRecord]  # in order; none where `on_bad_record` is "fail"
    fingerprint: str  # of all samples, labels and units, under the caller's key; hexadecimal
    digests: Digests  # of the readable records, in order; made without a key, so never stored
    remarks: Sequence[str]  # sentences for the owner on cells that were changed or cannot be read


@dataclass(repr=False, eq=False)
class PrivateDataset:
    """Private records: samples with one label each, grouped into privacy units.

    Public are `classes`, `unit_name`, `declared_size`, `modality` and `shape`, and nothing else;
    the repr shows no more. Confidential are the length, `labels`, `units` (even how many there are)
    and every block. An empty data set is allowed, because it is a neighbour of a set of one record.
    `PrivateSource.bind` makes one, after it has checked classes, labels and units.

    Attributes:
        classes: the public label names; a label is an index into them. Some may have no record.
        labels: int32 (n,), confidential.
        units: int64 (n,), confidential. Equal numbers are one privacy unit: 0, 1, … by first
            appearance. A record whose unit cannot be read has NOBODY: it must not vote, and is
            counted nowhere.
        unit_name: "record" (each record its own unit), "subfolder", or the column's name.
        declared_size: the public number of records, or None where none is declared.
        modality: the class of the samples, such as `Images`.
        shape: the shape of each sample (see `pe.data.samples.Shape`); for images (height, width,
            channels).
        on_bad_record: with "fail", `check` raises at a bad record; with "skip", it lists them.
        records: the samples. Confidential.
        where: names a record's place for its owner.
        remarks: returns sentences for the owner on the records read since the last call. One that
            is an error says why they look like a mistake: it refuses a start, unless bad records
            are skipped.
        faults: records that are bad whatever their samples are, and why; their units become NOBODY.
    """

    records: Records
    labels: Labels
    units: Units
    _: KW_ONLY
    classes: tuple[str, ...]
    modality: type[Samples]
    shape: Shape
    unit_name: str = "record"
    declared_size: int | None = None
    on_bad_record: OnBadRecord = "fail"
    where: Where = lambda index: f"Record {index + 1}"
    remarks: Callable[[], list[Remark]] = list
    faults: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.classes = tuple(self.classes)
        if self.faults:
            self.units[list(self.faults)] = NOBODY

    def __len__(self) -> int:
        """The number of records, bad ones included. Confidential: show `declared_size` instead."""
        return len(self.labels)

    def __repr__(self) -> str:
        return (
            f"PrivateDataset(classes={self.classes}, unit_name={self.unit_name!r}, "
            f"declared_size={self.declared_size}, shape={self.shape})"
        )

    def check(self) -> list[BadRecord]:
        """Decode every record once and return the bad ones. Raise as `preflight`."""
        return list(self.preflight(b"").bad)

    def preflight(self, key: bytes) -> Preflight:
        """Decode every record once, before any API call or release.

        Equal data have equal fingerprints under one key. Without the `key`, nobody can use the
        fingerprint to test a guess at the records. The bad records are for confidential/ alone; the
        error, which refuses a start, may be shown on the console.

        Raises:
            PrivateDataError: `on_bad_record` is "fail" and records are bad (all are named, see
                `refusal`); or a record is not as declared, the source as a whole cannot be read, or
                a remark is an error.
        """
        bad: list[BadRecord] = []
        cells: dict[tuple[str, str], list[int]] = {}  # a column and its fault → the records
        self.remarks()  # of what was read before
        digests = np.empty((len(self), DIGEST_BYTES), np.uint8)
        readable = 0
        digest = hmac.new(
            key,
            repr((self.classes, self.modality.kind, self.shape)).encode(),
            "sha256",
        )
        for index, outcome in enumerate(self._outcomes()):
            if isinstance(outcome, BadSample):
                bad.append(BadRecord(index, str(outcome)))
                for fault in outcome.cells.items() if isinstance(outcome, BadRow) else ():
                    cells.setdefault(fault, []).append(index)
            elif isinstance(outcome, PEError):
                raise outcome
            else:
                digest.update(index.to_bytes(8, "little") + outcome.tobytes())
                digests[readable] = np.frombuffer(sample_digest(outcome), np.uint8)
                readable += 1
        remarks = [
            f"Column '{column}': {len(rows):,} cells cannot be read. {self.where(rows[0])} has "
            f"the first, which {why}"
            for (column, why), rows in cells.items()
        ]
        others = self.remarks()
        if self.on_bad_record == "fail":
            if cells and len(bad) > 1:
                remedy = (
                    "Mend the cells or their declaration, or set on_bad_record: skip: such rows "
                    "cast no vote."
                )
                raise refusal(remarks, "kinds of cells cannot be read", remedy)
            if bad:
                remedy = (
                    "Repair or remove {it}, or set on_bad_record: skip to let {it} cast no vote."
                )
                raise refusal([one.reason for one in bad], "private records cannot be read", remedy)
            for one in others:
                if isinstance(one, PrivateDataError):
                    raise one
        remarks += map(str, others)
        digest.update(np.ascontiguousarray(self.labels).data)
        digest.update(np.ascontiguousarray(self.units).data)
        return Preflight(bad, digest.hexdigest(), digests[:readable], remarks)

    def blocks(self, size: int) -> Iterator[tuple[Samples, BoolArray]]:
        """Yield all records in order, in blocks of exactly `size` samples with masks. Confidential.

        A mask is False for blank samples, which pad the last block. One block is in memory at a
        time. A record that cannot be decoded, even if it could be at the pre-flight, is a blank
        sample and never an error. A source that is gone is a PrivateDataError. Without records
        there is no block.
        """
        outcomes = self._outcomes()
        for start in range(0, len(self), size):
            block = list(islice(outcomes, min(size, len(self) - start)))
            rows = [None if isinstance(one, PEError) else one for one in block] + [None] * (
                size - len(block)
            )
            yield self.modality.stack(rows, self.shape), np.array([row is not None for row in rows])

    def first(self, count: int) -> Iterator[Outcome]:
        """Yield the outcomes of the first `count` records, whatever their shapes, for `pe init`.

        Confidential.
        """
        return islice(iter(self.records), count)

    def _outcomes(self) -> Iterator[Outcome]:
        """Yield one outcome per record. A sample of another shape is a PrivateDataError.

        Where bad records are skipped, each error is a BadSample, which stops nothing.
        """
        with as_private():
            records = iter(self.records)
            for index in range(len(self)):
                outcome = next(records, None)
                if outcome is None:
                    raise PrivateDataError(
                        "The private data changed while they were read: start again."
                    )
                if not isinstance(outcome, PEError):  # whose own reason says more
                    misfit = self.modality.misfit(outcome, self.shape)
                    if index in self.faults:
                        outcome = BadSample(self.faults[index])
                    elif misfit:
                        outcome = PrivateDataError(f"{self.where(index)} {misfit}.")
                if isinstance(outcome, PrivateDataError) and self.on_bad_record == "skip":
                    outcome = BadSample(str(outcome))
                yield outcome


class Reread(partial[Iterator[Outcome]]):
    """Records that a function reads anew at every iteration."""

    def __iter__(self) -> Iterator[Outcome]:
        return self()


def outcome_of(
    read: Callable[[Any, str], Array],
    value: object,
    name: str,
) -> Outcome:
    """Return what `read` makes of the record `name`, or the PEError that it raises, as a value.

    Any error of a library is a BadSample that tells its type alone: its message may hold a cell.
    """
    try:
        return read(value, name)
    except PEError as error:
        return error
    except Exception as error:
        return BadSample(f"{name} cannot be read ({type(error).__name__}).")


def class_fault(name: str) -> str:
    """Return why a class name cannot be shown in a table, prompt or picture, such as 'is empty'.

    The text is empty if it can.
    """
    if not name.strip():
        return "is empty"
    if name != name.strip():
        return "begins or ends with white space: leave it out"
    unseen = (each for each in name if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp"))
    first = next(
        (each for each in unseen if each not in "\u200c\u200d"),
        "",
    )  # which Persian, Hindi and emoji need
    return f"holds U+{ord(first):04X}, which a line cannot show: leave it out" if first else ""


# Public samples among the private records, found by digests.


def sample_digest(sample: Array) -> bytes:
    """Return the SHA-256 of a sample's shape and values.

    A private record's digest must stay in memory.
    """
    return hashlib.sha256(repr(sample.shape).encode() + sample.tobytes()).digest()


def find_copies(
    digests: Iterable[Digests],
    public: Iterable[tuple[str, Array]],
    modality: type[Samples],
    shape: Shape,
) -> tuple[dict[str, object], list[str]]:
    """Return the number and SHA-256 of the public samples, and the names of copies of records.

    Both are decoded alike. Only samples that are never equal by chance are compared
    (`Samples.is_unique`), so rows of tables and texts never are: otherwise whoever chooses them
    would learn whether a record has certain values.

    Guarantee: none; the names are confidential. All public samples are taken before one is
    compared, so whoever yields them learns nothing of the answer. Memory holds a digest and a name
    of each public sample.

    Raises:
        ContractError: a public sample is of another shape: it was not decoded as the private
            records are.
    """
    unique: list[tuple[str, bytes]] = []
    whole = bytearray()
    for name, sample in public:
        if not modality.check(sample[np.newaxis]) or modality.misfit(sample, shape):
            form = f"{sample.dtype} {sample.shape}"
            raise ContractError(
                f"public_samples gave {name} as {form}, not as {modality.noun} of {shape} are held."
            )
        digest = sample_digest(sample)
        whole += digest
        if modality.is_unique(sample):
            unique.append((name, digest))
    # Only now, when the last public sample was taken, is any compared.
    ours = {digest for _, digest in unique}
    common = ours.intersection(map(np.ndarray.tobytes, digests))
    content = {"samples": len(whole) // DIGEST_BYTES, "sha256": hashlib.sha256(whole).hexdigest()}
    return content, [name for name, digest in unique if digest in common]


# Messages to the owner about private files at fault. Confidential: every word of it names private
# files.

SHOWN = 20
"""The largest number of files at fault that the console names."""


def refusal(faults: Sequence[str], several: str, remedy: str) -> PrivateDataError:
    """Return one error for all `faults`, whose message quotes the first.

    If there are several, notes list the first SHOWN. `several` follows their number: 'private
    records cannot be read'. In the sentence `remedy`, {it} becomes it or them.
    """
    if len(faults) == 1:
        return PrivateDataError(f"{faults[0]} {remedy.format(it='it')}")
    error = PrivateDataError(
        f"{len(faults):,} {several}; the first: {faults[0]} {remedy.format(it='them')}"
    )
    error.faults = tuple(map(printable, faults))
    for fault in error.faults[:SHOWN]:
        error.add_note(fault)
    if len(faults) > SHOWN:
        error.add_note(f"… and {len(faults) - SHOWN:,} more.")
    return error


def absence(path: Path, noun: str) -> PrivateDataError:
    """Return the error for a path at which there is no `noun`: no file or no folder."""
    if path.exists():
        return PrivateDataError(f"{path} is not a {noun}.")
    return PrivateDataError(f"The {noun} {path} does not exist.")


@contextmanager
def as_private() -> Iterator[None]:
    """Turn a BadTable, or any error of a library, into a PrivateDataError that tells no cell."""
    try:
        yield
    except BadTable as error:
        raise PrivateDataError(str(error)) from error
    except PEError:
        raise
    except Exception as error:
        raise PrivateDataError(
            f"The private records cannot be read: a library failed with {type(error).__name__}. "
            "They may be damaged."
        ) from None


@contextmanager
def listing(place: Path | RemotePath | None) -> Iterator[None]:
    """List all files at fault in `<data>.bad-files.txt` beside the data, if more than SHOWN are.

    Only its owner can read that file. Nothing is written where the data have no `place` on this
    machine.
    """
    try:
        yield
    except PrivateDataError as error:
        if isinstance(place, Path) and len(error.faults) > SHOWN:
            error.add_note(_write_list(place.resolve(), error.faults))
        raise


def _write_list(data: Path, faults: Sequence[str]) -> str:
    """Write the list. Return a sentence that says where it is, or why it cannot be written."""
    path = data.with_name(BAD_FILES.format(data.name))
    try:
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(f"{fault}\n" for fault in faults)
    except OSError as error:
        return f"{path}, which is to list them all, cannot be written: {error.strerror}."
    return f"All of them are listed in {path}; as confidential as the data, it may be deleted."


def place_in(
    files: Sequence[object],
    ends: Sequence[int],
    noun: str = "Row",
) -> Where:
    """Return a function that names a record's place in a sequence of files ('Row 7 of a.parquet').

    `ends` has the number of records up to the end of each file that was read so far. It may grow.
    """

    def where(index: int) -> str:
        file = bisect_right(ends, index)
        return f"{noun} {index - (ends[file - 1] if file else 0) + 1:,} of {files[file]}"

    return where
