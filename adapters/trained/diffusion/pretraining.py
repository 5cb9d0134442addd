"""Training the denoiser on public images, before it sees a private one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from adapters.trained.blocks import check_stop
from adapters.trained.diffusion.loss import Velocity
from adapters.trained.plain import train
from adapters.trained.public import PublicSet
from adapters.trained.settings import PlainTraining

if TYPE_CHECKING:
    from diffusers import UNet2DModel

    from pe.trainer import Fitting


def pretrained(
    model: UNet2DModel, public: PublicSet, settings: PlainTraining, fitting: Fitting, none: int | None = None
) -> UNet2DModel:
    """`model` after training on all of `public`, whose labels are its classes; it is left on its device.

    `none`: the class that stands for none, of a network that is to be guided.

    Raises:
        Interrupted: the fit was told to stop.
        RecipeError: memory does not suffice.
    """
    loss = Velocity(none)

    def loss_of(images: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        _, channels, height, width = images.shape
        drawn = loss.draw(1, len(images), (channels, height, width), generator)
        return loss(model, images, labels, tuple(part[0] for part in drawn)).mean()

    with fitting.progress.task("training on public images", settings.steps) as task:

        def step_done() -> None:
            task.advance(1)
            check_stop(fitting)

        return train(model, public, settings, loss_of, fitting.terms.seed, "pretraining", step_done)
