"""The classifiers by name, single or as ensembles by averaged logits."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from pe.errors import MissingDependency, RecipeError, nearest_name
from pe.evaluation.labelled import Labelled
from pe.evaluation.shallow import Logits, Predict, fit_linear_probe, fit_logistic_regression, fit_mlp
from pe.evaluation.words import fit_tfidf_regression

LINEAR_PROBE = "linear_probe"
ON_PIXELS = {"logistic_regression": fit_logistic_regression, "mlp": fit_mlp}
ON_WORDS = {"tfidf_regression": fit_tfidf_regression}
SHALLOW = {LINEAR_PROBE: fit_linear_probe} | ON_PIXELS | ON_WORDS
NETWORKS = ("resnet9", "wrn-16-2", "wrn-40-4")
TRANSFORMER = "transformer:"
"""Before the folder of an encoder."""
KNOWN = (*SHALLOW, *NETWORKS)

_ENSEMBLE = re.compile(r"(?P<single>.+)-x(?P<members>\d+)")
_WIDE = re.compile(r"wrn-(\d+)-(\d+)")


@dataclass(frozen=True)
class NetworkSettings:
    """What a user may set of the networks' training.

    Attributes:
        epochs: passes over the training part, ≥ 1.
        flip: mirror half of the images; wrong for digits and text.
        device: of torch; None: the GPU if there is one.
    """

    epochs: int = 20
    flip: bool = False
    device: str | None = None


@dataclass(frozen=True)
class Classifier:
    """A classifier by its name.

    Attributes:
        single: of KNOWN, another wide ResNet, `wrn-D-K`, or `transformer:FOLDER`, an encoder of transformers.
        members: how many are trained, each from a seed of its own, and averaged in their logits.
        settings: of the networks.
    """

    single: str
    members: int = 1
    settings: NetworkSettings = NetworkSettings()

    @classmethod
    def named(cls, name: str, settings: NetworkSettings) -> Classifier:
        """`NAME`, or `NAME-x5` for an ensemble of five.

        Raises:
            RecipeError: no such classifier.
        """
        found = _ENSEMBLE.fullmatch(name)
        single, members = (found["single"], int(found["members"])) if found else (name, 1)
        wide = _WIDE.fullmatch(single)
        possible = wide and int(wide[1]) >= 10 and (int(wide[1]) - 4) % 6 == 0 and int(wide[2]) >= 1
        if members < 1 or not (single in KNOWN or possible or single.removeprefix(TRANSFORMER) not in ("", single)):
            raise RecipeError(
                f"Unknown classifier '{name}' (an ensemble of 5 is NAME-x5): {nearest_name(single, KNOWN)}"
            )
        return cls(single, members, settings)

    @property
    def name(self) -> str:
        """As `named` takes it."""
        return self.single if self.members == 1 else f"{self.single}-x{self.members}"

    @property
    def shallow(self) -> bool:
        """Whether it is one of scikit-learn's, which may be trained side by side."""
        return self.single in SHALLOW

    @property
    def kind(self) -> str | None:
        """The modality that it can be trained on; None: any, by what an embedding makes of it."""
        if self.single == LINEAR_PROBE:
            return None
        return "texts" if self.single in ON_WORDS or self.single.startswith(TRANSFORMER) else "images"

    def fit(self, train: Labelled, validation: Labelled, classes: int, seed: int) -> Predict:
        """Train it; the stopping point is chosen on `validation`.

        Args:
            train: what it learns from.
            validation: held out of the same training set.
            classes: their number.
            seed: of all randomness.

        Raises:
            MissingDependency: scikit-learn or torch is not installed.
        """
        seeds = np.random.SeedSequence(seed).generate_state(self.members)
        members = [self._fit(train, validation, classes, int(each) % 2**31) for each in seeds]

        def predict(given: Labelled) -> Logits:
            logits: Logits = np.mean([member(given) for member in members], axis=0)
            return logits

        return predict

    def _fit(self, train: Labelled, validation: Labelled, classes: int, seed: int) -> Predict:
        if self.shallow:
            return SHALLOW[self.single](train, validation, classes, seed)
        if self.single.startswith(TRANSFORMER):
            return self._fine_tune(train, validation, classes, seed)
        try:
            from pe.evaluation.training import Training, fit_network
        except ImportError as error:
            raise MissingDependency.of("torch", "evaluation", f"The classifier '{self.single}'") from error
        settings = Training(self.settings.epochs, self.settings.flip, device=self.settings.device)
        return fit_network(self.single, train, validation=validation, classes=classes, seed=seed, settings=settings)

    def _fine_tune(self, train: Labelled, validation: Labelled, classes: int, seed: int) -> Predict:
        try:
            from pe.evaluation.fine_tuning import FineTuning, fit_transformer
        except ImportError as error:
            raise MissingDependency.of("transformers", "text", f"The classifier '{self.single}'") from error
        settings = FineTuning(self.settings.epochs, device=self.settings.device)
        place = self.single.removeprefix(TRANSFORMER)
        return fit_transformer(place, train, validation, classes, seed, settings)
