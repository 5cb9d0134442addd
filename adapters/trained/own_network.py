"""The toolkit's own UNet, which most diffusion methods fit: its trainings, public and private."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from adapters.trained.fit import Fit, StepDone
from adapters.trained.pretraining import pretrain, train
from adapters.trained.public import PublicSet
from adapters.trained.settings import PUBLIC_IMAGES, NetworkSize, PlainTraining
from adapters.trained.trainings import ByDPSGD, PlannedTraining, declare_training
from pe.fit.trainer import FitTerms
from pe.plugins.specs import plugin

if TYPE_CHECKING:
    import torch
    from diffusers import UNet2DModel
    from torch import Tensor


@plugin
class OwnNetwork(ByDPSGD):
    """A fitted diffusion model with the toolkit's own UNet.

    For all other arguments see `FittedDiffusion`.

    Args:
        network: size of the UNet.
    """

    network: NetworkSize = NetworkSize()

    def declare_dp_sgd(self, fit: Fit) -> PlannedTraining:
        """Declare DP-SGD, which gets what is left of the budget.

        Raise RecipeError for images of an unsuitable size.
        """
        self.network.levels(*fit.terms.image_shape[:2])
        return declare_training(fit, self.training)

    def new(self, terms: FitTerms, classes: int) -> UNet2DModel:
        """Return a new, untrained network with `classes` classes, on the first device."""
        from adapters.trained.diffusion_networks import unet

        return unet(self.network, terms.image_shape, classes, terms.seed, "weights").to(
            self.places()[0]
        )

    def pretrain(
        self,
        fit: Fit,
        model: UNet2DModel,
        images: Callable[[], PublicSet],
        settings: PlainTraining,
        none: int | None = None,
        name: str = PUBLIC_IMAGES,
    ) -> None:
        """Train `model` on all of `images()`, whose labels are the model's classes.

        See `pretrain`. `none`: see `Denoising`; `name`: of the images, for messages.
        """
        from adapters.trained.diffusion_networks import Denoising

        phase = "pretraining" if name == PUBLIC_IMAGES else f"pretraining on {name}"
        loss = Denoising(none)

        def loss_of(
            images: Tensor,
            labels: Tensor,
            generator: torch.Generator,
        ) -> Tensor:
            channels, height, width = images.shape[1:]
            randomness = loss.draw(len(images), (channels, height, width), generator)
            return loss(model, images, labels, randomness).mean()

        def train_on(
            public: PublicSet,
            settings: PlainTraining,
            step_done: StepDone,
        ) -> None:
            train(model, public, settings, loss_of, fit.terms.seed, phase, step_done)

        pretrain(fit, model, images, train_on, settings, name)

    def finish(self, fit: Fit, model: UNet2DModel, training: PlannedTraining) -> None:
        """Train the model by DP-SGD, and write it."""
        from adapters.trained.diffusion_networks import Denoising, write_model

        self.train_by_dp_sgd(fit, model, Denoising(), training)
        write_model(model, fit.terms.classes, fit.folder)
