"""The query by a real network: frozen features of EfficientNet-Lite0, and a linear head that public images train."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adapters.trained.plain import rate_at, tensors, torch_seed
from adapters.trained.public import PublicSet
from adapters.trained.sections import QueryTraining
from pe.errors import RecipeError
from pe.plugins.devices import memory_refused
from pe.plugins.efficientnet_lite import load_network, stage_values

SIDE, STAGES, GRID = 64, (3, 5), 4
"""What the head sees: these stages of the network on images of SIDE pixels, averaged over GRID×GRID places."""
_TOGETHER = 128
_LEAST = 1e-4
_DECAY = 1e-3


class Headed(nn.Module):
    """Logits by a linear head on frozen features, which are brought to the public images' mean and spread."""

    def __init__(self, network: nn.Module, features: Tensor, semantics: int) -> None:
        """A head that was never trained, for public images of these features, (m, d)."""
        super().__init__()
        self.network = network
        self._mean, self._spread = features.mean(dim=0), features.std(dim=0, correction=0).clamp(min=_LEAST)
        self.head = nn.Linear(features.shape[1], semantics)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def logits(self, features: Tensor) -> Tensor:
        """Of features, (n, d)."""
        found: Tensor = self.head((features - self._mean) / self._spread)
        return found

    def forward(self, images: Tensor) -> Tensor:
        """Logits of float32 n×c×h×w images in [−1, 1]."""
        return self.logits(features_of(self.network, images))


def features_of(network: nn.Module, images: Tensor) -> Tensor:
    """(n, d) of float32 n×c×h×w images in [−1, 1]."""
    values = stage_values(network, (images + 1) / 2, SIDE, STAGES)
    return torch.cat([functional.adaptive_avg_pool2d(value, GRID).flatten(1) for value in values], dim=1)


def train_head(
    public: PublicSet, settings: QueryTraining, seed: int, device: torch.device, step_done: Callable[[], None]
) -> Headed:
    """The classifier of a labelled public set; its head is trained by Adam, with a little weight decay.

    Raises:
        RecipeError: memory does not suffice for the features of all public images.
        MissingDependency: the network's weights are not installed.
    """
    network = load_network(None, "The query of PrivImage").to(device)
    features, labels = _all_features(network, public, device), torch.from_numpy(public.labels).to(device)
    model = Headed(network, features, public.classes).to(device)
    batches = np.random.default_rng(torch_seed(seed, "query/batches"))
    optimiser = torch.optim.Adam(model.head.parameters(), lr=settings.learning_rate)
    for step in range(settings.steps):
        for group in optimiser.param_groups:
            group["lr"] = settings.learning_rate * rate_at(step, settings.steps)
        chosen = torch.from_numpy(batches.integers(len(features), size=settings.batch)).to(device)
        optimiser.zero_grad()
        loss = functional.cross_entropy(model.logits(features[chosen]), labels[chosen])
        (loss + _DECAY * model.head.weight.square().sum()).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        step_done()
    return model.eval().requires_grad_(False)


def _all_features(network: nn.Module, public: PublicSet, device: torch.device) -> Tensor:
    """(m, d), of the public images."""
    starts = range(0, len(public.images), _TOGETHER)
    try:
        with torch.no_grad():
            parts = (tensors(public.images[start : start + _TOGETHER], device) for start in starts)
            return torch.cat([features_of(network, part) for part in parts])
    except (RuntimeError, MemoryError) as error:
        if memory_refused(error):
            raise RecipeError(
                f"The features of {len(public.images):,} public images are more than {device} has memory for: take "
                "query.network: small, or fewer public images."
            ) from error
        raise
