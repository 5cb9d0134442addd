"""A pool of public samples: dealt out as new ones; as variations, the nearest ones of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pe.data.conditions import Conditions
from pe.data.samples import Samples
from pe.data.seeds import mix
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import Answer, Capabilities, RandomRequest, Seeds, VariationRequest

Indices = npt.NDArray[np.int64]
Distances = Callable[[Indices, Indices], npt.NDArray[np.integer]]
"""Places of parents and of others → how far apart they are, whole numbers ≥ 0, parents × others."""

BLOCK = 64  # parents compared with the pool at once


class Pool:
    """Which places of a pool serve each label; which of them new samples and variations get.

    An answer depends on each item's seed and condition alone.

    Args:
        count: of the pool.
        names: the label of each place; None: all serve every label.
        kind: the generator's, for messages.
        noun: of the samples, for messages.
    """

    def __init__(self, count: int, names: Sequence[str] | None, kind: str, noun: str) -> None:
        self._everyone = np.arange(count)
        self._members = None if names is None else _members(names)
        self._kind, self._noun = kind, noun

    def __len__(self) -> int:
        return len(self._everyone)

    @property
    def distinct(self) -> int:
        """The most different samples that a label has."""
        return len(self) if self._members is None else max(map(len, self._members.values()))

    def of_label(self, label: str) -> Indices:
        """The places that serve a label.

        Raises:
            RecipeError: there are none.
        """
        if self._members is None:
            return self._everyone
        if label not in self._members:
            known = ", ".join(f"'{name}'" for name in sorted(self._members)) or "none"
            raise RecipeError(f"The public pool has no {self._noun} of label '{label}'; its labels are {known}.")
        return self._members[label]

    def deal(self, labels: Sequence[str], seeds: Seeds) -> Conditions:
        """Places for new samples: of each label its own in random order, over again where they end.

        Raises:
            RecipeError: there are none of a label.
        """
        places = np.empty(len(labels), dtype=np.int64)
        for label, items in _by_label(labels):
            pool, rng = self.of_label(label), np.random.Generator(np.random.Philox(key=int(seeds[items[0]])))
            rounds = [rng.permutation(pool) for _ in range(-(-len(items) // len(pool)))]
            places[items] = np.concatenate(rounds)[: len(items)]
        return Conditions({"pool": places})

    def places(self, conditions: Conditions) -> Indices:
        """The places that samples were given.

        Raises:
            APIError: they carry none in this pool.
        """
        if "pool" not in conditions:
            raise APIError(f"The samples carry no 'pool': {self._kind} makes and varies only what it drew itself.")
        places = conditions["pool"].astype(np.int64)
        if places.size and not 0 <= places.min() <= places.max() < len(self):
            raise APIError(f"A sample's place lies outside the pool of {len(self)}: give the pool it was drawn from.")
        return places

    def vary(self, request: VariationRequest, distances: Distances) -> Indices:
        """For each parent, uniformly, itself or one of its ⌈degree·(m-1)⌉ nearest of the m that serve its label.

        Raises:
            APIError: the parents carry no places in this pool.
            RecipeError: there are none of a label.
        """
        parents = self.places(request.conditions)
        if request.degree == 0:
            return parents
        chosen = np.empty(len(request), dtype=np.int64)
        places = _uniforms(request.seeds, stream=2)
        for label, items in _by_label(request.labels):
            pool = self.of_label(label)
            near = 1 + int(np.ceil(request.degree * (len(pool) - 1)))
            ranks = np.floor(places[items] * near).astype(np.int64)
            for start in range(0, len(items), BLOCK):
                block = slice(start, start + BLOCK)
                chosen[items[block]] = _ranked(pool, parents[items[block]], ranks[block], distances)
        return chosen


class FromPool(ABC):
    """RANDOM_API and VARIATION_API over a pool, for a generator that has its samples and knows how far apart two are.

    Conditions: `pool`, int64 (n,): the sample's place in the pool.
    """

    _pool: Pool

    def __len__(self) -> int:
        """The number of samples in the pool."""
        return len(self._pool)

    @property
    def capabilities(self) -> Capabilities:
        """Any number at once, the degree obeyed exactly, always the same answer."""
        return Capabilities(max_chunk=1024)

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if the pool has no samples of a label."""
        for label in labels:
            self._pool.of_label(label)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """Places of the pool for new samples.

        Raises:
            RecipeError: the pool has no samples of a label.
        """
        return self._pool.deal(labels, seeds)

    def random_api(self, request: RandomRequest) -> Answer:
        """The samples that `draw_conditions` dealt.

        Raises:
            APIError: the request carries no places in this pool.
        """
        return self._answer(self._pool.places(request.conditions))

    def variation_api(self, request: VariationRequest) -> Answer:
        """A near neighbour of each parent; the degree says how many count as near.

        Raises:
            APIError: the parents carry no places in this pool.
            RecipeError: the pool has no samples of a label.
        """
        return self._answer(self._pool.vary(request, self._distances))

    @abstractmethod
    def _distances(self, parents: Indices, others: Indices) -> npt.NDArray[np.integer]:
        """See `Distances`."""

    @abstractmethod
    def _samples(self, places: Indices) -> Samples:
        """The samples at these places."""

    def _answer(self, places: Indices) -> Answer:
        return Answer(self._samples(places), Conditions({"pool": places}))


def _ranked(pool: Indices, parents: Indices, ranks: Indices, distances: Distances) -> Indices:
    """For each parent the member of `pool` of that rank in nearness: 0 is itself, ties go to the first."""
    keys = distances(parents, pool).astype(np.int64) * len(pool) + np.arange(len(pool))
    keys[parents[:, None] == pool[None, :]] = -1
    return np.array([pool[np.argpartition(key, rank)[rank]] for key, rank in zip(keys, ranks, strict=True)])


def _members(names: Sequence[str]) -> dict[str, Indices]:
    """Label → its places in the pool, ascending."""
    unique, inverse = np.unique(np.array(names, dtype=np.str_), return_inverse=True)
    return {str(name): np.flatnonzero(inverse == k) for k, name in enumerate(unique)}


def _by_label(labels: Sequence[str]) -> list[tuple[str, Indices]]:
    """Each label and the items that have it."""
    return list(_members(labels).items())


def _uniforms(seeds: Seeds, *, stream: int) -> npt.NDArray[np.float64]:
    """float64 (n,) in [0, 1): one number per seed, by SplitMix64's mixing (Steele, Lea and Flood, 2014)."""
    z = np.asarray(seeds, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15 * stream % 2**64)
    return (mix(z) >> np.uint64(11)).astype(np.float64) * 2.0**-53
