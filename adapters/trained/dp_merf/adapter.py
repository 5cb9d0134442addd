"""DP-MERF as a generator: fitted once to a noisy mean of random features, it answers RANDOM_API and VARIATION_API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from adapters.trained.blocks import counted_steps
from adapters.trained.dp_merf.features import frequencies, noisy_sum
from adapters.trained.labels import check_labels
from adapters.trained.releases import sum_release
from pe.data.conditions import Conditions
from pe.data.images import Images
from pe.errors import APIError, RecipeError
from pe.fit.trainer import FIT, FitTerms, Fitting
from pe.plugins.devices import require_torch
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, VariationRequest
from pe.privacy.release import Relation, Release

if TYPE_CHECKING:
    from adapters.trained.dp_merf.generator import Generator

_WEIGHTS, _SETTINGS = "generator.safetensors", "settings.json"


@dataclass(kw_only=True, eq=False, repr=False)
class DPMERF:
    """RANDOM_API and VARIATION_API by DP-MERF (Harder, Adamczewski and Park, AISTATS 2021).

    Every private image becomes a vector of random features of norm 1; their sum per label is released once, with
    noise, and a small generator is fitted to it without seeing the images again. A sample carries the code that it
    was made from; a variation of degree d moves it to √(1−d²)·z + d·ξ: 0 changes nothing, 1 forgets all.

    Conditions: `code` (float32, n×8).

    Args:
        features: D, an even number of random features.
        bandwidth: of the Gaussian kernel, per root of the number of pixel values, which lie in [0, 1].
        steps: of fitting the generator.
        batch: images per step.
        rate: Adam's learning rate.

    Raises:
        RecipeError: a setting out of range.
        MissingDependency: torch is not installed.
    """

    info = PluginInfo(hosts=())

    features: int = 4000
    bandwidth: float = 0.2
    steps: int = 1000
    batch: int = 200
    rate: float = 1e-2

    def __post_init__(self) -> None:
        if self.features < 2 or self.features % 2:
            raise RecipeError(f"features is {self.features}: it must be an even number of at least 2.")
        for name in ("bandwidth", "steps", "batch", "rate"):
            if not (value := getattr(self, name)) > 0:
                raise RecipeError(f"{name} is {value}: it must lie above 0.")
        self._model: Generator | None = None
        self._labels: dict[str, int] = {}

    @property
    def capabilities(self) -> Capabilities:
        """Any labels in a request."""
        return Capabilities(max_chunk=1024)

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
        from safetensors.torch import save_file

        from adapters.trained.dp_merf.generator import fit_generator

        terms = fitting.terms
        (release,) = self.planned(terms)
        w = frequencies(self.features, int(np.prod(terms.image_shape)), self._bandwidth_of(terms), terms.seed)
        total = fitting.ledger.release(
            release, lambda noise: noisy_sum(fitting.private(), len(terms.classes), w, release, noise)
        )
        with counted_steps(fitting, "fitting the generator", self.steps) as step_done:
            model = fit_generator(
                total / (release.grid * terms.declared_size),
                w,
                terms.image_shape,
                steps=self.steps,
                batch=self.batch,
                rate=self.rate,
                seed=terms.seed,
                step_done=step_done,
            )
        save_file(model.state_dict(), fitting.folder / _WEIGHTS)
        settings = {"classes": terms.classes, "image_shape": terms.image_shape}
        (fitting.folder / _SETTINGS).write_text(json.dumps(settings) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Answer from the generator in `folder`.

        Raises:
            RecipeError: there is none, or it is damaged.
        """
        require_torch("trained", "Fitting a generator")
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        from adapters.trained.dp_merf.generator import Generator

        try:
            settings = json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))
            model = Generator(len(settings["classes"]), tuple(settings["image_shape"]))
            model.load_state_dict(load_file(folder / _WEIGHTS))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise RecipeError(f"{folder} holds no fitted DP-MERF generator: fit it in a new run.") from error
        self._labels = {name: i for i, name in enumerate(settings["classes"])}
        self._model = model.eval()

    def random_api(self, request: RandomRequest) -> Answer:
        """New images, each from a code drawn by its seed.

        Raises:
            RecipeError: the model was fitted for other labels.
            APIError: it is not fitted yet.
        """
        return self._answer(_codes(request.seeds), request.labels)

    def variation_api(self, request: VariationRequest) -> Answer:
        """The parents' codes, moved.

        Raises:
            RecipeError: the model was fitted for other labels.
            APIError: it is not fitted yet, or the parents carry no codes.
        """
        if "code" not in request.conditions:
            raise APIError("A variation by dp_merf needs the parent's code: evolve samples that it made itself.")
        degree = np.float32(request.degree)
        codes = np.sqrt(1 - degree**2) * request.conditions["code"] + degree * _codes(request.seeds)
        return self._answer(codes.astype(np.float32), request.labels)

    def _answer(self, codes: np.ndarray, labels: Sequence[str]) -> Answer:
        if self._model is None:
            raise APIError("dp_merf answers once it is fitted: `pe run` does that first.")
        check_labels(labels, self._labels)
        numbers = np.array([self._labels[label] for label in labels], dtype=np.int64)
        return Answer(Images(self._model.images(codes, numbers)), Conditions({"code": codes}))

    def _bandwidth_of(self, terms: FitTerms) -> float:
        return self.bandwidth * float(np.sqrt(np.prod(terms.image_shape)))


def _codes(seeds: np.ndarray) -> np.ndarray:
    """Standard normal codes, float32 (n, CODE), each from its own seed."""
    from adapters.trained.dp_merf.generator import CODE

    return np.stack(
        [np.random.Generator(np.random.Philox(key=int(seed))).standard_normal(CODE) for seed in seeds]
    ).astype(np.float32)
