"""What a training costs, and how much noise a budget asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adapters.trained.dp_sgd.hyperparameters import DPSGD, GRID
from pe.errors import PrivacyError
from pe.privacy.calibration import calibrate
from pe.privacy.release import Poisson, Relation, Release

if TYPE_CHECKING:
    from pe.privacy.ledger import Budget


def releases(settings: DPSGD, name: str, relation: Relation, unit: str = "record") -> tuple[Release, ...]:
    """One release per block, in order, named `name`/1, `name`/2 and so on.

    Each declares the Poisson-sampled discrete Gaussian that `Training.block` does `count` times, in units of the clip.
    Under replace-one a record's gradient goes and another comes, so the sensitivity is 2, and the multiplier, which
    counts in sensitivities, σ/2.

    Raises:
        PrivacyError: a unit larger than a record, or noise that protects nothing.
    """
    if unit != "record":
        raise PrivacyError(
            f"DP-SGD clips the gradient of a record, so it protects no '{unit}': take private.privacy_unit: record."
        )
    moved = 2 if Relation(relation) is Relation.REPLACE_ONE else 1
    sampling = Poisson(settings.rate) if settings.rate < 1 else None
    return tuple(
        Release(
            name=f"{name}/{block + 1}",
            mechanism="discrete_gaussian",
            sensitivity=moved,
            noise_multiplier=settings.settled / moved,
            relation=relation,
            unit=unit,
            sampling=sampling,
            count=settings.steps_from(block * settings.block),
            grid=GRID,
        )
        for block in range(settings.blocks)
    )


def calibrated(settings: DPSGD, budget: Budget, relation: Relation, others: Sequence[Release] = ()) -> DPSGD:
    """`settings` with the least noise for which the training and `others` meet `budget`.

    Args:
        settings: the rest of the training; its own noise_multiplier is not looked at.
        budget: for everything that the ledger holds.
        relation: of the ledger.
        others: what else is, or will be, on the ledger.

    Raises:
        PrivacyError: the others take all of the budget, or what they leave is too little for one useful step.
    """
    found = settings.with_noise(_least(settings, budget, relation, others))
    if found.settled > settings.expected_batch:
        _check_single_step(settings, budget, relation, others)
    return found


def _least(settings: DPSGD, budget: Budget, relation: Relation, others: Sequence[Release]) -> float:
    def all_of(noise_multiplier: float) -> list[Release]:
        return [*others, *releases(settings.with_noise(noise_multiplier), "fit", relation)]

    return calibrate(all_of, budget)


def _check_single_step(settings: DPSGD, budget: Budget, relation: Relation, others: Sequence[Release]) -> None:
    """Refuse when, in one step alone, the noise in any direction exceeds what all its records could add there."""
    single = _least(settings.model_copy(update={"steps": 1}), budget, relation, others)
    if single > settings.expected_batch:
        raise PrivacyError(
            f"What a training has of its ε = {budget.epsilon:g} asks for a noise multiplier of {single:,.1f} for one "
            f"single step, which expects {settings.expected_batch} records: the noise drowns even what all of them "
            "agree on; raise privacy.epsilon, or the training's share of it."
        )
