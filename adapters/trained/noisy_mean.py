"""What generators share that are fitted to one noisy mean of features: the plan, the fit, the answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from adapters.trained.answers import AnswersByCodes, write_generator
from adapters.trained.releases import Features, Floats, counted_steps, noisy_sum, sum_release
from pe.data.samples import generator
from pe.errors import RecipeError
from pe.fit.trainer import FIT, FitTerms, Fitting
from pe.plugins.devices import require_torch
from pe.privacy.release import Relation, Release

if TYPE_CHECKING:
    from torch import Tensor

    from adapters.trained.perceptual import Perceptual


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
        from adapters.trained.gan_networks import fit_generator

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


# DP-MERF: the noisy mean of random Fourier features (Harder, Adamczewski and Park, AISTATS 2021).
#
# φ(x) = √(2/D)·(cos Wx, sin Wx) with W's rows from N(0, I/bandwidth²): ⟨φ(x), φ(y)⟩ is near the Gaussian kernel
# exp(−‖x − y‖²/2·bandwidth²), and ‖φ(x)‖ = 1. With several bandwidths, each for its share of the rows, it is near the
# mean of their kernels.


@dataclass(kw_only=True, eq=False, repr=False)
class DPMERF(NoisyMean):
    """RANDOM_API and VARIATION_API by DP-MERF (Harder, Adamczewski and Park, AISTATS 2021).

    Every private image becomes a vector of random features of norm 1; their sum per label is released once, with
    noise, and a small generator is fitted to it without seeing the images again. A sample carries the code that it
    was made from; a variation of degree d moves it to √(1−d²)·z + d·ξ: 0 changes nothing, 1 forgets all.

    Conditions: `code` (float32, n×8).

    Args:
        features: D, an even number of random features.
        bandwidth: of the Gaussian kernel, per root of the number of pixel values, which lie in [0, 1]; or a list of
            bandwidths, each for an equal share of the features: the mean of these kernels.
        steps: of fitting the generator.
        batch: images per step.
        rate: Adam's learning rate.

    Raises:
        RecipeError: a setting out of range.
        MissingDependency: torch is not installed.
    """

    features: int = 4000
    bandwidth: float | list[float] = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features < 2 or self.features % 2:
            raise RecipeError(f"features is {self.features}: it must be an even number of at least 2.")
        if not self._bandwidths or not all(bandwidth > 0 for bandwidth in self._bandwidths):
            raise RecipeError(f"bandwidth is {self.bandwidth}: it must lie above 0, or be a list of such numbers.")
        if self.features < 2 * len(self._bandwidths):
            raise RecipeError(
                f"features is {self.features}, too few for {len(self._bandwidths)} bandwidths: take at least "
                f"{2 * len(self._bandwidths)}."
            )

    def _features(self, terms: FitTerms) -> RandomFourier:
        dimensions = int(np.prod(terms.image_shape))
        bandwidths = [bandwidth * float(np.sqrt(dimensions)) for bandwidth in self._bandwidths]
        return RandomFourier(frequencies(self.features, dimensions, bandwidths, terms.seed))

    @property
    def _bandwidths(self) -> list[float]:
        return self.bandwidth if isinstance(self.bandwidth, list) else [self.bandwidth]


def frequencies(count: int, dimensions: int, bandwidths: Sequence[float], seed: int) -> Floats:
    """W, float64 (count/2, dimensions): public, from the recipe's seed; the rows are shared out in blocks."""
    rows = count // 2
    of_row = np.array(bandwidths)[np.arange(rows) * len(bandwidths) // rows]
    normal = generator(seed, "dp_merf/frequencies").standard_normal((rows, dimensions))
    scaled: Floats = normal / of_row[:, None]
    return scaled


@dataclass(frozen=True, eq=False)
class RandomFourier:
    """φ of these frequencies W, float64 (D/2, h·w·c); a `Features`."""

    frequencies: Floats

    @property
    def size(self) -> int:
        """D, how many there are."""
        return 2 * len(self.frequencies)

    def of_record(self, image: npt.NDArray[np.uint8]) -> Floats:
        """φ(x), float64 (D,), of one image, by a matrix-vector product of its own.

        Guarantee: the norm is 1, but for rounding, and no bit depends on anything but this image and W.
        """
        angles = self.frequencies @ (image.reshape(-1) / 255.0)
        features: Floats = np.concatenate([np.cos(angles), np.sin(angles)]) / np.sqrt(len(self.frequencies))
        return features

    def of_batch(self, images: Tensor) -> Tensor:
        """(cos Wx, sin Wx) of float32 images in [0, 1], (n, D)."""
        import torch

        angles = images.flatten(1) @ self._transposed
        return torch.cat([angles.cos(), angles.sin()], dim=1)

    @cached_property
    def _transposed(self) -> Tensor:
        import torch

        return torch.from_numpy(self.frequencies.astype(np.float32)).T.contiguous()


# DP-MEPF: the noisy mean of perceptual features (Harder, Jalali, Sutherland and Park, TMLR 2023).


_STAGES = 7
_CENTRED = 100
_LEAST_SIDE = 16


@dataclass(kw_only=True, eq=False, repr=False)
class DPMEPF(NoisyMean):
    """RANDOM_API and VARIATION_API by DP-MEPF (Harder, Jalali, Sutherland and Park, TMLR 2023).

    Every private image becomes a vector of norm 1: what the stages of EfficientNet-Lite0, trained on ImageNet, see of
    it, and the squares of that. Their sum per label is released once, with noise, and a small generator is fitted to
    it, through the network, without seeing the images again. Samples carry codes as those of `dp_merf` do. Each stage
    has the same weight, and the mean over public noise images is taken off it; as published, all values are brought to
    norm 1 together, and nothing is taken off.

    Conditions: `code` (float32, n×8).

    Args:
        side: pixels of the square that images are resized to for the network, ≥ 16.
        stages: of the network, ascending, from 1 to 7; what follows the last one is not computed.
        squares: weight of the squares, from 0 (there are none) to below 1; as published 0.5.
        steps: of fitting the generator.
        batch: images per step.
        rate: Adam's learning rate.

    Raises:
        RecipeError: a setting out of range.
        MissingDependency: torch, timm or the network's weights are not installed.
    """

    side: int = 32
    stages: list[int] | None = None
    squares: float = 0.5
    rate: float = 5e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side < _LEAST_SIDE:
            raise RecipeError(f"side is {self.side}: it must be at least {_LEAST_SIDE}.")
        if not 0 <= self.squares < 1:
            raise RecipeError(f"squares is {self.squares}: it must lie from 0 to below 1.")
        stages = self._stages
        if not stages or sorted(set(stages)) != stages or not 1 <= stages[0] <= stages[-1] <= _STAGES:
            raise RecipeError(f"stages is {stages}: it must be a list of different numbers from 1 to 7, ascending.")

    @property
    def _stages(self) -> list[int]:
        return [2, 3, 4, 5] if self.stages is None else self.stages

    def _features(self, terms: FitTerms) -> Perceptual:
        from adapters.trained.perceptual import Perceptual

        return Perceptual.of(self.side, self._stages, self.squares, terms.image_shape, terms.seed, _CENTRED)
