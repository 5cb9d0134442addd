"""The labels that a fitted model knows."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pe.data.images import Images
from pe.data.samples import Conditions
from pe.errors import APIError, RecipeError
from pe.plugins.devices import require_torch
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, VariationRequest

if TYPE_CHECKING:
    from adapters.trained.gan_networks import Generator
    from pe.fit.trainer import FitTerms


def check_labels(asked: Sequence[str], known: Collection[str]) -> None:
    """Raise RecipeError if the model was not fitted for a label of a request."""
    if unknown := sorted(set(asked) - set(known)):
        names = ", ".join(f"'{name}'" for name in sorted(known))
        raise RecipeError(
            f"The model was fitted for the labels {names}, and '{unknown[0]}' is none of them: sample it with the "
            "private.classes that it was fitted with."
        )


# The codes that samples carry, of generators that make an image from a standard normal code and a label.


Codes = npt.NDArray[np.float32]


def draw_codes(seeds: npt.NDArray[np.uint64], length: int) -> Codes:
    """Standard normal codes, float32 (n, length), each from its own seed."""
    rngs = (np.random.Generator(np.random.Philox(key=int(seed))) for seed in seeds)
    return np.stack([rng.standard_normal(length) for rng in rngs]).astype(np.float32)


def move_codes(codes: Codes, seeds: npt.NDArray[np.uint64], degree: float) -> Codes:
    """√(1−d²)·z + d·ξ with new codes ξ, which keeps their distribution: d = 0 changes nothing, d = 1 forgets all."""
    d = np.float32(degree)
    moved: Codes = (np.sqrt(1 - d**2) * codes + d * draw_codes(seeds, codes.shape[1])).astype(np.float32)
    return moved


# What a fitted network answers that makes an image from a code and a label: a new code, or the parent's, moved.


_WEIGHTS, _SETTINGS = "generator.safetensors", "settings.json"


class AnswersByCodes:
    """RANDOM_API and VARIATION_API of a fitted `Generator`.

    A sample carries the code that it was made from; a variation of degree d moves it to √(1−d²)·z + d·ξ: 0 changes
    nothing, 1 forgets all.

    Conditions: `code` (float32, n×8).
    """

    info = PluginInfo(hosts=(), by_label=True)

    _model: Any = None  # a Generator, once it is fitted
    _labels: dict[str, int]

    @property
    def capabilities(self) -> Capabilities:
        """Any labels in a request."""
        return Capabilities(max_chunk=1024)

    def load(self, folder: Path) -> None:
        """Answer from the generator in `folder`.

        Raises:
            RecipeError: there is none, or it is damaged.
        """
        require_torch("trained", "Fitting a generator")
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        from adapters.trained.gan_networks import Generator

        try:
            settings = json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))
            model = Generator(len(settings["classes"]), tuple(settings["image_shape"]))
            model.load_state_dict(load_file(folder / _WEIGHTS))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise RecipeError(f"{folder} holds no fitted generator of this kind: fit it in a new run.") from error
        self._labels = {name: i for i, name in enumerate(settings["classes"])}
        self._model = model.eval()

    def random_api(self, request: RandomRequest) -> Answer:
        """New images, each from a code drawn by its seed.

        Raises:
            RecipeError: the model was fitted for other labels.
            APIError: it is not fitted yet.
        """
        from adapters.trained.gan_networks import CODE

        return self._answer(draw_codes(request.seeds, CODE), request.labels)

    def variation_api(self, request: VariationRequest) -> Answer:
        """The parents' codes, moved.

        Raises:
            RecipeError: the model was fitted for other labels.
            APIError: it is not fitted yet, or the parents carry no codes.
        """
        if "code" not in request.conditions:
            raise APIError("A variation needs the parent's code: evolve samples that the fitted generator made itself.")
        return self._answer(move_codes(request.conditions["code"], request.seeds, request.degree), request.labels)

    def _answer(self, codes: np.ndarray, labels: Sequence[str]) -> Answer:
        if self._model is None:
            raise APIError("This generator answers once it is fitted: `pe run` does that first.")
        check_labels(labels, self._labels)
        numbers = np.array([self._labels[label] for label in labels], dtype=np.int64)
        return Answer(Images(self._model.images(codes, numbers)), Conditions({"code": codes}))


def write_generator(model: Generator, terms: FitTerms, folder: Path) -> None:
    """Put a fitted generator into `folder`, for `load`."""
    from safetensors.torch import save_file

    save_file(model.state_dict(), folder / _WEIGHTS)
    settings = {"classes": terms.classes, "image_shape": terms.image_shape}
    (folder / _SETTINGS).write_text(json.dumps(settings) + "\n", encoding="utf-8")
