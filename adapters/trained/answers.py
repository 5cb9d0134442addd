"""RANDOM_API and VARIATION_API of generators that make an image from a label and a code.

The code z is standard normal, and each sample carries its own. A variation of degree d carries
√(1−d²)·z + d·ξ with a new code ξ: 0 keeps z, 1 gives ξ.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from adapters.trained.fit import (
    label_numbers,
    load_json,
    not_fitted,
    reading,
    rng_of,
    write_json,
    write_weights,
)
from pe.data.arrays import Float32Array, Int64Array, UInt8Array, UInt64Array
from pe.data.images import Images
from pe.data.samples import Conditions
from pe.errors import APIError
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, VariationRequest

if TYPE_CHECKING:
    from adapters.trained.gan_networks import ImageGenerator
    from pe.fit.trainer import FitTerms

Codes = Float32Array

_WEIGHTS = "generator.safetensors"
_SETTINGS = "settings.json"


def draw_codes(seeds: UInt64Array, length: int) -> Codes:
    """Return standard normal codes, float32 (n, length), one drawn from each of the n seeds."""
    return np.stack([rng_of(seed).standard_normal(length) for seed in seeds]).astype(np.float32)


def move_codes(codes: Codes, seeds: UInt64Array, degree: float) -> Codes:
    """Return √(1−d²)·z + d·ξ for each code z, with a new ξ drawn by its seed.

    The result is standard normal if z is.
    """
    d = np.float32(degree)
    return np.asarray(
        np.sqrt(1 - d**2) * codes + d * draw_codes(seeds, codes.shape[1]),
        dtype=np.float32,
    )


class CodedModel(Protocol):
    """A fitted model that makes images from codes."""

    @property
    def code_length(self) -> int:
        """Length of a code."""
        ...

    def images(self, codes: Codes, labels: Int64Array) -> UInt8Array:
        """Return an image for each code and its label, uint8 (n, h, w, c).

        An image depends on its own code and label alone.
        """
        ...


class AnswersByCodes:
    """RANDOM_API and VARIATION_API of a fitted `CodedModel`.

    Conditions: `code` (float32, n×length).
    """

    info = PluginInfo(hosts=(), by_label=True)
    capabilities = Capabilities(max_chunk=1024)

    _model: CodedModel | None = None
    _classes: tuple[str, ...] = ()

    def load(self, folder: Path) -> None:
        """Answer from the model in `folder`.

        Raise RecipeError if there is none, or it is damaged.
        """
        from safetensors.torch import load_file

        from adapters.trained.gan_networks import ImageGenerator

        with reading(folder, "fitted generator of this kind"):
            settings = load_json(folder / _SETTINGS)
            self._classes = tuple(settings["classes"])
            model = ImageGenerator(len(self._classes), tuple(settings["image_shape"]))
            model.load_state_dict(load_file(folder / _WEIGHTS))
        self._model = model.eval()

    def random_api(self, request: RandomRequest) -> Answer:
        """Make new images, each from a code drawn by its seed."""
        return self._answer(draw_codes(request.seeds, self._parts().code_length), request.labels)

    def variation_api(self, request: VariationRequest) -> Answer:
        """Make each variation from its parent's code, moved by `move_codes`."""
        if "code" not in request.conditions:
            raise APIError(
                "A variation needs the parent's code. Evolve samples that the fitted generator "
                "made itself."
            )
        return self._answer(
            move_codes(request.conditions["code"], request.seeds, request.degree),
            request.labels,
        )

    def _answer(self, codes: Codes, labels: Sequence[str]) -> Answer:
        images = self._parts().images(codes, label_numbers(labels, self._classes))
        return Answer(Images(images), Conditions({"code": codes}))

    def _parts(self) -> CodedModel:
        if self._model is None:
            raise not_fitted()
        return self._model


def write_generator(model: ImageGenerator, terms: FitTerms, folder: Path) -> None:
    """Write a fitted generator to `folder`, for `load`."""
    write_weights(model.state_dict(), folder / _WEIGHTS)
    write_json({"classes": terms.classes, "image_shape": terms.image_shape}, folder / _SETTINGS)
