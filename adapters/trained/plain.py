"""Plain training on public images: Adam, the same for all that is trained on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor, nn

from adapters.trained.public import PublicSet
from adapters.trained.settings import PlainTraining
from pe.data.samples import generator as seeded
from pe.errors import RecipeError
from pe.plugins.devices import memory_refused

Model = TypeVar("Model", bound=nn.Module)
LossOf = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""The mean loss of float32 n×c×h×w images in [−1, 1] and int64 (n,) labels; its randomness from the generator."""

_RISING = 20
"""The rate rises in one of so many parts of the steps."""

_LARGEST_GRADIENT = 1.0
_DECAY = 0.999


def train(
    model: Model,
    public: PublicSet,
    settings: PlainTraining,
    loss_of: LossOf,
    seed: int,
    phase: str,
    step_done: Callable[[], None],
) -> Model:
    """`model` with the moving average of its weights; on a CPU, settled to the last bit by the arguments.

    Args:
        model: on the device where it is to be trained.
        public: what it is trained on.
        settings: how.
        loss_of: what is to be small.
        seed: the recipe's.
        phase: what the training is for.
        step_done: called after every step; what it raises ends the training.

    Raises:
        RecipeError: memory does not suffice.
    """
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(torch_seed(seed, phase))
    batches = np.random.default_rng(torch_seed(seed, f"{phase}/batches"))
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate_at(step, settings.steps))
    average = [parameter.detach().clone() for parameter in model.parameters()]
    for step in range(settings.steps):
        chosen = batches.integers(len(public.images), size=settings.batch)
        optimiser.zero_grad()
        try:
            images, labels = tensors(public.images[chosen], device), torch.from_numpy(public.labels[chosen]).to(device)
            loss_of(images, labels, generator).backward()  # type: ignore[no-untyped-call]
        except (RuntimeError, MemoryError) as error:
            if memory_refused(error):
                raise _too_large(settings.batch, device) from error
            raise
        nn.utils.clip_grad_norm_(model.parameters(), _LARGEST_GRADIENT)
        optimiser.step()
        schedule.step()
        for mean, parameter in zip(average, model.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 1 - min(_DECAY, (step + 1) / (step + 10)))
        step_done()
    with torch.no_grad():
        for mean, parameter in zip(average, model.parameters(), strict=True):
            parameter.copy_(mean)
    return model


def tensors(images: npt.NDArray[np.uint8], device: torch.device) -> Tensor:
    """float32 n×c×h×w in [−1, 1]."""
    return torch.from_numpy(images).to(device).permute(0, 3, 1, 2).float() / 127.5 - 1.0


def torch_seed(seed: int, phase: str) -> int:
    """A seed for PyTorch's generators, for one phase of the run; public."""
    return int(seeded(seed, f"diffusion/{phase}").integers(2**63))


def rate_at(step: int, steps: int) -> float:
    """Of the highest rate, the share at a step: it rises, then falls as a cosine."""
    return min(1.0, (step + 1) * _RISING / steps) * 0.5 * (1 + math.cos(math.pi * step / steps))


def _too_large(batch: int, device: torch.device) -> RecipeError:
    if batch > 1:
        return RecipeError(
            f"A batch of {batch} public images is more than {device} has memory for: take batch: {batch // 2}."
        )
    return RecipeError(f"{device} has no memory to train on one public image: take a smaller network.")


# Classes for records that have no labels, or only coarse ones: by centroids of PUBLIC images.


Images = npt.NDArray[np.uint8]

_GRID = 16
"""Cells a side, at most, over whose means images are compared."""

_MOST = 20_000
"""Public images that the centroids are found from, at most."""


@dataclass(frozen=True, eq=False)
class Clusters:
    """The nearest of k centroids, which k-means found among public images.

    Guarantee: an image's cluster is a function of that image and of public values alone; so a record's class is a part
    of the record, nothing is released, and the ledger needs no entry. (Centroids of private images would need one.)

    Attributes:
        centroids: float64 (k, d).
    """

    centroids: npt.NDArray[np.float64]

    @classmethod
    def of(cls, public: PublicSet, count: int, seed: int) -> Clusters:
        """k-means++ and Lloyd's steps over public images, evenly chosen where there are many.

        Raises:
            RecipeError: there are fewer public images than clusters.
        """
        if len(public.images) < count:
            raise RecipeError(
                f"clusters is {count}, and the public set has {len(public.images)} images: take fewer clusters."
            )
        chosen = np.unique(np.linspace(0, len(public.images) - 1, _MOST).astype(np.int64))
        features = np.stack([_features(image) for image in public.images[chosen]])
        rng = np.random.default_rng(torch_seed(seed, "clusters"))
        centroids, _ = kmeans2(features, count, minit="++", rng=rng)
        return cls(centroids.astype(np.float64))

    def of_image(self, image: Images) -> int:
        """The cluster of one image, uint8 h×w×c; ties go to the first."""
        distances = ((self.centroids - _features(image)) ** 2).sum(axis=1)
        return int(distances.argmin())

    def split(self, images: Images, labels: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        """Each label split into k classes, int32 (n,): label·k + cluster."""
        found = np.array([self.of_image(image) for image in images], dtype=np.int32)
        return (labels * len(self.centroids) + found).astype(np.int32)


def _features(image: Images) -> npt.NDArray[np.float64]:
    """Means over a grid of cells, in [0, 1]."""
    rows, columns = (np.linspace(0, side, min(side, _GRID) + 1).astype(np.int64)[:-1] for side in image.shape[:2])
    sums = np.add.reduceat(np.add.reduceat(image.astype(np.float64), rows, axis=0), columns, axis=1)
    ones = np.ones(image.shape[:2])
    sizes = np.add.reduceat(np.add.reduceat(ones, rows, axis=0), columns, axis=1)
    return (sums / sizes[..., None] / 255).ravel()
