"""Forecast of what a run brings, from runs over other data sets.

Everything here is public. docs/will-it-work.md explains it; benchmarks/judgements.py made the runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import exp, log, sqrt

import numpy as np

MEASURED = "judgements.jsonl"
"""The file of the runs that were judged, beside this module."""
LEAST_SETS = 3
"""Data sets of a kind of generator from which a forecast is made."""
NEARBY = 0.35
"""Standard deviation, in the logarithm of votes over noise, of the weight of a set's runs."""
FAR = 1.0
"""Most distance, in the same logarithm, of the nearest run of a set that counts."""

FOUR_IN_FIVE = 0.8
"""Share of other data sets that an interval is made to hold."""

POOL = "pool"
"""The kind of all pools whose samples have no labels."""


@dataclass(frozen=True)
class Judged:
    """A run that was judged."""

    data: str  # the data set
    kind: str  # POOL, or the generator's kind in the recipe
    measure: str  # of the scale: AUC or mean recall
    votes: float  # of a label over the noise of one histogram with the whole budget, > 0
    share: float  # of the possible gain over the un-evolved samples, or over a guess; in [0, 1]


@dataclass(frozen=True)
class Interval:
    """A forecast of the share of the possible gain, in [0, 1]."""

    low: float
    high: float
    sets: int  # data sets that it comes from


@cache
def measured() -> tuple[Judged, ...]:
    """Return the runs that come with the package."""
    lines = files(__package__).joinpath(MEASURED).read_text(encoding="utf-8").splitlines()
    return tuple(Judged(**json.loads(line)["judged"]) for line in lines)


def expected_share(
    runs: Sequence[Judged], kind: str, measure: str, votes: float
) -> Interval | None:
    """Return the share of the possible gain that other data sets reached, at FOUR_IN_FIVE.

    mean ± t·s·√(1 + 1/n) over n data sets, each by its runs with about as many votes. None: fewer
    than LEAST_SETS have such runs.

    Args:
        runs: what was measured.
        kind: see `Judged`.
        measure: see `Judged`.
        votes: see `Judged`.
    """
    from scipy.stats import t

    shares = []
    own = [run for run in runs if (run.kind, run.measure) == (kind, measure)]
    for data in sorted({run.data for run in own}):
        near = [(log(run.votes / votes), run.share) for run in own if run.data == data]
        if min(abs(distance) for distance, _ in near) > FAR:
            continue
        # A small weight far away, so that a gap between two runs is bridged by both.
        weights = [exp(-((distance / NEARBY) ** 2) / 2) + 1e-6 for distance, _ in near]
        shares.append(float(np.average([share for _, share in near], weights=weights)))
    count = len(shares)
    if count < LEAST_SETS:
        return None
    mean = float(np.mean(shares))
    reach = float(
        t.ppf((1 + FOUR_IN_FIVE) / 2, count - 1) * np.std(shares, ddof=1) * sqrt(1 + 1 / count)
    )
    return Interval(max(mean - reach, 0.0), min(mean + reach, 1.0), count)
