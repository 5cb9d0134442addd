"""The classifiers by name."""

from __future__ import annotations

from dataclasses import dataclass

from pe.errors import MissingDependency, RecipeError, nearest_name
from pe.evaluation.labelled import Labelled
from pe.evaluation.shallow import Predict, fit_linear_probe, fit_logistic_regression, fit_mlp
from pe.evaluation.words import fit_tfidf_regression

LINEAR_PROBE = "linear_probe"
ON_PIXELS = {"logistic_regression": fit_logistic_regression, "mlp": fit_mlp}
ON_WORDS = {"tfidf_regression": fit_tfidf_regression}
SHALLOW = {LINEAR_PROBE: fit_linear_probe} | ON_PIXELS | ON_WORDS
KNOWN = (*SHALLOW, "resnet9")


@dataclass(frozen=True)
class NetworkSettings:
    """Settings of ResNet-9's training.

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
    """A classifier by its name, one of KNOWN.

    Raises:
        RecipeError: no such classifier.
    """

    name: str
    settings: NetworkSettings = NetworkSettings()

    def __post_init__(self) -> None:
        if self.name not in KNOWN:
            raise RecipeError(f"Unknown classifier '{self.name}': {nearest_name(self.name, KNOWN)}")

    @property
    def shallow(self) -> bool:
        """Whether it is one of scikit-learn's, which may be trained side by side."""
        return self.name in SHALLOW

    @property
    def kind(self) -> str | None:
        """The modality that it can be trained on; None: any, by what an embedding makes of it."""
        if self.name == LINEAR_PROBE:
            return None
        return "texts" if self.name in ON_WORDS else "images"

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
        if self.shallow:
            return SHALLOW[self.name](train, validation, classes, seed)
        try:
            from pe.evaluation.training import Training, fit_network
        except ImportError as error:
            raise MissingDependency.of("torch", "evaluation", f"The classifier '{self.name}'") from error
        settings = Training(self.settings.epochs, self.settings.flip, device=self.settings.device)
        return fit_network(train, validation, classes, seed, settings)
