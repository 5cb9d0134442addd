"""DP-MEPF: the noisy mean of perceptual features (Harder, Jalali, Sutherland and Park, TMLR 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adapters.trained.noisy_mean.base import NoisyMean
from pe.errors import RecipeError
from pe.fit.trainer import FitTerms

if TYPE_CHECKING:
    from adapters.trained.noisy_mean.perceptual import Perceptual

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
        from adapters.trained.noisy_mean.perceptual import Perceptual

        return Perceptual.of(self.side, self._stages, self.squares, terms.image_shape, terms.seed, _CENTRED)
