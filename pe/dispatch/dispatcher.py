"""The dispatcher: API work cut into chunks, asked in parallel, and committed chunk by chunk."""

from __future__ import annotations

import logging
import re
import time
from collections import abc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from threading import Event
from typing import Self

import numpy as np

from pe.data.arrays import Int32Array
from pe.data.population import NO_PARENT, Members, Population, parse_columns
from pe.data.samples import Array, Samples, Shape, suspicions
from pe.dispatch.answers import Answers, Items, ItemState, Stored
from pe.dispatch.limits import LimitToRaise, Meter
from pe.dispatch.work import NOBODY, Work, lend
from pe.errors import APIError, ContractError, DamagedFile, Interrupted, PEError, PluginError
from pe.plugins.protocols import Generator
from pe.progress import Progress, Task
from pe.store.journal import Totals
from pe.store.places import FOUNDERS, population_place
from pe.store.writer import RunWriter

ByChunk = abc.Generator[tuple[Items, Samples]]

CHUNKS = 3
ITEMS = 12
"""Fewest requests, and items, that a phase sends before `StartupGuard` judges it. At least one
request a worker."""
LATER = 4
"""A phase that began well ends once LATER × max(CHUNKS, workers) requests and LATER × ITEMS items
fail in a row."""
EVERY = 0.5
"""Seconds after which a generator is asked again what it waits for."""
_OWN_WORDS = re.compile(r"(?<=HTTP 2\d\d: ).*|\d+", re.DOTALL)
"""Parts of a reason that differ from answer to answer: numbers, and the words of a server's HTTP
2xx answer."""

log = logging.getLogger(__name__)


class StartupGuard:
    """Holds the rest of a phase back until one of its first requests shows that it may succeed.

    A sample or a refusal shows it, or a second reason for failing (but for `_OWN_WORDS`), or a
    sample from an earlier start (`proven`). If the first requests all fail for one reason, or many
    in a row do later, the rest are not sent: they would fail, too.

    A rejected request (`Failed.rejected`) does not count after that: its item alone is at fault.
    Nor does it count among variations, of which the first may all be of one parent;
    `Dispatcher._check_given_up` judges these.
    """

    def __init__(self, workers: int, proven: bool) -> None:
        self._chunks = max(CHUNKS, workers)
        self._started_chunks = 0
        self._started_items = 0
        self._proven = proven
        self._reasons = set[str]()
        self._last = ""
        self._cost_of_failures = Totals()
        self._failed_chunks = 0
        self._failed_items = 0

    @property
    def holds(self) -> bool:
        """True while no more requests may be sent.

        If it is still True when none is under way, the phase has failed.
        """
        if self._proven:
            return (
                self._failed_chunks >= LATER * self._chunks and self._failed_items >= LATER * ITEMS
            )
        return self._started_chunks >= self._chunks and self._started_items >= ITEMS

    def start(self, items: int) -> None:
        """Count a request for this number of items."""
        self._started_chunks += 1
        self._started_items += items

    def note(self, answers: list[Stored], are_variations: bool) -> None:
        """Judge the phase by the answers of requests."""
        for one in answers:
            self._reasons |= {
                _OWN_WORDS.sub("#", miss.reason) for miss in one.misses if not miss.rejected
            }
            # Two reasons show a server that answers, so it is not wrong in one setting.
            self._proven |= len(self._reasons) > 1
            if one.row.answers or any(miss.outcome == "refused" for miss in one.misses):
                self._proven = True
                self._cost_of_failures = Totals()
                self._failed_chunks = 0
                self._failed_items = 0
                continue
            if (self._proven or are_variations) and any(miss.rejected for miss in one.misses):
                self._proven = True
                continue
            self._cost_of_failures += Totals(one.row.usage)
            self._failed_chunks += 1
            self._failed_items += len(one.misses)
            self._last = one.misses[-1].reason

    def error(self, name: str, phase: str, meter: Meter) -> APIError:
        """Return the error that says how the generator `name` fails and what to do."""
        cost = meter.spending(self._cost_of_failures)
        took = f"{self._cost_of_failures.usage.calls} calls" + (f" and {cost}" if cost else "")
        what = "all that it began with failed for one reason"
        if self._proven:
            what = f"the last {self._failed_items} samples asked for failed"
        return APIError(
            f"{name}, {phase}: {what} ({self._last.rstrip('.')}), which took {took}: "
            "set the server right; or change `api`, try it with `pe probe`, and begin a new run."
        )


