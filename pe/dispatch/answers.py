"""Answers of a generator, kept in files and journal rows until their population is durable."""

from __future__ import annotations

import io
import math
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np

from pe.data.arrays import BoolArray, Int64Array, UInt8Array
from pe.data.population import Population
from pe.data.samples import CONDITION, DRAWN, Array, kind_among, modality
from pe.plugins.protocols import Answer, JobNote, Refused
from pe.progress import Progress
from pe.store.durable import Piece, sha256, write_durably
from pe.store.journal import ChunkRow, Miss
from pe.store.writer import RunWriter

Items = Int64Array

_MARK = "packed"
_LONGEST_HEADER = 10 + 2**16  # bytes, in version 1.0 of the format
_DRAWN = f"{CONDITION}{DRAWN}"


def encode(columns: dict[str, Array]) -> list[Piece]:
    """Return named arrays as pieces of a file: their names, then each array in the .npy format.

    Columns of samples become the parts that their modality packs them into. An array in C order is
    not copied.
    """
    kind = kind_among(columns.keys())
    samples = [name for name in (kind, _DRAWN) if name in columns]
    others = {name: array for name, array in columns.items() if name not in samples}
    archive = {
        f"{_MARK}.{name}.{part}": array
        for name in samples
        for part, array in modality(kind).pack(columns[name]).items()
    }
    pieces: list[Piece] = []
    for array in (np.array([*archive, *others]), *archive.values(), *others.values()):
        whole = np.asarray(array, order="C")
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header,
            np.lib.format.header_data_from_array_1_0(whole),
        )
        pieces += header.getvalue(), whole.reshape(-1).view(np.uint8).data
    return pieces


def decode(data: UInt8Array) -> dict[str, Array]:
    """Return the arrays that `encode` was given, views of the file's bytes `data` if possible.

    Nothing is executed.
    """
    names, end = _read(data, 0)
    columns: dict[str, Array] = {}
    for name in names:
        columns[str(name)], end = _read(data, end)
    archive: dict[str, dict[str, Array]] = {}
    for name in [name for name in columns if name.startswith(f"{_MARK}.")]:
        column, part = name.removeprefix(f"{_MARK}.").rsplit(".", 1)
        archive.setdefault(column, {})[part] = columns.pop(name)
    kind = next(iter(archive))
    return {name: modality(kind).unpack(parts) for name, parts in archive.items()} | columns


def _read(data: UInt8Array, start: int) -> tuple[Array, int]:
    """Return the array whose .npy header begins at `start`, and the place where it ends.

    The array is copied only if it lies unaligned.
    """
    head = io.BytesIO(data[start : start + _LONGEST_HEADER].tobytes())
    np.lib.format.read_magic(head)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(head)
    begin = start + head.tell()
    array: Array = np.frombuffer(data, dtype, math.prod(shape), begin).reshape(
        shape,
        order="F" if fortran else "C",
    )
    return np.require(array, requirements="A"), begin + array.nbytes


@dataclass(frozen=True, eq=False)
class ItemState:
    """The state of each of the n items of a phase."""

    has_sample: BoolArray  # there is a sample
    refusals: Items  # number of times that each item was refused
    failures: Items  # number of times that it failed
    earlier: Items  # (2, n): refusals before this start; failures before it
    rejections: Items  # number of its failures in which the request itself was rejected

    @classmethod
    def of(cls, count: int) -> ItemState:
        """Return the state of `count` items that were never asked for."""
        numbers = np.zeros((5, count), np.int64)
        return cls(np.zeros(count, dtype=bool), numbers[0], numbers[1], numbers[2:4], numbers[4])

    def tries(self, items: Items) -> Items:
        """Return how often each of `items` was asked for in vain."""
        return self.refusals[items] + self.failures[items]

    def note(self, items: Items, misses: list[Miss]) -> None:
        """Enter the outcome of one request for `items`."""
        self.has_sample[items] = True
        for miss in misses:
            self.has_sample[miss.item] = False
            self.count(miss)

    def count(self, miss: Miss) -> None:
        """Count one more refusal or failure of an item."""
        (self.refusals if miss.outcome == "refused" else self.failures)[miss.item] += 1
        self.rejections[miss.item] += miss.rejected


@dataclass(frozen=True, eq=False)
class Stored:
    """An answer to `items` whose file is durable, but whose row is not in the journal yet."""

    items: Items
    row: ChunkRow
    misses: list[Miss]
    job: JobNote


