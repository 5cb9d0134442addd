"""Which of several generators the private records preferred: post-processing of the released votes, at no further ε."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pe.data.conditions import GENERATOR
from pe.data.population import Population
from pe.report.charts import Line
from pe.report.diagnostics import Generation


@dataclass(frozen=True)
class Fared:
    """A generator at iteration t.

    Attributes:
        t: the iteration that votes for S_t−1; one more than the last for S_T, for which none does.
        name: of the generator.
        made: share of S_t−1's samples that it made, in [0, 1].
        votes: share of the noisy votes for them, which noise may put outside of [0, 1]; None: there are none, or noise
            leaves no sum of them above 0.
        noise: standard deviation of that share by the noise alone, the sum of all votes taken as large; None: likewise.
    """

    t: int
    name: str
    made: float
    votes: float | None = None
    noise: float | None = None


def fared(populations: Sequence[Population], found: Sequence[Generation]) -> list[Fared]:
    """Each generator at each iteration, and in the last population; nothing where samples do not say who made them."""
    if not all(GENERATOR in population.conditions for population in populations):
        return []
    makers = [np.asarray(population.conditions[GENERATOR]) for population in populations]
    told = []
    for t, made in enumerate(makers, 1):
        one = found[t - 1] if t <= len(found) else None
        for name in np.unique(np.concatenate(makers)).tolist():
            told.append(_fared(t, name, made == name, one))
    return told


def _fared(t: int, name: str, own: np.ndarray[tuple[int], np.dtype[np.bool_]], one: Generation | None) -> Fared:
    made, everything = float(own.mean()), 0.0 if one is None else float(one.votes.sum())
    if one is None or everything <= 0:
        return Fared(t, name, made)
    share, count = float(one.votes[own].sum()) / everything, int(own.sum())
    spread = count * (1 - share) ** 2 + (len(own) - count) * share**2  # of V_g / V to first order, over σ²
    return Fared(t, name, made, share, one.sigma * spread**0.5 / everything)


def lines_of(told: Sequence[Fared]) -> list[Line]:
    """Each generator's share of S_0 …, in per cent."""
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for one in told:
        xs, ys = lines.setdefault(one.name, ([], []))
        xs.append(one.t - 1)
        ys.append(100 * one.made)
    return [(name, xs, ys) for name, (xs, ys) in lines.items()]
