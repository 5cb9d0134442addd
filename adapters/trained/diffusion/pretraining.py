"""Training the denoiser on public images, before it sees a private one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from adapters.trained.blocks import counted_steps
from adapters.trained.diffusion.loss import Velocity
from adapters.trained.dp_sgd.forecast import peak_memory
from adapters.trained.plain import LossOf, train
from adapters.trained.public import PublicSet
from adapters.trained.sections import PlainTraining
from pe.fit.trainer import DryRun

if TYPE_CHECKING:
    from diffusers import UNet2DModel

    from pe.fit.trainer import FitTerms, Fitting


_PUBLIC = "public images"


def pretrained(
    model: UNet2DModel,
    public: Callable[[], PublicSet],
    settings: PlainTraining,
    fitting: Fitting,
    none: int | None = None,
    what: str = _PUBLIC,
) -> UNet2DModel:
    """`model` after training on all of `public()`, whose labels are its classes; it is left on its device.

    A fit that goes on takes what was kept, and asks for no images. `none`: the class that stands for none, of a network
    that is to be guided. `what`: which images they are, of several trainings one after the other.

    Raises:
        Interrupted: the fit was told to stop.
        RecipeError: memory does not suffice.
    """
    kept = f"pretrained on {what}.safetensors".replace(" ", "-")
    found = fitting.kept.find(kept)
    if found is not None:
        model.load_state_dict(load(found))
        return model
    images = public()
    phase = "pretraining" if what == _PUBLIC else f"pretraining on {what}"
    with counted_steps(fitting, f"training on {what}", settings.steps) as step_done:
        train(model, images, settings, _loss_of(model, none), fitting.terms.seed, phase, step_done)
    fitting.kept.keep(kept, save({name: value.cpu().contiguous() for name, value in model.state_dict().items()}))
    return model


def pretraining_dry_run(model: UNet2DModel, terms: FitTerms, settings: PlainTraining) -> DryRun:
    """What `pretrained` will take: three steps on random images.

    Raises:
        RecipeError: memory does not suffice.
    """
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (settings.batch, *terms.image_shape), dtype=np.uint8)
    public = PublicSet(images, np.zeros(settings.batch, dtype=np.int64), ())
    ended = [time.perf_counter()]

    def steps(count: int) -> None:
        few = settings.model_copy(update={"steps": count})
        train(model, public, few, _loss_of(model, None), 0, "dry run", lambda: ended.append(time.perf_counter()))

    memory = peak_memory(next(model.parameters()).device, lambda: steps(1))  # when libraries load, too
    steps(2)
    parameters = sum(value.numel() for value in model.parameters())
    return DryRun(_PUBLIC, settings.steps, ended[-1] - ended[-2], parameters, memory)


def _loss_of(model: UNet2DModel, none: int | None) -> LossOf:
    loss = Velocity(none)

    def loss_of(images: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        _, channels, height, width = images.shape
        drawn = loss.draw(1, len(images), (channels, height, width), generator)
        return loss(model, images, labels, tuple(part[0] for part in drawn)).mean()

    return loss_of
