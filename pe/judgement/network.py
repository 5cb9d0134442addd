"""A small convolutional network, trained until it stops improving. It imports torch on use."""

from __future__ import annotations

import copy
from threading import Lock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pe.data.arrays import Float32Array, Float64Array, UInt8Array
from pe.data.samples import slices

# Public constants, never tuned on private data.
_BATCH = 64
_STEPS = 24  # steps of a pass, where there are images enough
_PASSES = 60
_PATIENCE = 6  # passes without improvement
_RATE = 2e-3
_HELD_OUT = 0.1
_SHIFT = 2  # pixels by which an image is moved

_SEEDING = Lock()  # torch's generator belongs to all threads


class SmallNetwork(nn.Module):
    """Three convolutions and a linear layer, for images of any size."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((channels, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
            layers += [nn.MaxPool2d(2, ceil_mode=True)]
        layers[-1] = nn.AdaptiveMaxPool2d(2)
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, (n, classes)."""
        logits: Tensor = self.layers(images)
        return logits


def guess(images: UInt8Array, targets: Float32Array, test: UInt8Array, seed: int) -> Float64Array:
    """Train on images with class probabilities, and return log-probabilities for test images.

    Args:
        images: uint8 (n, h, w, c).
        targets: float32 (n, classes), rows that sum to 1.
        test: uint8 (m, h, w, c).
        seed: of the first weights and the order of the images.
    """
    rng = np.random.default_rng(seed)
    mean = images.mean(axis=(0, 1, 2)) / 255
    deviation = images.std(axis=(0, 1, 2)) / 255 + 1e-3

    def tensor(pixels: UInt8Array) -> Tensor:
        values = (pixels / np.float32(255) - mean) / deviation
        return torch.from_numpy(values.astype(np.float32)).permute(0, 3, 1, 2)

    order = rng.permutation(len(images))
    held = max(1, round(_HELD_OUT * len(images)))
    validation, rest = order[:held], order[held:]
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = SmallNetwork(images.shape[3], targets.shape[1])
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=1e-2)
    every = torch.from_numpy(targets)
    inputs = tensor(images)
    best = np.inf
    best_network = network
    since = 0
    batch = int(min(max(len(rest) // _STEPS, 16), _BATCH, len(rest)))
    for _ in range(_PASSES):
        network.train()
        for part in slices(len(rest), batch):
            rows = rest[part]
            if len(rows) < 2:
                continue
            moved = torch.roll(
                inputs[rows], tuple(rng.integers(-_SHIFT, _SHIFT + 1, 2).tolist()), (2, 3)
            )
            optimizer.zero_grad()
            loss_here = functional.cross_entropy(network(moved), every[rows])
            loss_here.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        rest = rng.permutation(rest)
        loss = float(-(every[validation] * _logits(network, inputs[validation])).sum(dim=1).mean())
        since += 1
        if loss < best:
            best = loss
            best_network = copy.deepcopy(network)
            since = 0
        if since == _PATIENCE:
            break
    return _logits(best_network, tensor(test)).double().numpy()


@torch.no_grad()
def _logits(network: nn.Module, inputs: Tensor) -> Tensor:
    network.eval()
    blocks = [network(inputs[part]) for part in slices(len(inputs), 512)]
    return torch.cat(blocks).log_softmax(dim=1)
