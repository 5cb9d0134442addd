"""The usefulness that a run can expect, from runs with as many votes beside the noise.

docs/will-it-work.md explains it; the numbers are those of benchmarks/results/usefulness.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log

import numpy as np

from pe.planning.choice import Signal, records_in_words, votes_cast, whole_noise
from pe.plugins.protocols import PluginInfo
from pe.privacy.accounting import epsilon
from pe.recipe.schema import Recipe
from pe.steps import Plan

GOOD = 7.0
"""Usefulness from which data are good enough to share, of 10."""
MOST_EPSILON = 10.0
"""The largest ε that was measured."""

Rows = tuple[tuple[float, float, float, float], ...]


@dataclass(frozen=True)
class Measured:
    """Usefulness, of 10, of runs over some sets, by a label's votes over the noise.

    The noise is that of the whole budget.

    Attributes:
        sets: their names.
        rows: (votes over noise, first quartile, median, third quartile), in rising order.
    """

    sets: str
    rows: Rows

    def at(self, ratio: float) -> list[float]:
        """Return the quartiles at a ratio, by interpolation over its logarithm.

        Beyond the rows the nearest one.
        """
        ratios, *quartiles = zip(*self.rows, strict=True)
        return [float(np.interp(log(ratio), np.log(ratios), each)) for each in quartiles]

    def ratio_of(self, usefulness: float) -> float:
        """Return the least ratio whose median reaches a usefulness. Infinite if none does."""
        ratios, _, medians, _ = zip(*self.rows, strict=True)
        highest = np.maximum.accumulate(medians)
        return (
            exp(np.interp(usefulness, highest, np.log(ratios)))
            if highest[-1] >= usefulness
            else inf
        )


POOL = Measured("digits, pictures and newswire", (
    (1.59, 0.0, 0.0, 0.0), (3.25, 0.0, 0.0, 0.0), (7.13, 0.5, 2.8, 3.9), (14.6, 4.2, 5.3, 6.2),
    (26.3, 6.4, 7.0, 7.5), (50.2, 7.5, 8.2, 8.9), (110, 8.4, 8.8, 9.3), (226, 8.2, 8.7, 9.4),
    (439, 8.3, 8.6, 9.0), (966, 8.5, 8.9, 9.0),
))  # fmt: skip
DRAWN = Measured("drawn digits", (
    (3.19, 0.0, 0.0, 0.1), (7.64, 0.0, 0.0, 0.8), (16.2, 0.0, 1.6, 2.8), (25.5, 1.7, 2.6, 3.3),
    (49.8, 5.7, 6.1, 6.9), (96.3, 6.5, 7.1, 7.1), (217, 7.2, 7.4, 7.5), (490, 7.5, 7.7, 8.0),
))  # fmt: skip
OWN_LABELS = (
    "Votes over a pool that knows the labels brought nothing that its own labels do not bring "
    "without a private record (measured on pictures: docs/will-it-work.md)."
)


def expect(
    recipe: Recipe,
    plan: Plan,
    signals: Sequence[Signal],
    info: PluginInfo,
    spent: float,
) -> str:
    """Say what usefulness runs like this one had, and what good data took.

    The sentence is empty if nothing like this run was measured.

    `info` is the generator's, `spent` the ε of all releases. A fitted generator, one that neither
    is a pool nor knows labels, a single label, and votes without noise were not measured.
    """
    noise = whole_noise(signals)
    private = recipe.private
    labels = len(plan.classes)
    is_pool = info.distinct is not None
    if (
        plan.fit
        or not noise
        or labels < 2
        or private.declared_size is None
        or not (is_pool or info.by_label)
    ):
        return ""
    # A pool that knows the labels has good samples of each label without a vote.
    if is_pool and info.by_label:
        return OWN_LABELS
    measured = POOL if is_pool else DRAWN
    ratio = votes_cast(private.declared_size, private.declared_units, 1) / labels / noise
    here = f"ε = {spent:.2g} with {private.declared_size:,} records of {labels} labels"
    start = f"At {here}, runs"
    if not measured.rows[0][0] <= ratio <= measured.rows[-1][0]:
        end = "most" if ratio > measured.rows[0][0] else "fewest"
        start = f"{here} is beyond what was measured: at the {end} votes, runs"
    low, middle, high = (f"{round(2 * value) / 2:g}" for value in measured.at(ratio))
    sentence = (
        f"{start} of `evolution: auto` on {measured.sets} reached about {middle} of 10 between the "
        f"best trivial control and the private records ({low} to {high} in half of them)"
    )
    if 1 < (factor := measured.ratio_of(GOOD) / ratio) < inf:
        releases = [
            replace(one, noise_multiplier=one.noise_multiplier / factor) for one in plan.releases
        ]
        enough = epsilon(releases, recipe.privacy.delta, quick=True)
        words = [
            *([f"ε = {enough:.2g}"] if enough <= MOST_EPSILON else []),
            records_in_words(private, factor),
        ]
        sentence += f"; {GOOD:g} of 10 took the votes that {' or '.join(words)} would give"
    return f"{sentence}. How this was measured, and its limits: docs/will-it-work.md."
