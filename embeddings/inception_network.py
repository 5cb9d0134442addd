"""The Inception-v3 of 2015-12-05, as FID is defined on it (Szegedy et al. 2015; Heusel et al. 2017).

It differs from today's Inception-v3 in three places: average pooling leaves the padding out of the
mean, the last block pools by maximum, and there are 1,008 classes. Modules are named as in the published
port of the TensorFlow weights. Everything happens on images of 299×299.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

FEATURES, CLASSES = 2048, 1008

Side = int | tuple[int, int]
Step = tuple[int, Side, Side]  # output channels, kernel, padding
Pool = Literal["mean", "max"]


class _Convolution(nn.Module):
    """Convolution without bias, normalisation by stored statistics, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: Side, padding: Side = 0, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)))


def _chain(module: nn.Module, name: str, inputs: int, steps: Sequence[Step], last_stride: int = 1) -> int:
    """Add `name`_1, `name`_2, … to the module, one after the other; return the channels that come out."""
    for place, (outputs, kernel, padding) in enumerate(steps, start=1):
        stride = last_stride if place == len(steps) else 1
        module.add_module(f"{name}_{place}", _Convolution(inputs, outputs, kernel, padding, stride))
        inputs = outputs
    return inputs


def _along(module: nn.Module, name: str, length: int, x: Tensor) -> Tensor:
    """Run the chain `name` of this length on x."""
    for place in range(1, length + 1):
        x = module.get_submodule(f"{name}_{place}")(x)
    return x


def _mean(x: Tensor) -> Tensor:
    return functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)


_ACROSS: tuple[Side, Side] = ((1, 7), (0, 3))
_DOWN: tuple[Side, Side] = ((7, 1), (3, 0))


class _Parallel(nn.Module):
    """Chains side by side over the same input, and a pooled branch with a 1×1 convolution; concatenated."""

    def __init__(self, inputs: int, first: int, chains: dict[str, Sequence[Step]], pooled: int) -> None:
        super().__init__()
        self.branch1x1 = _Convolution(inputs, first, 1)
        for name, steps in chains.items():
            _chain(self, name, inputs, steps)
        self.branch_pool = _Convolution(inputs, pooled, 1)
        self._lengths = {name: len(steps) for name, steps in chains.items()}

    def forward(self, x: Tensor) -> Tensor:
        chains = [_along(self, name, length, x) for name, length in self._lengths.items()]
        return torch.cat([self.branch1x1(x), *chains, self.branch_pool(_mean(x))], 1)


class _Halving(nn.Module):
    """Chains whose last convolution has stride 2, and the input pooled by maximum; concatenated.

    A chain of one step carries its name alone.
    """

    def __init__(self, inputs: int, chains: dict[str, Sequence[Step]]) -> None:
        super().__init__()
        self._lengths = {name: len(steps) for name, steps in chains.items()}
        for name, steps in chains.items():
            if len(steps) == 1:
                outputs, kernel, padding = steps[0]
                self.add_module(name, _Convolution(inputs, outputs, kernel, padding, 2))
            else:
                _chain(self, name, inputs, steps, last_stride=2)

    def forward(self, x: Tensor) -> Tensor:
        chains = [
            self.get_submodule(name)(x) if length == 1 else _along(self, name, length, x)
            for name, length in self._lengths.items()
        ]
        return torch.cat([*chains, functional.max_pool2d(x, 3, 2)], 1)


class _Fanned(nn.Module):
    """The 8×8 blocks: each chain ends in a 1×3 and a 3×1 convolution side by side."""

    def __init__(self, inputs: int, pool: Pool) -> None:
        super().__init__()
        self.branch1x1 = _Convolution(inputs, 320, 1)
        for name, steps in (("branch3x3", [(384, 1, 0)]), ("branch3x3dbl", [(448, 1, 0), (384, 3, 1)])):
            outputs = _chain(self, name, inputs, steps)
            last = len(steps) + 1
            self.add_module(f"{name}_{last}a", _Convolution(outputs, 384, (1, 3), (0, 1)))
            self.add_module(f"{name}_{last}b", _Convolution(outputs, 384, (3, 1), (1, 0)))
        self.branch_pool = _Convolution(inputs, 192, 1)
        self._pool = pool

    def forward(self, x: Tensor) -> Tensor:
        branches = [self.branch1x1(x)]
        for name, length in (("branch3x3", 1), ("branch3x3dbl", 2)):
            end = _along(self, name, length, x)
            branches += [self.get_submodule(f"{name}_{length + 1}{side}")(end) for side in "ab"]
        pooled = _mean(x) if self._pool == "mean" else functional.max_pool2d(x, 3, 1, 1)
        return torch.cat([*branches, self.branch_pool(pooled)], 1)


def _block_35(inputs: int, pooled: int) -> _Parallel:
    chains: dict[str, Sequence[Step]] = {
        "branch5x5": [(48, 1, 0), (64, 5, 2)],
        "branch3x3dbl": [(64, 1, 0), (96, 3, 1), (96, 3, 1)],
    }
    return _Parallel(inputs, 64, chains, pooled)


def _block_17(width: int) -> _Parallel:
    chains: dict[str, Sequence[Step]] = {
        "branch7x7": [(width, 1, 0), (width, *_ACROSS), (192, *_DOWN)],
        "branch7x7dbl": [
            (width, 1, 0), (width, *_DOWN), (width, *_ACROSS), (width, *_DOWN), (192, *_ACROSS),
        ],
    }  # fmt: skip
    return _Parallel(768, 192, chains, 192)


class InceptionNetwork(nn.Module):
    """Images n×3×299×299 in [−1, 1) → n×2048, the mean over the last 8×8 maps."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = _Convolution(3, 32, 3, stride=2)
        self.Conv2d_2a_3x3 = _Convolution(32, 32, 3)
        self.Conv2d_2b_3x3 = _Convolution(32, 64, 3, 1)
        self.Conv2d_3b_1x1 = _Convolution(64, 80, 1)
        self.Conv2d_4a_3x3 = _Convolution(80, 192, 3)
        self.Mixed_5b, self.Mixed_5c, self.Mixed_5d = _block_35(192, 32), _block_35(256, 64), _block_35(288, 64)
        self.Mixed_6a = _Halving(
            288, {"branch3x3": [(384, 3, 0)], "branch3x3dbl": [(64, 1, 0), (96, 3, 1), (96, 3, 0)]}
        )
        self.Mixed_6b, self.Mixed_6c = _block_17(128), _block_17(160)
        self.Mixed_6d, self.Mixed_6e = _block_17(160), _block_17(192)
        self.Mixed_7a = _Halving(
            768,
            {
                "branch3x3": [(192, 1, 0), (320, 3, 0)],
                "branch7x7x3": [(192, 1, 0), (192, *_ACROSS), (192, *_DOWN), (192, 3, 0)],
            },
        )
        self.Mixed_7b, self.Mixed_7c = _Fanned(1280, "mean"), _Fanned(2048, "max")
        self.fc = nn.Linear(FEATURES, CLASSES)  # of the published weights; no use is made of it

    def forward(self, x: Tensor) -> Tensor:
        """n×2048, from prepared images."""
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = functional.max_pool2d(x, 3, 2)
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x))
        x = functional.max_pool2d(x, 3, 2)
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x)))
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))
        return x.mean(dim=(2, 3))
