"""The noise of the fine-tuning, found once per process: where records are sampled, it takes many seconds."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from adapters.trained.diffusion.settings import FineTuning
from adapters.trained.dp_sgd import DPSGD, calibrated, releases
from pe.privacy.ledger import Budget
from pe.privacy.release import Relation, Release
from pe.trainer import FIT, FitTerms

NAME = f"{FIT}training"


def settled(training: FineTuning, terms: FitTerms, others: tuple[Release, ...]) -> DPSGD:
    """The fine-tuning with the least noise for which it and `others` meet the fit's budget.

    Raises:
        RecipeError: a setting out of range.
        PrivacyError: too little is left for one useful step, or the unit is larger than a record.
    """
    open_ = training.dp_sgd(terms.declared_size)
    blocks_of(replace(open_, noise_multiplier=1.0), terms)  # a unit that it cannot protect, before the long search
    return _calibrated(open_, terms.budget, Relation(terms.relation), others, training.spare_blocks)


def blocks_of(settings: DPSGD, terms: FitTerms) -> tuple[Release, ...]:
    """The release of each block of steps, in order."""
    return releases(settings, NAME, terms.relation, terms.unit)


@lru_cache(maxsize=64)
def _calibrated(settings: DPSGD, budget: Budget, relation: Relation, others: tuple[Release, ...], spare: int) -> DPSGD:
    return calibrated(settings, budget, relation, others, spare)
