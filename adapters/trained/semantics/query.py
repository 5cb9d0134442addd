"""PrivImage's semantic query function: a classifier of public images, asked of one image at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy import ndimage
from torch import Tensor, nn
from torch.nn import functional

from adapters.trained.plain import tensors, torch_seed, train
from adapters.trained.public import PublicSet
from adapters.trained.sections import QueryTraining

_WIDTH = 32
_GRID = 3
_SHRUNK = 0.9


@dataclass(frozen=True, eq=False)
class Query:
    """Which public labels an image is most like.

    Attributes:
        classifier: float32 (n, semantics) from n×c×h×w in [−1, 1]; it is not trained any more.
        views: 1: of the image; 2: and of the image shrunk.
        device: where the classifier is.
    """

    classifier: nn.Module
    views: int
    device: torch.device

    def tops(self, image: npt.NDArray[np.uint8], k: int) -> npt.NDArray[np.int64]:
        """The k most probable labels of one image, uint8 h×w×c: int64 (k,), all different.

        One view is asked at a time, so that the answer depends on no other image, to the last bit.
        """
        views = (image, _shrunk(image))[: self.views]
        with torch.no_grad():
            logits = [self.classifier(tensors(view[None], self.device))[0].double() for view in views]
        likely = torch.stack(logits).log_softmax(dim=1).logsumexp(dim=0)
        found: npt.NDArray[np.int64] = likely.topk(k).indices.cpu().numpy()
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
        MissingDependency: the network's weights are not installed.
    """
    if settings.network == "efficientnet":
        from adapters.trained.semantics.headed import train_head

        return Query(train_head(public, settings, seed, device, step_done), settings.views, device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "query/weights"))
        model = Small(public.images.shape[3], public.classes).to(device)

    def loss_of(images: Tensor, labels: Tensor, _: torch.Generator) -> Tensor:
        return functional.cross_entropy(model(images), labels)

    return Query(train(model, public, settings, loss_of, seed, "query", step_done).eval(), settings.views, device)


def _block(channels: int, width: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()]


def _shrunk(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The image at nine tenths of its size, about its middle; its rim goes on to the edge."""
    matrix = np.diag([1 / _SHRUNK, 1 / _SHRUNK, 1])
    middle = np.array([(image.shape[0] - 1) / 2, (image.shape[1] - 1) / 2, 0])
    bent = ndimage.affine_transform(image.astype(np.float32), matrix, middle - matrix @ middle, order=1, mode="nearest")
    return np.asarray(bent.round().clip(0, 255), dtype=np.uint8)
