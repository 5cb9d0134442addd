"""A phase of API work: its items, the requests that ask for them, and the check of answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import zip_longest

import numpy as np

from pe.data.arrays import BoolArray, Int32Array
from pe.data.population import Members, Population
from pe.data.samples import DRAWN, Conditions, item_seeds
from pe.dispatch.answers import Items, ItemState
from pe.errors import ContractError
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    Generator,
    JobNote,
    RandomRequest,
    Seeds,
    Usage,
    VariationRequest,
)

NOBODY = -1


@dataclass(frozen=True, eq=False)
class ReusedVariations:
    """The lookahead's m variations, lent to the next population as offspring.

    Variation i becomes item child[i], int64 (m,), or none if that is NOBODY.
    """

    phase: str
    child: Items

    @property
    def children(self) -> Items:
        """The items that variations become, which the generator is not asked for."""
        there: Items = self.child[self.child != NOBODY]
        return there


def lend(phase: str, available: BoolArray, k: int, members: Members) -> ReusedVariations:
    """Lend the lookahead's variations: each parent's r-th offspring is its r-th variation.

    If a parent has more offspring than variations, the last of its offspring get none.

    Args:
        phase: the lookahead's phase.
        available: bool (n·k,), True if variation j of candidate i, at i·k + j, is there.
        k: variations per candidate.
        members: the parent of each item; an item that is kept gets no variation.
    """
    items = np.flatnonzero(~members.survives)
    parents = members.parents[items]
    variations = np.flatnonzero(available)
    owners = variations // k
    offspring = np.argsort(parents, kind="stable")
    first = np.searchsorted(parents[offspring], owners)  # the place of each owner's first offspring
    counts = np.bincount(parents, minlength=len(available) // k)[owners]
    rank = np.arange(len(variations)) - np.searchsorted(owners, owners)
    is_lent = rank < counts
    child = np.full(len(available), NOBODY, dtype=np.int64)
    child[variations[is_lent]] = items[offspring[(first + rank)[is_lent]]]
    return ReusedVariations(phase, child)


@dataclass(frozen=True, eq=False)
class Work:
    """n items wanted from a generator."""

    phase: str  # a name unique in the run, `population/3` or `lookahead/3`; it seeds the items
    labels: Int32Array  # int32 (n,), index into `classes`, the public label names
    classes: tuple[str, ...]
    seed: int
    parents: Items  # int64 (n,), the member that each item varies; NO_PARENT for RANDOM_API
    source: Population | None = None  # the population whose members are varied; None for RANDOM_API
    degree: float = 1.0  # variation in [0, 1]
    iteration: int = 1  # t, the iteration for which variations are asked
    attempts: int = 5  # how often an item may fail
    # how often an item that is refused is asked for again with another seed; then a variation is
    # given up, and a random sample is drawn anew, with a new condition
    retries: int = 2
    explores: bool = False  # True for offspring; see `VariationRequest`
    # bool (n,), the items that are unchanged copies of their parents; None: no item is
    survives: BoolArray | None = None
    loan: ReusedVariations | None = None  # the lookahead's variations that become some of the items
    alike: bool = False  # all new samples get the first one's condition
    _draws: dict[int, Conditions] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def has_failed(self, standing: ItemState) -> BoolArray:
        """Return the items that have failed in every attempt, bool (n,)."""
        mask: BoolArray = standing.failures - standing.earlier[1] >= self.attempts
        return mask

    def open_items(self, standing: ItemState) -> Items:
        """Return the items still to be asked for."""
        if self.source is not None:
            given_up = standing.refusals > self.retries
        else:
            given_up = standing.refusals - standing.earlier[0] >= (self.retries + 1) * self.attempts
        return np.flatnonzero(~standing.has_sample & ~self.has_failed(standing) & ~given_up)

    @property
    def is_given(self) -> BoolArray:
        """Items that the generator is not asked for, bool (n,): kept, or lent by the lookahead."""
        mask = np.zeros(len(self), np.bool_) if self.survives is None else self.survives.copy()
        if self.loan is not None:
            mask[self.loan.children] = True
        return mask

    def chunks(
        self,
        open_items: Items,
        standing: ItemState,
        api: Generator,
        jobs: Mapping[str, Items] | None = None,
    ) -> Iterator[Items]:
        """Yield `open_items`, cut into requests that the generator can take.

        An item that was never asked for always comes in the same request, wherever the run was
        broken off; items asked for in vain come after these, packed together. First come the
        requests of `jobs` (name → items), unchanged: a run that was broken off has noted the host's
        jobs for them.
        """
        for request, items in (jobs or {}).items():
            is_open = items.size and np.isin(items, open_items).all()
            if is_open and self.name_request(items, standing) == request:
                yield items
                open_items = np.setdiff1d(open_items, items)
        again = standing.tries(open_items) > 0
        first = np.zeros(len(self), dtype=bool)
        first[open_items[~again]] = True
        if first.any():
            for chunk in self._cut(np.flatnonzero(~self.is_given), ItemState.of(len(self)), api):
                if first[chunk].any():
                    yield chunk[first[chunk]]
        for chunk in self._cut(open_items[again], standing, api):
            # One item may be at fault for a request of several that was rejected, so they are asked
            # for one by one.
            is_whole = api.capabilities.one_by_one or not standing.rejections[chunk].any()
            yield from [chunk] if is_whole else np.split(chunk, len(chunk))

    def _cut(self, items: Items, standing: ItemState, api: Generator) -> Iterator[Items]:
        """Yield `items`, cut into requests.

        Several generators get them in turn, so that none waits for another.
        """
        if items.size:
            conditions = self._conditions(api, items, standing)
            ways = api.ways_of(conditions, self._seeds(items, standing), self.explores)
            of_each = [
                self._cut_for(can, items[ways == way], standing, api)
                for way, can in enumerate(api.ways)
            ]
            for turn in zip_longest(*of_each):
                yield from (chunk for chunk in turn if chunk is not None)

    def _cut_for(
        self,
        can: Capabilities,
        items: Items,
        standing: ItemState,
        api: Generator,
    ) -> Iterator[Items]:
        for group in self._groups(can.shares, items, standing, api):
            for start in range(0, len(group), can.max_chunk):
                yield group[start : start + can.max_chunk]

    def _groups(
        self,
        shares: str,
        items: Items,
        standing: ItemState,
        api: Generator,
    ) -> list[Items]:
        """Split `items` by what the items of a request must share."""
        if shares == "nothing" or not items.size:
            return [items]
        if self.source is not None and shares == "parent":
            keys = self.parents[items]
        else:
            keys = _row_keys(self._conditions(api, items, standing), self.labels[items])
        order = np.argsort(keys, kind="stable")
        boundaries = np.flatnonzero(np.diff(keys[order])) + 1
        return np.split(items[order], boundaries)

    def _conditions(self, api: Generator, items: Items, standing: ItemState) -> Conditions:
        """Return the parents' conditions without DRAWN, or for new samples those that are drawn.

        Conditions are drawn anew after `retries` refusals, and after each rejection.
        """
        if self.source is not None:
            columns = dict(self.source.conditions)
            columns.pop(DRAWN, None)
            return Conditions(columns).take(self.parents[items])
        draws = standing.refusals[items] // (self.retries + 1) + standing.rejections[items]
        rows = {draw: np.flatnonzero(draws == draw) for draw in np.unique(draws).tolist()}
        parts = [self._whole_draw(api, draw).take(items[places]) for draw, places in rows.items()]
        order = np.argsort(np.concatenate(list(rows.values())), kind="stable")
        return Conditions.concatenate(parts).take(order)

    def _whole_draw(self, api: Generator, draw: int) -> Conditions:
        """Return the conditions of all n items in the draw of this number, from 0 on."""
        if draw not in self._draws:
            items = np.arange(len(self))
            tries = np.full(len(self), draw)
            seeds = item_seeds(self.seed, f"{self.phase}/condition", items, tries)
            conditions = draw_conditions(api, self._names(items), seeds)
            self._draws[draw] = conditions.take(np.zeros_like(items)) if self.alike else conditions
        return self._draws[draw]

    def _names(self, items: Items) -> tuple[str, ...]:
        return tuple(self.classes[label] for label in self.labels[items])

    def _seeds(self, items: Items, standing: ItemState) -> Seeds:
        """Return the seeds of the next try of each of `items`."""
        return item_seeds(self.seed, self.phase, items, standing.tries(items))

    def name_request(self, items: Items, standing: ItemState) -> str:
        """Return the unique name of the next request for `items`.

        After a kill that request has this name again.
        """
        return f"{self.phase} {sha256(self._seeds(items, standing).tobytes()).hexdigest()[:32]}"

    def ask(
        self,
        api: Generator,
        items: Items,
        standing: ItemState,
        job: JobNote | None = None,
    ) -> Answer:
        """Ask the generator for `items`, each with the seed of its next try.

        `job` keeps a note of the host's job. Without it, no note is kept.
        """
        seeds = self._seeds(items, standing)
        job = job or JobNote()
        labels = self._names(items)
        name = type(api).__name__
        if self.source is None:
            conditions = self._conditions(api, items, standing)
            answer = api.random_api(RandomRequest(labels, seeds, conditions, job))
            return _with_conditions(
                check_answer(f"{name}.random_api", answer, len(items)),
                conditions,
            )
        parents = self.source.take(self.parents[items])
        request = VariationRequest(
            parents.samples,
            labels,
            parents.conditions,
            seeds,
            self.degree,
            iteration=self.iteration,
            explores=self.explores,
            job=job,
        )
        answer = check_answer(f"{name}.variation_api", api.variation_api(request), len(items))
        return _with_conditions(answer, parents.conditions)


def draw_conditions(api: Generator, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
    """Return the conditions that the generator draws, a row for each label and its seed."""
    conditions = api.draw_conditions(labels, seeds)
    if not isinstance(conditions, Conditions) or conditions.rows not in (None, len(labels)):
        where = f"{type(api).__name__}.draw_conditions"
        raise ContractError(
            f"{where} was asked for {len(labels)} rows: return pe.Conditions with one row per seed."
        )
    return conditions


def check_answer(where: str, answer: object, count: int) -> Answer:
    """Return `answer` if it is a whole answer to `count` items of the method `where`.

    Raises:
        ContractError: it is not.
    """
    # Whatever a third party's generator returns, the run ends in a sentence for its author.
    if not isinstance(answer, Answer):
        raise ContractError(f"{where} returned {type(answer).__name__}: return pe.Answer(samples).")
    if not hasattr(answer.samples, "kind"):
        kind = type(answer.samples).__name__
        raise ContractError(
            f"{where} returned a {kind} of samples: return pe.Answer(pe.Images(pixels)), or "
            "pe.Texts."
        )
    number = len(answer.samples)
    if number + len(answer.missing) != count or not all(0 <= i < count for i in answer.missing):
        raise ContractError(
            f"{where} was asked for {count} samples and returned {number} with "
            f"{len(answer.missing)} missing: return one per item and name the others in "
            "Answer.missing."
        )
    if not isinstance(answer.usage, Usage | None):
        raise ContractError(
            f"{where} returned a usage that is {type(answer.usage).__name__}: return pe.Usage."
        )
    if answer.conditions.rows not in (None, number):
        raise ContractError(
            f"{where} returned {number} samples with {answer.conditions.rows} rows of conditions: "
            "return one row for each sample."
        )
    return answer


def _with_conditions(answer: Answer, conditions: Conditions) -> Answer:
    """Return `answer` with the conditions of its request where it brings none."""
    if answer.conditions or not conditions:
        return answer
    rows = [i for i in range(conditions.rows or 0) if i not in answer.missing]
    return Answer(answer.samples, conditions.take(rows), answer.missing, answer.usage)


def _row_keys(conditions: Conditions, labels: Int32Array) -> Items:
    """Return a number for each item, int64 (n,): equal for items of equal label and condition."""
    columns = (
        np.unique(column, axis=0, return_inverse=True)[1].reshape(-1)
        for column in conditions.values()
    )
    return np.unique(np.stack([labels, *columns]), axis=1, return_inverse=True)[1].reshape(-1)
