"""PDP-Diffusion and DP-LDM: a diffusion model of all public images, fine-tuned on the private ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from adapters.trained.diffusion.base import FineTuned
from adapters.trained.public import Public, ReadsPublic
from adapters.trained.sections import PlainTraining

if TYPE_CHECKING:
    from diffusers import UNet2DModel

    from pe.fit.trainer import DryRun, FitTerms, Fitting, PrivateRecords


@dataclass(kw_only=True, eq=False, repr=False)
class PDPDiffusion(ReadsPublic, FineTuned):
    """Trained on the whole public set, by its labels where it has some, then by DP-SGD (Ghalebikesabi et al. 2023).

    The private labels get a new class embedding; all else goes on from where the public images left it. The other
    arguments are as in `FittedDiffusion`.

    Args:
        public: the public images.
        pretraining: on them.
    """

    public: Public
    pretraining: PlainTraining = PlainTraining()

    def _public_dry_runs(self, terms: FitTerms) -> Sequence[DryRun]:
        from adapters.trained.diffusion.pretraining import pretraining_dry_run

        return [pretraining_dry_run(self._new(terms, 1).to(self._place()), terms, self.pretraining)]

    def _check(self, terms: FitTerms) -> None:
        self.public.check(terms.image_shape)

    def _begun(self, fitting: Fitting, private: Callable[[], PrivateRecords]) -> UNet2DModel:
        from adapters.trained.diffusion.network import with_new_classes
        from adapters.trained.diffusion.pretraining import pretrained

        terms = fitting.terms
        public = self.public.read(terms.image_shape, terms.seed)
        model = self._new(terms, public.classes).to(self._place())
        model = pretrained(model, lambda: public, self.pretraining, fitting)
        return with_new_classes(model, len(terms.classes), terms.seed)


class DPLDM(PDPDiffusion):
    """As `PDPDiffusion`, but DP-SGD trains the attention layers and the class embedding alone (Liu et al. 2023).

    It works on pixels, as the others here do, and not on an autoencoder's latents.
    """

    _frozen: ClassVar[bool] = True

    def _prepared(self, model: UNet2DModel) -> UNet2DModel:
        from adapters.trained.diffusion.network import only_attention_and_classes

        return only_attention_and_classes(model)
