"""Training on public images: Adam, the same for all models that are trained on them first."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from adapters.trained.fit import Fit, Recording, StepDone
from adapters.trained.public import PublicSet
from adapters.trained.settings import PUBLIC_IMAGES, PlainTraining
from adapters.trained.torch_tools import torch_seed
from pe.data.arrays import ImageShape
from pe.errors import RecipeError
from pe.fit.trainer import DryRun
from pe.plugins.devices import raising_for_memory

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Model = TypeVar("Model", bound="nn.Module")

# Trains a network on images by these settings; calls the function after each step, whose exceptions
# end it.
Train = Callable[[PublicSet, PlainTraining, StepDone], object]


# Function of float32 n×c×h×w images in [−1, 1], int64 (n,) labels and a source of randomness: the
# mean loss.
LossOf = Callable[["Tensor", "Tensor", "torch.Generator"], "Tensor"]

# The learning rate rises during the first 1/_RISING of the steps.
_RISING = 20

_LARGEST_GRADIENT = 1.0
_DECAY = 0.999


def pretrain(
    fit: Fit,
    model: nn.Module,
    images: Callable[[], PublicSet],
    train: Train,
    settings: PlainTraining,
    name: str = PUBLIC_IMAGES,
) -> None:
    """Train `model` on public images, or load the weights that an interrupted fit kept.

    Args:
        fit: of which it is a part. A `Recording` measures it.
        model: changed in place.
        images: gives the images; not called if the weights were kept.
        train: trains `model` on them.
        settings: of the training.
        name: of the images, in messages and in the name of the file of weights.
    """
    from safetensors.torch import load, save

    if isinstance(fit, Recording):
        fit.add_cost(_measured(model, train, settings, name, fit.terms.image_shape))
        return

    def trained() -> bytes:
        public = images()
        with fit.steps(f"training on {name}", settings.steps) as step_done:
            train(public, settings, step_done)
        return save({key: value.cpu().contiguous() for key, value in model.state_dict().items()})

    model.load_state_dict(
        load(fit.kept(f"pretrained on {name}.safetensors".replace(" ", "-"), trained))
    )


def _measured(
    model: nn.Module,
    train: Train,
    settings: PlainTraining,
    name: str,
    shape: ImageShape,
) -> DryRun:
    """Return what a training costs, by three steps on random images.

    Raise RecipeError if memory does not suffice.
    """
    from adapters.trained.dp_sgd.training import peak_memory

    made = np.random.default_rng(0).integers(0, 256, (settings.batch, *shape), dtype=np.uint8)
    public = PublicSet.of_names(made, ())
    times = [time.perf_counter()]

    def steps(count: int) -> None:
        few = settings.model_copy(update={"steps": count})
        train(public, few, lambda: times.append(time.perf_counter()))

    memory = peak_memory(
        next(model.parameters()).device, lambda: steps(1)
    )  # when libraries load, too
    steps(2)
    parameters = sum(value.numel() for value in model.parameters())
    return DryRun(name, settings.steps, times[-1] - times[-2], parameters, memory)


def train(
    model: Model,
    public: PublicSet,
    settings: PlainTraining,
    loss_of: LossOf,
    seed: int,
    phase: str,
    step_done: StepDone,
) -> Model:
    """Train `model`, and give it the moving average of its weights.

    On a CPU, the arguments determine every bit. `seed` and the training's name `phase` give its
    randomness. `step_done` is called after every step, and may end the training by an exception.
    Raises RecipeError if memory does not suffice.
    """
    import torch

    device = next(model.parameters()).device
    random = torch.Generator(device).manual_seed(torch_seed(seed, phase))
    batches = np.random.default_rng(torch_seed(seed, f"{phase}/batches"))
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: _rate_at(step, settings.steps)
    )
    average = [parameter.detach().clone() for parameter in model.parameters()]
    for step in range(settings.steps):
        optimiser.zero_grad()
        with raising_for_memory(_too_large(settings.batch, device)):
            images, labels = public.draw(batches, settings.batch, device)
            loss_of(images, labels, random).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), _LARGEST_GRADIENT)
        optimiser.step()
        schedule.step()
        for mean, parameter in zip(average, model.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 1 - min(_DECAY, (step + 1) / (step + 10)))
        step_done()
    with torch.no_grad():
        for mean, parameter in zip(average, model.parameters(), strict=True):
            parameter.copy_(mean)
    return model


def _rate_at(step: int, steps: int) -> float:
    """Return the learning rate at a step, as a share of the highest.

    It rises, then falls as a cosine.
    """
    return min(1.0, (step + 1) * _RISING / steps) * 0.5 * (1 + math.cos(math.pi * step / steps))


def _too_large(batch: int, device: torch.device) -> RecipeError:
    return RecipeError(
        f"{device} has no memory for a batch of {batch} public images. Set `batch: "
        f"{max(1, batch // 2)}`, or use a smaller network."
    )
