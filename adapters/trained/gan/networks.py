"""The discriminator, and the loss of one record that DP-SGD trains it by."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from adapters.trained.dp_sgd.gradients import Randomness
from adapters.trained.noisy_mean.generator import CODE, Generator
from adapters.trained.plain import tensors
from pe.errors import RecipeError

_WIDTHS = 16, 32
_GROUPS = 4
_FILE = "discriminator.safetensors"


class Discriminator(nn.Module):
    """Two strided convolutions with GroupNorm, and a dense layer that the label shifts: the logit of "real"."""

    def __init__(self, classes: int, shape: tuple[int, int, int]) -> None:
        """For images of `shape`, height, width and channels, of so many labels."""
        super().__init__()
        height, across, channels = shape
        widths = (channels, *_WIDTHS)
        self.layers = nn.ModuleList(nn.Conv2d(*pair, 5, stride=2, padding=2) for pair in pairwise(widths))
        self.norms = nn.ModuleList(nn.GroupNorm(_GROUPS, width) for width in _WIDTHS)
        inner = _WIDTHS[-1] * math.ceil(height / 4) * math.ceil(across / 4)
        self.last = nn.Linear(inner, 1)
        self.kind = nn.Embedding(classes, inner)
        nn.init.zeros_(self.kind.weight)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Logits, (n,), of float32 n×c×h×w images in [−1, 1] with labels int64 (n,)."""
        x = images
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = functional.leaky_relu(norm(layer(x)), 0.2)
        x = x.flatten(1)
        found: Tensor = self.last(x)[:, 0] + (self.kind(labels) * x).sum(dim=1)
        return found


class Told:
    """The logistic loss of telling a record from made images (Goodfellow et al. 2014); a `Loss` of DP-SGD.

    Args:
        generator: makes the images; it is a function of public values and of what was released before, and is not
            trained by this loss.
        classes: how many labels there are.
    """

    def __init__(self, generator: Generator, classes: int) -> None:
        self._generator, self._classes = generator, classes

    def draw(self, records: int, draws: int, shape: tuple[int, int, int], generator: torch.Generator) -> Randomness:
        """Made images of random labels, float32 (records, draws, c, h, w) in [−1, 1], and the labels."""
        count = records * draws
        codes = torch.randn((count, CODE), generator=generator)
        labels = torch.randint(self._classes, (count,), generator=generator)
        images = made(self._generator, codes, labels)
        return images.reshape(records, draws, *shape), labels.reshape(records, draws)

    def __call__(self, model: Callable[..., Any], image: Tensor, label: Tensor, randomness: Randomness) -> Tensor:
        """The losses, (draws,): of the record's image and label, and of a made one for each draw."""
        images, labels = randomness
        real = model(image[None], label[None])
        return functional.softplus(-real) + functional.softplus(model(images, labels))


def made(generator: Generator, codes: Tensor, labels: Tensor) -> Tensor:
    """The images that it makes now, float32 n×c×h×w in [−1, 1]; each depends on its own code and label alone."""
    training = generator.training
    with torch.no_grad():
        images: Tensor = generator.eval()(codes.to(_place(generator)), labels.to(_place(generator)))
    generator.train(training)
    return images.permute(0, 3, 1, 2) * 2 - 1


def write_discriminator(model: nn.Module, folder: Path) -> None:
    """Put a fitted discriminator into `folder`: it was released, and a membership attack asks it."""
    from safetensors.torch import save_file

    save_file({name: value.cpu().contiguous() for name, value in model.state_dict().items()}, folder / _FILE)


def read_discriminator(folder: Path, classes: int, shape: tuple[int, int, int]) -> Discriminator:
    """The discriminator in `folder`.

    Raises:
        RecipeError: there is none, or it is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    model = Discriminator(classes, shape)
    try:
        model.load_state_dict(load_file(folder / _FILE))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise RecipeError(f"{folder} holds no fitted discriminator: fit it in a new run.") from error
    return model.eval()


def real_losses(
    model: Discriminator, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """The loss of calling each image real, float64 (n,), each seen alone."""
    found = np.empty(len(images))
    with torch.inference_mode():
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            logit = model(tensors(image[None], torch.device("cpu")), torch.tensor([label]))
            found[i] = float(functional.softplus(-logit))
    return found


def _place(module: nn.Module) -> torch.device:
    return next(module.parameters()).device
