"""PrivImage's semantic query function: a classifier of public images, asked of one image at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from adapters.trained.plain import tensors, torch_seed, train
from adapters.trained.public import PublicSet
from adapters.trained.settings import QueryTraining

_WIDTH = 32
_GRID = 3


@dataclass(frozen=True, eq=False)
class Query:
    """Which public labels an image is most like.

    Attributes:
        classifier: float32 (n, semantics) from n×c×h×w in [−1, 1]; it is not trained any more.
        device: where the classifier is.
    """

    classifier: nn.Module
    device: torch.device

    def tops(self, image: npt.NDArray[np.uint8], k: int) -> npt.NDArray[np.int64]:
        """The k most probable labels of one image, uint8 h×w×c: int64 (k,), all different.

        One image is asked at a time, so that the answer depends on no other, to the last bit.
        """
        with torch.no_grad():
            logits = self.classifier(tensors(image[None], self.device))[0].double()
        found: npt.NDArray[np.int64] = logits.log_softmax(dim=0).topk(k).indices.cpu().numpy()
        return found


class Small(nn.Module):
    """Three convolutions with GroupNorm, and a dense layer: float32 (n, semantics) from n×c×h×w."""

    def __init__(self, channels: int, semantics: int) -> None:
        """A classifier of images of so many channels into so many public labels."""
        super().__init__()
        self.layers = nn.Sequential(
            *_block(channels, _WIDTH),
            nn.MaxPool2d(2),
            *_block(_WIDTH, 2 * _WIDTH),
            nn.MaxPool2d(2),
            *_block(2 * _WIDTH, 2 * _WIDTH),
            nn.AdaptiveAvgPool2d(_GRID),
            nn.Flatten(),
            nn.Linear(2 * _WIDTH * _GRID**2, semantics),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        found: Tensor = self.layers(images)
        return found


def train_query(
    public: PublicSet, settings: QueryTraining, seed: int, device: torch.device, step_done: Callable[[], None]
) -> Query:
    """The query function of a labelled public set.

    Raises:
        RecipeError: memory does not suffice.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "query/weights"))
        model = Small(public.images.shape[3], public.classes).to(device)

    def loss_of(images: Tensor, labels: Tensor, _: torch.Generator) -> Tensor:
        return functional.cross_entropy(model(images), labels)

    return Query(train(model, public, settings, loss_of, seed, "query", step_done).eval(), device)


def _block(channels: int, width: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()]
