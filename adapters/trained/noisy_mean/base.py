"""What generators share that are fitted to one noisy mean of features: the plan, the fit, the answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from adapters.trained.blocks import counted_steps
from adapters.trained.coded import AnswersByCodes, write_generator
from adapters.trained.noisy_mean.features import Features, noisy_sum
from adapters.trained.releases import sum_release
from pe.errors import RecipeError
from pe.fit.trainer import FIT, FitTerms, Fitting
from pe.plugins.devices import require_torch
from pe.privacy.release import Relation, Release


@dataclass(kw_only=True, eq=False, repr=False)
class NoisyMean(AnswersByCodes, ABC):
    """Fitted once to the noisy sum of its records' features, it answers from a code and a label.

    Args:
        steps: of fitting the generator.
        batch: images per step.
        rate: Adam's learning rate.

    Raises:
        RecipeError: a setting out of range.
    """

    steps: int = 1000
    batch: int = 200
    rate: float = 1e-2

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "rate"):
            if not (value := getattr(self, name)) > 0:
                raise RecipeError(f"{name} is {value}: it must lie above 0.")

    @abstractmethod
    def _features(self, terms: FitTerms) -> Features:
        """What is summed of the records, and matched by what is made."""

    def planned(self, terms: FitTerms) -> Sequence[Release]:
        """The one release: the sum of the features, of which a unit's weigh 1 together.

        Raises:
            RecipeError: fewer images per step than labels.
            PrivacyError: no noise meets the budget.
        """
        sensitivity = 2.0 if terms.relation is Relation.REPLACE_ONE else 1.0
        if self.batch < max(2, len(terms.classes)):
            raise RecipeError(
                f"api.batch is {self.batch}, and each step needs an image of every one of {len(terms.classes)} "
                f"labels, and two at least: take {max(2, len(terms.classes))} or more."
            )
        name = f"{FIT}mean_features"
        return [sum_release(name, sensitivity, terms.budget, terms.relation, terms.unit, fractional=True)]

    def fit(self, fitting: Fitting) -> None:
        """Release the sum, then fit the generator to it.

        Guarantee: the release's; all that follows is post-processing.

        Raises:
            Interrupted: it was told to stop.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.noisy_mean.generator import fit_generator

        terms = fitting.terms
        (release,) = self.planned(terms)
        features = self._features(terms)
        total = fitting.ledger.release(
            release, lambda noise: noisy_sum(fitting.private(), len(terms.classes), features, release, noise)
        )
        with counted_steps(fitting, "fitting the generator", self.steps) as step_done:
            model = fit_generator(
                total / (release.grid * terms.declared_size),
                features.of_batch,
                terms.image_shape,
                steps=self.steps,
                batch=self.batch,
                rate=self.rate,
                seed=terms.seed,
                step_done=step_done,
            )
        write_generator(model, terms, fitting.folder)
