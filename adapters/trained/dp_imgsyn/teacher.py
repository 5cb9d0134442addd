"""The classifier that is trained on the private records: any network with GroupNorm."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from adapters.trained.plain import torch_seed
from pe.errors import MissingDependency, RecipeError

_WIDTHS = (16, 32, 32)
_GROUPS = 4
_LARGE = 64


def make_teacher(kind: str, channels: int, side: int, classes: int, seed: int) -> nn.Module:
    """A new classifier: float32 (n, classes) from n×channels×h×w.

    Args:
        kind: `small`: three convolutions; `resnet18`; or `package.module:function`, a function of your own that takes
            the numbers of channels and of classes.
        channels: of the images.
        side: the images' shorter side, pixels.
        classes: how many.
        seed: of the weights, through PyTorch's generator.

    Raises:
        RecipeError: an unknown kind, or a network without GroupNorm.
        MissingDependency: resnet18 needs torchvision.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "teacher/weights"))
        if kind == "small":
            model: nn.Module = _small(channels, classes)
        elif kind == "resnet18":
            model = _resnet18(channels, side, classes)
        else:
            model = _own(kind)(channels, classes)
    if not any(isinstance(module, nn.GroupNorm) for module in model.modules()):
        raise RecipeError(
            f"teacher: '{kind}' has no GroupNorm layer, and moments of what enters such layers are what images are "
            "aligned with: put GroupNorm where it normalises."
        )
    return model


class CrossEntropy:
    """A `Loss` of DP-SGD: cross-entropy of shifted copies of a record."""

    def __init__(self, shift: int) -> None:
        self._shift = shift

    def draw(
        self, records: int, draws: int, shape: tuple[int, int, int], generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        """Shifts down and to the right, int64 (records, draws, 2)."""
        size, device = (records, draws, 2), generator.device
        return (torch.randint(-self._shift, self._shift + 1, size, generator=generator, device=device),)

    def __call__(
        self, model: Callable[..., Any], image: Tensor, label: Tensor, randomness: tuple[Tensor, ...]
    ) -> Tensor:
        """The losses, (draws,), of ONE record."""
        (shifts,) = randomness
        _, height, width = image.shape
        down = (torch.arange(height, device=image.device) - shifts[:, :1]).clamp(0, height - 1)
        right = (torch.arange(width, device=image.device) - shifts[:, 1:]).clamp(0, width - 1)
        copies = image[:, down[:, :, None], right[:, None, :]].movedim(0, 1)
        return functional.cross_entropy(model(copies), label.expand(len(shifts)), reduction="none")


def _small(channels: int, classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    before = channels
    for i, width in enumerate(_WIDTHS):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.GroupNorm(_GROUPS, width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if i < len(_WIDTHS) - 1 else []
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(before * 4, classes))


def _resnet18(channels: int, side: int, classes: int) -> nn.Module:
    """torchvision's, with GroupNorm; small images are not shrunk at the entry."""
    try:
        from torchvision.models import resnet18
    except ImportError as error:
        raise MissingDependency.of("torchvision", "trained", "The teacher 'resnet18'") from error

    model: nn.Module = resnet18(num_classes=classes, norm_layer=lambda width: nn.GroupNorm(min(32, width // 4), width))
    if side < _LARGE:
        model.conv1, model.maxpool = nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.Identity()
    elif channels != 3:
        model.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    return model


def _own(name: str) -> Callable[[int, int], nn.Module]:
    module, colon, function = name.partition(":")
    try:
        if not colon:
            raise ImportError(f"'{name}' is no name of the form package.module:function")
        found: Callable[[int, int], nn.Module] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise RecipeError(
            f"teacher: '{name}' cannot be had ({error}): take small, resnet18 or package.module:function."
        ) from error
    return found
