"""The dispatcher: API work cut into chunks, asked in parallel, and committed chunk by chunk."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pe.data.population import NO_PARENT, Population, parse_columns
from pe.data.samples import Array, Samples
from pe.errors import APIError, Interrupted, LimitReached, PEError, PluginError
from pe.protocols import Answer, GenerationAPI, Refused
from pe.run.directory import population_place
from pe.run.durable import sha256, write_durably
from pe.run.journal import ChunkRow, Miss
from pe.run.limits import Meter
from pe.run.progress import Progress, Task
from pe.run.work import Items, Work, decode, encode
from pe.run.writer import RunWriter

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Dispatcher:
    """RANDOM_API and VARIATION_API over a whole population.

    What an answer brought is committed before it counts as done, so a population that is finished,
    and every chunk of one that is not, is never asked for again.

    Attributes:
        api: the generator.
        run: where everything is committed.
        classes: the public label names.
        seed: the recipe's seed.
        attempts: how often an item is asked for before it is given up.
        progress: told of every finished chunk.
        meter: says before each request whether it may be made.
    """

    api: GenerationAPI
    run: RunWriter
    classes: tuple[str, ...]
    seed: int
    attempts: int = 5
    progress: Progress = field(default_factory=Progress)
    meter: Meter = field(default_factory=Meter)

    def random(self, labels: npt.NDArray[np.int32]) -> Population:
        """S_0: a new sample for each of `labels`, int32 (n,).

        Raises:
            APIError: an item was refused, or failed, in every attempt.
        """
        done = self.run.population(population_place(0))
        if done is not None:
            return done
        work = Work("population/0", labels, self.classes, self.seed, np.full(len(labels), NO_PARENT, np.int64))
        with self.progress.task("RANDOM_API", len(work)) as task:
            self._fulfil(work, task)
        return self._gather(population_place(0), work)

    def variations(self, t: int, population: Population, parents: Items, degree: float) -> Population:
        """S_t: one variation of each of `parents`, int64 (n,) indices into `population`.

        A variation that is refused in every attempt keeps its parent.

        Raises:
            APIError: an item failed in every attempt.
        """
        return self.vary(f"population/{t}", population_place(t), population, parents, degree, f"VARIATION_API {t}")

    def vary(
        self, phase: str, place: str, population: Population, parents: Items, degree: float, description: str
    ) -> Population:
        """Variations of `parents` as a durable population in the run's folder `place`; see `variations`."""
        done = self.run.population(place)
        if done is not None:
            return done
        work = self._variation_work(phase, population, parents, degree)
        with self.progress.task(description, len(work)) as task:
            self._fulfil(work, task)
        return self._gather(place, work)

    def lookahead(
        self, t: int, population: Population, parents: Items, degree: float
    ) -> Iterator[tuple[Items, Samples]]:
        """Variations that only help to choose: (indices into `parents`, samples) by chunk, without refused ones."""
        work = self._variation_work(f"lookahead/{t}", population, parents, degree)
        with self.progress.task(f"lookahead {t}", len(work)) as task:
            self._fulfil(work, task)
        for items, columns in self._committed(work):
            yield items, parse_columns(columns)[0]

    def forget_lookahead(self, t: int) -> None:
        """Delete the lookahead's samples, once the histogram that they served is durable."""
        self._forget(f"lookahead/{t}")

    def _variation_work(self, phase: str, population: Population, parents: Items, degree: float) -> Work:
        return Work(phase, population.labels[parents], self.classes, self.seed, parents, population, degree)

    def _fulfil(self, work: Work, task: Task) -> None:
        """Ask until every item of `work` has been answered or given up, committing each chunk."""
        self._drop_damaged(work.phase)
        answered, tries = self._state(work)
        task.advance(int(answered.sum()))
        while (pending := np.flatnonzero(~answered & (tries < self.attempts))).size:

            def keep(items: Items, answer: Answer) -> None:
                misses = self._commit(work, items, answer)
                missed = np.array([miss.item for miss in misses], dtype=np.int64)
                answered[items] = True
                answered[missed] = False
                tries[missed] += 1
                task.advance(len(items) - len(missed), self.meter.spending(self.run.journal.totals()))
                self._stop_if_final(misses)

            try:
                self._ask_all(work, pending, tries, keep)
            except (LimitReached, Interrupted) as stopped:
                left = f"{answered.sum()} of {len(work)} samples of {work.phase} are there"
                raise type(stopped)(f"{stopped} {left}; `pe resume {self.run.folder}` goes on.") from stopped
        self._check_given_up(work, np.flatnonzero(~answered))

    def _state(self, work: Work) -> tuple[npt.NDArray[np.bool_], Items]:
        """Which items the journal has an answer for, and how often the others were asked in vain."""
        answered, tries = np.zeros(len(work), dtype=bool), np.zeros(len(work), dtype=np.int64)
        for items, _ in self._committed(work):
            answered[items] = True
        for miss in self.run.journal.misses(work.phase):
            tries[miss.item] += 1
        return answered, tries

    def _ask_all(self, work: Work, pending: Items, tries: Items, keep: Callable[[Items, Answer], None]) -> None:
        """Ask for `pending` in chunks and `keep` each answer; after an error those in flight are kept first."""
        capabilities = self.api.capabilities
        workers = min(capabilities.concurrency, self.meter.limits.max_concurrency or capabilities.concurrency)
        waiting: dict[Future[Answer], Items] = {}
        chunks = work.chunks(pending, capabilities)
        error: Exception | None = None
        with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="pe-api") as pool:
            while True:
                while error is None and len(waiting) < 2 * workers:
                    items = next(chunks, None)
                    if items is None:
                        break
                    under_way = sum(map(len, waiting.values())) + len(items)
                    error = self.meter.refusal(self.run.journal.totals(), len(waiting) + 1, under_way)
                    if error is None:
                        waiting[pool.submit(work.ask, self.api, items, tries[items])] = items
                if not waiting:
                    break
                finished = wait(waiting, return_when=FIRST_COMPLETED).done
                for future in [future for future in waiting if future in finished]:  # in the order of asking
                    try:
                        keep(waiting.pop(future), future.result())
                    except Exception as caught:
                        error = error or caught
        if error is not None:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> PEError:
        if isinstance(error, PEError):
            return error
        log.error("The adapter failed.", exc_info=error)
        return PluginError(
            f"The adapter {type(self.api).__name__} failed with {type(error).__name__}: {error} "
            "(the traceback is in confidential/log.txt)"
        )

    def _commit(self, work: Work, items: Items, answer: Answer) -> list[Miss]:
        """Make an answer durable: its file first, then its row."""
        misses = [
            Miss(int(items[i]), "refused", True, miss.reason)
            if isinstance(miss, Refused)
            else Miss(int(items[i]), "failed", miss.retryable, miss.reason)
            for i, miss in sorted(answer.missing.items())
        ]
        good = np.delete(items, sorted(answer.missing))
        name, digest = None, None
        if good.size:
            name = f"{work.phase.replace('/', '-')}-{secrets.token_hex(8)}.chunk"
            columns = Population.columns(answer.samples, answer.conditions, items=good)
            digest = write_durably(self.run.chunks / name, encode(columns))
        usage = answer.usage
        calls, images, tokens = (1, len(good), 0) if usage is None else (usage.calls, usage.images, usage.tokens)
        self.run.journal.add_chunk(ChunkRow(0, work.phase, name, digest, len(good), calls, images, tokens), misses)
        return misses

    def _stop_if_final(self, misses: list[Miss]) -> None:
        for miss in misses:
            if miss.outcome == "failed" and not miss.retryable:
                raise APIError(f"{type(self.api).__name__} cannot make a sample: {miss.reason}")

    def _check_given_up(self, work: Work, items: Items) -> None:
        """Refused variations keep their parent; anything else that is missing ends the run."""
        last = {miss.item: miss for miss in self.run.journal.misses(work.phase)} if items.size else {}
        for item in items:
            miss = last[int(item)]
            if work.source is None or miss.outcome == "failed":
                raise APIError(
                    f"{type(self.api).__name__} gave no sample for item {item} of {work.phase} "
                    f"in {self.attempts} attempts: {miss.reason}"
                )

    def _gather(self, place: str, work: Work) -> Population:
        """The answers of a finished phase as a durable population; its chunks are deleted then."""
        population = self.run.add_population(place, work.labels, work.parents, self._parts(work))
        self._forget(work.phase)
        return population

    def _parts(self, work: Work) -> Iterator[tuple[Items, dict[str, Array]]]:
        missing = np.ones(len(work), dtype=bool)
        for items, columns in self._committed(work):
            missing[items] = False
            yield items, columns
        rows = np.flatnonzero(missing)
        if rows.size and work.source is not None:
            kept = work.source.take(work.parents[rows])
            yield rows, Population.columns(kept.samples, kept.conditions)

    def _committed(self, work: Work) -> Iterator[tuple[Items, dict[str, Array]]]:
        """The committed answers of a phase, in the order of their commits: (items, columns)."""
        for row in self.run.journal.chunks(work.phase):
            if row.file is not None:
                columns = decode((self.run.chunks / row.file).read_bytes())
                yield columns.pop("items"), columns

    def _drop_damaged(self, phase: str) -> None:
        """Take back answers whose files are missing or changed, so that their items are asked for again."""
        rows = [row for row in self.run.journal.chunks(phase) if row.file is not None]
        damaged = [row for row in rows if not _intact(self.run.chunks / str(row.file), row.sha256)]
        if damaged:
            self.progress.warn(
                f"{len(damaged)} stored answers of {phase} are missing or were changed: they are asked for again."
            )
            self.run.journal.forget_chunks(phase, [row.id for row in damaged])

    def _forget(self, phase: str) -> None:
        for row in self.run.journal.chunks(phase):
            if row.file is not None:
                (self.run.chunks / row.file).unlink(missing_ok=True)


def _intact(path: Path, digest: str | None) -> bool:
    return path.is_file() and sha256(path) == digest
