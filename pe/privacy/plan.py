"""A budget plan: how a run's ε is spread over its histograms, its class counts and all else.

Histograms take shares of μ² (constant noise: equal shares), class counts a share of ε; everything is
calibrated jointly, so that the whole meets the budget and no part is rounded twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pe.errors import PrivacyError
from pe.privacy.calibration import calibrate, histograms
from pe.privacy.ledger import Budget
from pe.privacy.noise import grid_for
from pe.privacy.release import Relation, Release

CLASS_COUNTS = "class_counts"


@dataclass(frozen=True)
class PlanSettings:
    """What a plan depends on; all of it public.

    Attributes:
        iterations: T ≥ 0 histograms.
        relation: the neighbouring relation.
        unit: the privacy unit.
        fractional: whether votes are fractions (q > 1, units larger than a record).
        weights: shares of μ² for the iterations; None: constant noise.
        class_counts: share of ε for the release of the class counts, in (0, 1); None: not released.
        fixed: releases whose noise is given already (DP-SGD, semantic queries).
    """

    iterations: int
    relation: Relation = Relation.ADD_REMOVE
    unit: str = "record"
    fractional: bool = False
    weights: tuple[float, ...] | None = None
    class_counts: float | None = None
    fixed: tuple[Release, ...] = ()


def plan(budget: Budget, settings: PlanSettings) -> list[Release]:
    """All releases of a run, with the least noise in the histograms that meets `budget`.

    Raises:
        PrivacyError: a setting out of range, or the other releases leave nothing for the histograms.
    """
    others = _others(budget, settings)
    if settings.iterations == 0:
        return others
    z = calibrate(lambda z: [*others, *_histograms(z, settings, together=settings.weights is None)], budget)
    return [*others, *_histograms(z, settings)]


def plan_with(noise_multiplier: float, settings: PlanSettings, budget: Budget) -> list[Release]:
    """All releases of a run whose histograms' noise multiplier is given; the ledger judges the total."""
    return [*_others(budget, settings), *_histograms(noise_multiplier, settings)]


def class_counts_release(budget: Budget, settings: PlanSettings) -> Release:
    """Discrete Laplace counts that alone are (share·ε)-DP.

    L1 sensitivity 1; 2 under replace_one (one class loses a record, another gains it). A user's counts
    are scaled to L1 norm ≤ 1, so that they are fractions.
    """
    share = settings.class_counts
    if share is None or not 0 < share < 1:
        raise PrivacyError(f"The class counts' share of epsilon lies between 0 and 1, not {share!r}.")
    sensitivity = 2.0 if settings.relation is Relation.REPLACE_ONE else 1.0
    z = 1 / (share * budget.epsilon)
    grid = grid_for(z, sensitivity, fractional=True) if settings.unit != "record" else 1
    return Release(CLASS_COUNTS, "discrete_laplace", sensitivity, z, settings.relation, settings.unit, grid=grid)


def _others(budget: Budget, settings: PlanSettings) -> list[Release]:
    counts = [] if settings.class_counts is None else [class_counts_release(budget, settings)]
    return [*counts, *settings.fixed]


def _histograms(z: float, settings: PlanSettings, together: bool = False) -> list[Release]:
    """One by one; or, for the accountant, equal ones `together` as one release with a count."""
    releases = histograms(
        z,
        1 if together else settings.iterations,
        relation=settings.relation,
        unit=settings.unit,
        fractional=settings.fractional,
        weights=settings.weights,
    )
    return [replace(release, count=settings.iterations) for release in releases] if together else releases