@dataclass(frozen=True)
class Answers:
    """The answers of a run that are not yet part of a population.

    `progress` shows a warning if some were lost.
    """

    run: RunWriter
    progress: Progress

    def job_of(self, request: str, items: Items) -> JobNote:
        """Return the note of the host's job for `request`, which asks for `items`.

        Any thread may call this.
        """
        job = self.run.journal.job(request)
        keep = partial(self.run.journal.keep_job, request, items.astype(np.int64).tobytes())
        return JobNote(job, calls=int(bool(job)), key=request, keep=keep)

    def jobs(self, phase: str) -> dict[str, Items]:
        """Return the requests of a phase whose jobs are noted: name → items."""
        return {
            request: np.frombuffer(items, np.int64)
            for request, items in self.run.journal.jobs(phase)
        }

    def store(
        self,
        phase: str,
        items: Items,
        answer: Answer,
        seconds: float,
        job: JobNote,
    ) -> Stored:
        """Write an answer to `items`, made in `seconds`, to a durable file.

        Return what `commit` takes. Thread-safe.
        """
        misses = [
            Miss(int(items[i]), "refused", True, miss.reason)
            if isinstance(miss, Refused)
            else Miss(int(items[i]), "failed", miss.retryable, miss.reason, miss.rejected)
            for i, miss in sorted(answer.missing.items())
        ]
        good = np.delete(items, sorted(answer.missing))
        name = None
        digest = None
        if good.size:
            name = f"{phase.replace('/', '-')}-{secrets.token_hex(8)}.chunk"
            # Durable before its row is in the journal: no row names a file that is not there.
            columns = Population.columns(answer.samples, answer.conditions, items=good)
            digest = write_durably(self.run.chunks / name, encode(columns))
        row = ChunkRow(
            0,
            phase,
            file=name,
            sha256=digest,
            answers=len(good),
            seconds=seconds,
            usage=answer.bill,
        )
        return Stored(items, row, misses, job)

    def commit(self, answers: list[Stored]) -> None:
        """Enter stored answers in the journal, all or none. The notes of their jobs are deleted."""
        requests = [one.job.key for one in answers if one.job.job]
        self.run.journal.add_chunks([(one.row, one.misses) for one in answers], requests)

    def standing(self, phase: str, count: int) -> ItemState:
        """Return the state of the `count` items of a phase.

        Answers whose files were lost or changed are forgotten.
        """
        self._take_back_damaged(phase)
        standing = ItemState.of(count)
        for items, _ in self.read_answer(phase):
            standing.has_sample[items] = True
        for miss in self.run.journal.misses(phase):
            standing.count(miss)
        # Each start has attempts of its own.
        standing.earlier[:] = standing.refusals, standing.failures
        return standing

    def read_answer(self, phase: str) -> Iterator[tuple[Items, dict[str, Array]]]:
        """Yield the answers of a phase in the order of their commits: (items, columns)."""
        return chain.from_iterable(map(self.read, self.run.journal.chunks(phase)))

    def read(self, row: ChunkRow) -> Iterator[tuple[Items, dict[str, Array]]]:
        """Yield the answer of a row, if it brought a sample: (items, columns).

        It is read from its file even if just written, since a generator may use the memory of its
        answer again.
        """
        if row.file is not None:
            columns = decode(np.fromfile(self.run.chunks / row.file, np.uint8))
            yield columns.pop("items"), columns

    def last_reasons(self, phase: str) -> dict[int, str]:
        """Return, for each item that was refused or failed, the reason of the last time."""
        return {miss.item: miss.reason for miss in self.run.journal.misses(phase)}

    def forget(self, phase: str) -> None:
        """Delete the files of a phase's answers."""
        for row in self.run.journal.chunks(phase):
            if row.file is not None:
                (self.run.chunks / row.file).unlink(missing_ok=True)

    def _take_back_damaged(self, phase: str) -> None:
        losses = []
        for row in self.run.journal.chunks(phase):
            path = self.run.chunks / str(row.file)
            if row.file is not None and not (path.is_file() and sha256(path) == row.sha256):
                losses.append(row.id)
        if losses:
            self.progress.warn(
                f"{len(losses)} stored answers of {phase} are missing or were changed: they are "
                "asked for again."
            )
            self.run.journal.forget_chunks(phase, losses)
