"""A budget plan: how a run's ε is spread over its histograms, its class counts and all else.

Histograms take shares of μ² (constant noise: equal shares), class counts a share of ε; everything is
calibrated jointly, so that the whole meets the budget and no part is rounded twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pe.class_counts import class_counts_release
from pe.errors import PrivacyError
from pe.histogram import histogram_releases
from pe.privacy.accounting import epsilon
from pe.privacy.calibration import calibrate
from pe.privacy.ledger import Budget
from pe.privacy.release import Relation, Release


@dataclass(frozen=True)
class PlanSettings:
    """What a plan depends on; all of it public.

    Attributes:
        iterations: T ≥ 0 histograms.
        relation: the neighbouring relation.
        unit: the privacy unit.
        neighbors: q, candidates that each record votes for.
        weights: shares of μ² for the iterations; None: constant noise.
        class_counts: share of ε for the release of the class counts, in (0, 1); None: not released.
        fixed: releases whose noise is given already (DP-SGD, semantic queries).
    """

    iterations: int
    relation: Relation = Relation.ADD_REMOVE
    unit: str = "record"
    neighbors: int = 1
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


def _others(budget: Budget, settings: PlanSettings) -> list[Release]:
    if settings.class_counts is None:
        return list(settings.fixed)
    counts = class_counts_release(settings.class_counts, budget.epsilon, settings.relation, settings.unit)
    return [counts, *settings.fixed]


def _histograms(z: float, settings: PlanSettings, together: bool = False) -> list[Release]:
    """One by one; or, for the accountant, equal ones `together` as one release with a count."""
    releases = histogram_releases(
        z,
        1 if together else settings.iterations,
        relation=settings.relation,
        unit=settings.unit,
        neighbors=settings.neighbors,
        weights=settings.weights,
    )
    return [replace(release, count=settings.iterations) for release in releases] if together else releases


def noise_multiplier_for(budget: Budget, iterations: int, relation: Relation = Relation.ADD_REMOVE) -> float:
    """The least noise multiplier with which `iterations` ≥ 1 histograms meet `budget`, rounded up.

    Raises:
        PrivacyError: no iteration, or a budget that no noise meets.
    """
    settings = _count_release(iterations, relation)
    return calibrate(lambda z: _histograms(z, settings, together=True), budget)


def epsilon_for(
    noise_multiplier: float, iterations: int, delta: float, relation: Relation = Relation.ADD_REMOVE
) -> float:
    """ε of `iterations` ≥ 1 histograms with that noise multiplier, rounded up.

    Raises:
        PrivacyError: no iteration, or another number out of range.
    """
    return epsilon(_histograms(noise_multiplier, _count_release(iterations, relation), together=True), delta)


def _count_release(iterations: int, relation: Relation) -> PlanSettings:
    if iterations < 1:
        raise PrivacyError(f"There are {iterations} iterations, and each releases a histogram: give 1 or more.")
    return PlanSettings(iterations, relation)
