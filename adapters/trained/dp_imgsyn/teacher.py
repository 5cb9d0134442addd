"""The classifier that is trained on the private records: any network with GroupNorm."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from adapters.trained.dp_imgsyn.sections import TEACHERS
from adapters.trained.dp_sgd.gradients import record_gradients
from adapters.trained.dp_sgd.suitable import check_stateless, trained_parameters
from adapters.trained.plain import torch_seed
from pe.errors import MissingDependency, PluginError, RecipeError

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


def check_own(kind: str, shape: tuple[int, int, int], classes: int, loss: CrossEntropy) -> None:
    """Check, on noise, that a teacher can be trained and read as the guarantee has it.

    Args:
        kind: see `make_teacher`; the toolkit's own need no trial.
        shape: height, width, channels of the images.
        classes: how many.
        loss: of its training.

    Raises:
        RecipeError: see `make_teacher`.
        PluginError: it cannot be trained by DP-SGD, keeps state, or makes no logits of such images.
    """
    if kind in TEACHERS:
        return
    height, width, channels = shape
    model = make_teacher(kind, channels, min(height, width), classes, seed=0)
    parameters = trained_parameters(model)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand((3, channels, height, width), generator=generator) * 2 - 1
    drawn = loss.draw(3, 1, (channels, height, width), generator)
    try:
        check_stateless(model, images)
        found = tuple(model(images).shape)
        record_gradients(model, loss, parameters, images, torch.zeros(3, dtype=torch.int64), drawn)
    except RuntimeError as error:
        said = str(error).strip().splitlines()[0]
        raise PluginError(
            f"teacher: '{kind}' cannot be trained record by record on images of {height}×{width}×{channels} ({said}): "
            "take layers that fit them, and that torch.func.vmap can run."
        ) from error
    if found != (3, classes):
        raise PluginError(
            f"teacher: '{kind}' makes {'×'.join(map(str, found))} numbers of 3 images, not 3×{classes} logits: "
            "let it end in one for each class."
        )


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