@dataclass
class Waits:
    """Shows in the progress bar and in `pe view` what the generator waits for."""

    api: Generator
    task: Task
    run: RunWriter
    _words: str = field(default="", init=False)

    def next_done(self, waiting: Iterable[Future[Stored]]) -> list[Future[Stored]]:
        """Wait until one or more of `waiting` are ready. Return the ready ones, in their order."""
        futures = list(waiting)
        ready = set[Future[Stored]]()
        while not ready:
            ready = wait(futures, EVERY, return_when=FIRST_COMPLETED).done
            self._show(self.api.describe_wait())
        return [future for future in futures if future in ready]

    def _show(self, words: str) -> None:
        if words != self._words:
            self._words = words
            self.run.set_waiting(words)
            self.task.wait(words)

    def __enter__(self) -> Self:
        self.run.set_waiting("")  # a run that was killed may have left words
        return self

    def __exit__(self, *_error: object) -> None:
        self._show("")


@dataclass(frozen=True)
class Dispatcher:
    """RANDOM_API and VARIATION_API over a whole population.

    Every answer is committed before it counts as done, so neither a finished population nor
    an answered chunk of an unfinished one is ever asked for again.
    """

    api: Generator
    run: RunWriter
    classes: tuple[str, ...]  # the public label names
    seed: int  # the recipe's seed
    attempts: int = 5  # how often an item may fail before the run stops
    # how often a refused item is asked for again before a variation keeps its parent, and a random
    # sample is drawn anew
    retries: int = 2
    progress: Progress = field(default_factory=Progress)
    meter: Meter = field(default_factory=Meter)
    # the modality and the shape that the generator's samples must have; None: any. A shape of one
    # number, a longest length, is not checked: the generator may choose it
    expected: tuple[type[Samples], Shape] | None = None
    # given a key of the recipe to raise (or ""), returns the command that resumes the run
    command: Callable[[str], str] = lambda key: "pe run RUN"

    def random(self, labels: Int32Array, variations: int = 0, degree: float = 1.0) -> Population:
        """Return S_0: a new sample for each of `labels`, int32 (n,), ascending.

        With k `variations`, each new sample is followed by k variations of it, of this `degree`.

        Raises:
            APIError: an item failed in every attempt, or was refused however often it was drawn
                anew.
        """
        if not variations:
            return self.draw("population/0", population_place(0), labels, "RANDOM_API")
        place = np.arange(len(labels)) - np.searchsorted(labels, labels)
        new = place % (variations + 1) == 0
        founders = self.draw("founders", FOUNDERS, labels[new], "RANDOM_API")
        work = self._variation_work("population/0", founders, np.cumsum(new) - 1, degree)
        return self._make(population_place(0), replace(work, survives=new), "VARIATION_API 0")

    def draw(
        self,
        phase: str,
        place: str,
        labels: Int32Array,
        description: str,
        alike: bool = False,
    ) -> Population:
        """Return new samples as a durable population in the run's folder `place`.

        With `alike`, all of them have one condition.
        """
        founders = np.full(len(labels), NO_PARENT, np.int64)
        return self._make(
            place,
            replace(self._work(phase, labels, founders), alike=alike),
            description,
        )

    def variations(
        self,
        t: int,
        population: Population,
        members: Members,
        degree: float,
        reuse: int = 0,
    ) -> Population:
        """Return S_t: a variation of each member's parent in S_{t-1}, or the parent if it is kept.

        The parent also takes the place of a variation that is always refused. With `reuse` = k, the
        lookahead's k variations of each candidate become its first k offspring; with 0, all are
        asked for. The lookahead's variations are deleted: with 0 at once, otherwise when S_t is
        durable.

        Raises:
            APIError: an item failed in every attempt.
        """
        place = population_place(t)
        ahead = self._lookahead_work(t, population, reuse, degree)
        offspring = self._find_finished(place)
        # A population that is there takes no request, and its lookahead may be gone.
        if offspring is None:
            work = self._variation_work(f"population/{t}", population, members.parents, degree, t)
            work = replace(
                work,
                explores=True,
                survives=members.survives if degree else work.survives,
            )
            if reuse:
                available = self._fulfil(ahead, f"lookahead {t}").has_sample
                work = replace(work, loan=lend(ahead.phase, available, reuse, members))
            else:
                self.forget(ahead.phase)
            offspring = self._make(
                place,
                work,
                f"VARIATION_API {t}" if degree else f"copies of the chosen {t}",
            )
        self.forget(ahead.phase)
        return offspring

    def vary(
        self,
        phase: str,
        place: str,
        population: Population,
        parents: Items,
        degree: float,
        t: int,
        description: str,
    ) -> Population:
        """Return variations of the members `parents`, as in iteration t, made durable in `place`.

        See `variations`.
        """
        return self._make(
            place,
            self._variation_work(phase, population, parents, degree, t),
            description,
        )

    def lookahead(self, t: int, population: Population, k: int, degree: float) -> ByChunk:
        """Yield k variations of every member, by chunk: (their parents, samples).

        Refused variations are left out.
        """
        return self._by_chunk(self._lookahead_work(t, population, k, degree), f"lookahead {t}")

    def vary_each(
        self,
        phase: str,
        population: Population,
        degree: float,
        t: int,
        description: str,
    ) -> ByChunk:
        """Yield one variation of every member, as in iteration t, by chunk.

        Refused variations are left out.
        """
        work = self._variation_work(phase, population, np.arange(len(population)), degree, t)
        return self._by_chunk(work, description)

    def forget(self, phase: str) -> None:
        """Delete the stored answers of a phase that are no longer needed."""
        self._answers.forget(phase)

    @property
    def _answers(self) -> Answers:
        return Answers(self.run, self.progress)

    def _work(self, phase: str, labels: Int32Array, parents: Items) -> Work:
        return Work(
            phase,
            labels,
            self.classes,
            self.seed,
            parents=parents,
            attempts=self.attempts,
            retries=self.retries,
        )

    def _variation_work(
        self,
        phase: str,
        population: Population,
        parents: Items,
        degree: float,
        t: int = 1,
    ) -> Work:
        work = self._work(phase, population.labels[parents], parents)
        copies = None if degree else np.ones(len(parents), np.bool_)  # nobody is asked
        return replace(work, source=population, degree=degree, iteration=t, survives=copies)

    def _lookahead_work(self, t: int, population: Population, k: int, degree: float) -> Work:
        """Return the lookahead's work, in which variation j of member i is item i·k + j."""
        return self._variation_work(
            f"lookahead/{t}",
            population,
            np.repeat(np.arange(len(population)), k),
            degree,
            t,
        )

    def _find_finished(self, place: str) -> Population | None:
        """Return the population in the run's folder `place`, or None if it is still to be made.

        A damaged one counts as still to be made if making it anew costs nothing and gives equal
        samples.
        """
        try:
            return self.run.population(place)
        except DamagedFile as damaged:
            if not (self.meter.price.free and self.api.capabilities.deterministic):
                raise
            self.progress.warn(f"{damaged} It is made anew, from the same seeds.")
            return None

    def _make(self, place: str, work: Work, description: str) -> Population:
        """Return the population of `work`.

        If it is not there yet, make it, store it, and delete the phase's chunks.
        """
        finished = self._find_finished(place)
        if finished is not None:
            return finished
        self._fulfil(work, description)
        population = self.run.add_population(place, work.labels, work.parents, self._columns(work))
        self._answers.forget(work.phase)
        if place == population_place(0):
            for sentence in suspicions("S_0", population.samples):
                self.progress.warn(sentence)
        return population

    def _columns(self, work: Work) -> Iterator[tuple[Items, dict[str, Array]]]:
        """Yield a finished phase's members: answered, lent by the lookahead, or copies."""
        missing = np.ones(len(work), dtype=bool)
        given = self._from_lookahead(work)
        for items, columns in chain(self._answers.read_answer(work.phase), given):
            missing[items] = False
            yield items, columns
        rows = np.flatnonzero(missing)
        if rows.size and work.source is not None:
            parents = work.source.take(work.parents[rows])
            yield rows, Population.columns(parents.samples, parents.conditions)

    def _from_lookahead(self, work: Work) -> Iterator[tuple[Items, dict[str, Array]]]:
        if work.loan is None:
            return
        for items, columns in self._answers.read_answer(work.loan.phase):
            children = work.loan.child[items]
            rows = np.flatnonzero(children != NOBODY)
            if rows.size:
                yield children[rows], {name: column[rows] for name, column in columns.items()}

    def _by_chunk(self, work: Work, description: str) -> ByChunk:
        """Yield the answers of a phase, (parents, samples), each as soon as it is committed."""
        standing = self._answers.standing(work.phase, len(work))
        with closing(self._ask_for(work, standing, description)) as answers:
            new = (self._answers.read(one.row) for one in answers)
            before = self._answers.read_answer(work.phase)
            for items, columns in chain(before, chain.from_iterable(new)):
                yield work.parents[items], parse_columns(columns)[0]

    def _fulfil(self, work: Work, description: str) -> ItemState:
        """Ask until every item of `work` is answered or given up, committing each chunk.

        Return the items' state.
        """
        standing = self._answers.standing(work.phase, len(work))
        for _ in self._ask_for(work, standing, description):
            pass
        return standing

    def _ask_for(self, work: Work, standing: ItemState, description: str) -> abc.Generator[Stored]:
        """Ask for all items that `standing` leaves open. Yield each answer once it is committed.

        A caller that stops before the end must close this iterator: answers to requests under way
        are kept then.
        """
        guard = StartupGuard(self._workers, proven=bool(standing.has_sample.any()))
        standing.has_sample[work.is_given] = True
        with self.progress.task(description, len(work)) as task:
            task.advance(int(standing.has_sample.sum()))
            while work.open_items(standing).size:
                try:
                    with self.meter.asking():
                        yield from self._ask_all(work, standing, task, guard)
                except APIError as stopped:
                    command = self.command(stopped.key if isinstance(stopped, LimitToRaise) else "")
                    there = f"{standing.has_sample.sum()} of {len(work)} samples of {work.phase}"
                    why = str(stopped).rstrip(".")
                    stopped.args = (f"{why}. {there} are there; `{command}` goes on.",)
                    raise
        self._check_given_up(work, standing)

    @property
    def _workers(self) -> int:
        concurrency = self.api.capabilities.concurrency
        return min(concurrency, self.meter.limits.max_concurrency or concurrency)

    def _ask_all(
        self,
        work: Work,
        standing: ItemState,
        task: Task,
        guard: StartupGuard,
    ) -> abc.Generator[Stored]:
        """Ask for the open items in chunks, and yield each answer once it is kept.

        An error is raised only when no request is under way.

        Each worker makes its answer's file durable; answers that are ready together share one
        journal transaction.
        """
        workers = self._workers
        waiting: dict[Future[Stored], Items] = {}
        chunks = work.chunks(
            work.open_items(standing),
            standing,
            self.api,
            self._answers.jobs(work.phase),
        )
        answers: list[Stored] = []
        error: Exception | GeneratorExit | None = None
        halt = Event()
        with (
            Waits(self.api, task, self.run) as waits,
            ThreadPoolExecutor(workers, "pe-api") as pool,
        ):
            while True:
                while error is None and len(waiting) < 2 * workers and not guard.holds:
                    items = next(chunks, None)
                    if items is None:
                        break
                    under_way = sum(map(len, waiting.values())) + len(items)
                    error = self.meter.refusal(
                        self.run.journal.totals(),
                        len(waiting) + 1,
                        under_way,
                    )
                    if error is None:
                        guard.start(len(items))
                        waiting[pool.submit(self._ask, work, items, standing, halt)] = items
                try:
                    if error is None:
                        yield from answers  # while others are asked for
                except GeneratorExit as closed:
                    error = closed
                if error is not None:
                    halt.set()
                if not waiting:
                    break
                answers = []
                for future in waits.next_done(waiting):
                    del waiting[future]
                    try:
                        answers.append(future.result())
                    except Exception as caught:
                        error = error or caught
                try:
                    self._keep(answers, standing, task)
                except Exception as caught:
                    error = error or caught
                guard.note(answers, work.source is not None)
                if guard.holds and not waiting:
                    error = error or guard.error(type(self.api).__name__, work.phase, self.meter)
        if isinstance(error, GeneratorExit):
            raise error
        if error is not None:
            raise self._translate(error) from error

    def _ask(self, work: Work, items: Items, standing: ItemState, halt: Event) -> Stored:
        """Ask for `items`, and make the answer's file durable.

        A waiting request ends if another fails or the run stops.
        """

        def check_stop() -> None:
            if halt.is_set() or self.meter.stop_reason() is not None:
                raise self.meter.stop_reason() or Interrupted("Another request has failed.")

        start = time.monotonic()
        job = self._answers.job_of(work.name_request(items, standing), items)
        job.check_stop = check_stop
        answer = work.ask(self.api, items, standing, job)
        self._check_form(answer.samples)
        return self._answers.store(work.phase, items, answer, time.monotonic() - start, job)

    def _check_form(self, samples: Samples) -> None:
        """Raise ContractError for samples of an undeclared modality or shape.

        This happens before they are stored.
        """
        if self.expected is None or not len(samples):
            return
        kind, shape = self.expected
        if not isinstance(samples, kind):
            came = samples.noun
            noun = kind.noun
        elif len(shape) > 1 and samples.shape != shape:
            came, noun = (
                f"{kind.noun} of {'×'.join(map(str, one))} ({kind.axes})"
                for one in (samples.shape, shape)
            )
        else:
            return
        raise ContractError(
            f"{type(self.api).__name__} made {came}, but {noun} are declared. Have it make these "
            "(by `image_size`, if it has that key), change its PluginInfo.shape, or change "
            "`private`."
        )

    def _keep(self, answers: list[Stored], standing: ItemState, task: Task) -> None:
        """Commit answers, and enter them in `standing` and `task`.

        Raises:
            APIError: an item failed in a way that no retry mends.
        """
        self._answers.commit(answers)
        for one in answers:
            standing.note(one.items, one.misses)
            task.advance(
                len(one.items) - len(one.misses),
                self.meter.spending(self.run.journal.totals()),
            )
        for miss in chain.from_iterable(one.misses for one in answers):
            if miss.outcome == "failed" and not miss.retryable:
                raise APIError(f"{type(self.api).__name__} cannot make a sample: {miss.reason}")

    def _translate(self, error: Exception) -> PEError:
        if isinstance(error, PEError):
            return error
        log.error("The adapter failed.", exc_info=error)
        return PluginError(
            f"The adapter {type(self.api).__name__} failed with {type(error).__name__}: {error} "
            "(the traceback is in confidential/log.txt)"
        )

    def _check_given_up(self, work: Work, standing: ItemState) -> None:
        """Raise APIError for an item without a sample, unless its parent stands in for it.

        It does for a refused variation, and for a rejected one. Only where all variations are
        rejected before votes are released, the run stops: a setting may be wrong for variations
        alone.
        """
        is_fatal = ~standing.has_sample & (work.has_failed(standing) | (work.source is None))
        rejected = np.flatnonzero(is_fatal & (standing.rejections > 0))
        reasons = self._answers.last_reasons(work.phase)
        has_parents = work.source is not None and (work.explores or standing.has_sample.any())
        if rejected.size and has_parents:
            # After a vote ε is spent, so the run goes on with the parents in their place.
            is_fatal[rejected] = False
            self.progress.warn(
                f"Samples of {work.phase} that failed in all attempts, so that their parents take "
                f"their place: {rejected.size} ({reasons[rejected[0]]})"
            )
        fatal = np.flatnonzero(is_fatal)
        if fatal.size:
            item = int(fatal[0])
            raise APIError(
                f"{type(self.api).__name__} gave no sample for item {item} of {work.phase} (label "
                f"'{self.classes[work.labels[item]]}') in {standing.tries(fatal[:1])[0]} attempts: "
                f"{reasons[item].rstrip('.')}. `{self.command('evolution.attempts')}` asks for it "
                "again."
            )
