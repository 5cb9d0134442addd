"""PrivImage: a diffusion model of the public images that are most like the private ones (Li et al., USENIX 2024)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adapters.trained.diffusion.base import FineTuned
from adapters.trained.sections import PlainTraining
from adapters.trained.semantics.selecting import SelectsPublic

if TYPE_CHECKING:
    from diffusers import UNet2DModel

    from pe.fit.trainer import DryRun, FitTerms, Fitting, PrivateRecords


@dataclass(kw_only=True, eq=False, repr=False)
class PrivImage(SelectsPublic, FineTuned):
    """Trained on selected public images under the private labels, then by DP-SGD.

    A classifier of the public labels, the semantic query function, is asked for the k most probable semantics of each
    private image; how often each label has each is released once, with noise. Each label takes the images of its k
    most frequent semantics, and none is taken twice. All else, the other arguments too, is as in `FittedDiffusion`.

    Args:
        public: the public images, labelled.
        semantics: k: both how many a record has and how many a label takes.
        semantics_share: of the fit's ε, which the release of the semantics alone takes.
        query: the query function, and its training.
        pretraining: on the selected images.

    Raises:
        RecipeError: a setting is out of range.
    """

    pretraining: PlainTraining = PlainTraining()

    def __post_init__(self) -> None:
        FineTuned.__post_init__(self)
        SelectsPublic.__post_init__(self)

    def _public_dry_runs(self, terms: FitTerms) -> Sequence[DryRun]:
        from adapters.trained.diffusion.pretraining import pretraining_dry_run

        return [pretraining_dry_run(self._new(terms, len(terms.classes)).to(self._place()), terms, self.pretraining)]

    def _begun(self, fitting: Fitting, private: Callable[[], PrivateRecords]) -> UNet2DModel:
        from adapters.trained.diffusion.pretraining import pretrained

        terms = fitting.terms
        selected = self._selected(fitting, private, self._place())
        model = self._new(terms, len(terms.classes)).to(self._place())
        return pretrained(model, lambda: selected, self.pretraining, fitting)
