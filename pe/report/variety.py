"""How different the samples of a population are: equal ones are counted, and nearly equal ones. All of it is public."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf, isqrt

import numpy as np

from pe.data.population import Population
from pe.data.samples import Samples, distinct
from pe.data.seeds import generator
from pe.steps import Step

NEAR = 0.2
"""Two samples are nearly equal if they are no further apart than this share of the usual distance in S_0."""

PAIRS = 1000
"""Random pairs of one label whose median distance is the usual one."""

MOST, WORK = 1000, 1e8
"""Samples of a label that are compared with each other, at most; and bytes times pairs of a population, at most."""

COLLAPSED, FEW = 0.2, 10
"""Share of the samples compared that differ clearly, below which a population has collapsed; of one that holds copies
of what votes chose, as many of a label are enough."""


@dataclass(frozen=True)
class Variety:
    """How different samples of one label are; sums are of several labels.

    Attributes:
        samples: their number.
        different: of them, those that equal no other, and one of each set of equal ones.
        compared: samples drawn at random among them, each of which was compared with each.
        apart: of these, those that differ clearly: in their order, none is nearly equal to one that was kept before.
    """

    samples: int
    different: int
    compared: int
    apart: int

    def __add__(self, other: Variety) -> Variety:
        """Both labels together; samples of different labels are not compared."""
        return Variety(
            self.samples + other.samples,
            self.different + other.different,
            self.compared + other.compared,
            self.apart + other.apart,
        )


def varieties(populations: Sequence[Population], classes: Sequence[str], seed: int) -> list[dict[str, Variety]]:
    """The variety of each of S_0 … S_t: label → its own, labels without samples left out.

    Guarantee: post-processing of the populations.

    Args:
        populations: S_0 … S_t.
        classes: the label names.
        seed: of the random choice.
    """
    if not populations:
        return []
    near = NEAR * usual_distance(populations[0], seed)
    return [_by_label(population, classes, near, seed) for population in populations]


def whole(by_label: dict[str, Variety]) -> Variety:
    """All labels together."""
    return reduce(Variety.__add__, by_label.values())


def usual_distance(population: Population, seed: int) -> float:
    """The median distance between random pairs of members of one label, in the modality's unit; 0 without a pair."""
    rng = generator(seed, "variety/pairs")
    one = rng.integers(len(population), size=PAIRS)
    other = np.empty_like(one)
    for label in np.unique(population.labels[one]):
        members, places = np.flatnonzero(population.labels == label), np.flatnonzero(population.labels[one] == label)
        other[places] = rng.choice(members, len(places))
    apart = one != other
    if not apart.any():
        return 0.0
    return float(np.median(population.samples.take(one[apart]).distances(population.samples.take(other[apart]))))


def collapse_warnings(t: int, found: dict[str, Variety], step: Step | None) -> list[str]:
    """A sentence on an S_t that has collapsed; none if it has not.

    Args:
        t: its number.
        found: by label.
        step: the iteration that made it; None for S_0.
    """
    every = whole(found)
    copies = step is not None and not step.degree
    if every.apart >= min(COLLAPSED * every.compared, FEW * len(found) if copies else inf):
        return []
    ways = ["a generator that varies more"] if step is None else ["more candidates"]
    ways += ["a lower threshold"] if step is not None and step.threshold > 0 else []
    ways += ["a higher last degree"] if step is not None and step.degree < 1 else []
    more = " or ".join(filter(None, (", ".join(ways[:-1]), ways[-1])))
    return [
        f"S_{t} has collapsed: of {every.compared:,} samples that were compared, only {every.apart:,} differ clearly "
        f"from the others of their label: take {more}."
    ]


def _by_label(population: Population, classes: Sequence[str], near: float, seed: int) -> dict[str, Variety]:
    labels = np.unique(population.labels)
    size = population.samples.array[:1].nbytes or 1
    compared = min(MOST, max(2, isqrt(int(2 * WORK / (size * len(labels))))))
    rng, found = generator(seed, "variety/compared"), {}
    for label in labels:
        members = np.flatnonzero(population.labels == label)
        chosen = np.sort(rng.permutation(members)[:compared])
        different = len(distinct(population.samples.take(members))[0])
        apart = _apart(population.samples.take(chosen), near)
        found[classes[label]] = Variety(len(members), different, len(chosen), apart)
    return found


def _apart(samples: Samples, near: float) -> int:
    """How many samples are kept if each is left out that is nearly equal to one kept before."""
    count = len(samples)
    close, places = np.zeros((count, count), bool), np.arange(count)
    for shift in range(1, count // 2 + 1):  # each pair once
        others = (places + shift) % count
        within = samples.distances(samples.take(others)) <= near
        close[places[within], others[within]] = close[others[within], places[within]] = True
    kept = np.zeros(count, bool)
    for place in range(count):
        kept[place] = not close[place][kept].any()
    return int(kept.sum())
