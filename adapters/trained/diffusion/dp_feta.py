"""DP-FETA: from easy to hard: cheap noised statistics first, then DP-SGD (Li et al. 2025; FETA-Pro, 2601.06368)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adapters.trained.diffusion.easy import BeginsEasy, Easy
from pe.errors import RecipeError

if TYPE_CHECKING:
    from diffusers import UNet2DModel

    from pe.fit.trainer import Fitting, PrivateRecords


@dataclass(kw_only=True, eq=False, repr=False)
class DPFETA(BeginsEasy):
    """Trained on what cheaper fits make, then by DP-SGD, all on one ledger, without public images.

    Each entry of `easy` is a generator that is fitted with a share of the budget. The diffusion model learns from its
    images, in the order of the list, and goes on from there by DP-SGD. DP-FETA takes `central_images`, FETA-Pro
    `dp_merf` after it. All else, the other arguments too, is as in `FittedDiffusion`.

    Args:
        easy: the generators, with the settings of each beside its own keys.

    Raises:
        RecipeError: none is given, one comes twice or is not fitted, or the shares leave nothing.
    """

    easy: list[Easy]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.easy:
            raise RecipeError("easy is empty: name what is fitted first, or take kind: dpdm.")

    def _begun(self, fitting: Fitting, private: Callable[[], PrivateRecords]) -> UNet2DModel:
        model = super()._begun(fitting, private).to(self._place())
        return self._taught(model, fitting, private)
