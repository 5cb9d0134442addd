"""PrivImage: a diffusion model of the public images that are most like the private ones (Li et al., USENIX 2024)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.trained.diffusion.easy import BeginsEasy
from adapters.trained.public import Shape
from adapters.trained.sections import PlainTraining
from adapters.trained.semantics.selecting import SelectsPublic
from pe.data.samples import Array
from pe.errors import RecipeError

if TYPE_CHECKING:
    from diffusers import UNet2DModel

    from pe.fit.trainer import DryRun, FitTerms, Fitting, PrivateRecords
    from pe.privacy.release import Release


@dataclass(kw_only=True, eq=False, repr=False)
class PrivImage(SelectsPublic, BeginsEasy):
    """Trained on selected public images under the private labels, then by DP-SGD.

    A classifier of the public labels, the semantic query function, is asked for the k most probable semantics of each
    private image; how often each label has each is released once, with noise. Each label takes the images of its k
    most frequent semantics, and none is taken twice. Where `easy` names generators, each is fitted with a share of the
    budget, and the network learns from their images, too, before DP-SGD; see dp_feta. All else, the other arguments
    too, is as in `FittedDiffusion`.

    Args:
        public: the public images, labelled.
        semantics: k: both how many a record has and how many a label takes.
        semantics_share: of the fit's ε, which the release of the semantics alone takes.
        query: the query function, and its training.
        pretraining: on the selected images.
        easy: generators to learn from after the selected images, with the settings of each beside its own keys.

    Raises:
        RecipeError: a setting is out of range, or the shares leave nothing.
    """

    pretraining: PlainTraining = PlainTraining()

    def __post_init__(self) -> None:
        BeginsEasy.__post_init__(self)
        SelectsPublic.__post_init__(self)
        if (total := self.semantics_share + sum(one.share for one in self.easy)) >= 1:
            raise RecipeError(
                f"semantics_share and the shares of easy add up to {total:g}, which leaves DP-SGD nothing: "
                "make them smaller."
            )

    def public_paths(self) -> tuple[Path, ...]:
        """Where the public images are read from."""
        return (*SelectsPublic.public_paths(self), *BeginsEasy.public_paths(self))

    def public_samples(self, shape: Shape, rule: str | None) -> Iterator[tuple[str, Array]]:
        """All that are read: see `ReadsPublicSamples`."""
        yield from SelectsPublic.public_samples(self, shape, rule)
        yield from BeginsEasy.public_samples(self, shape, rule)

    def _others(self, terms: FitTerms) -> tuple[Release, ...]:
        return (*SelectsPublic._others(self, terms), *BeginsEasy._others(self, terms))

    def _public_dry_runs(self, terms: FitTerms) -> Sequence[DryRun]:
        from adapters.trained.diffusion.pretraining import pretraining_dry_run

        model = self._new(terms, len(terms.classes)).to(self._place())
        return [pretraining_dry_run(model, terms, self.pretraining), *BeginsEasy._public_dry_runs(self, terms)]

    def _begun(self, fitting: Fitting, private: Callable[[], PrivateRecords]) -> UNet2DModel:
        from adapters.trained.diffusion.pretraining import pretrained

        terms = fitting.terms
        selected = self._selected(fitting, private, self._place())
        model = self._new(terms, len(terms.classes)).to(self._place())
        return self._taught(pretrained(model, lambda: selected, self.pretraining, fitting), fitting, private)
