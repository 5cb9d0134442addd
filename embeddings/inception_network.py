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


def _chain(module: nn.Module, names: Sequence[str], inputs: int, steps: Sequence[Step], last_stride: int = 1) -> int:
    """Add a convolution of each name to the module, one after the other; return the channels that come out."""
    for place, (name, (outputs, kernel, padding)) in enumerate(zip(names, steps, strict=True), start=1):
        stride = last_stride if place == len(steps) else 1
        module.add_module(name, _Convolution(inputs, outputs, kernel, padding, stride))
        inputs = outputs
    return inputs


def _along(module: nn.Module, names: Sequence[str], x: Tensor) -> Tensor:
    """Run the convolutions of these names on x."""
    for name in names:
        x = module.get_submodule(name)(x)
    return x


def _numbered(name: str, count: int) -> list[str]:
    return [f"{name}_{place}" for place in range(1, count + 1)]


def _mean(x: Tensor) -> Tensor:
    return functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)


_ACROSS: tuple[Side, Side] = ((1, 7), (0, 3))
_DOWN: tuple[Side, Side] = ((7, 1), (3, 0))


class _Block(nn.Module):
    """Chains over the same input, and the input pooled; concatenated. A chain of one step carries its name alone.

    With `pooled` channels the input is pooled by the mean, and convolved; without, the block halves its sides: the last
    convolutions have stride 2, and the input is pooled by the maximum.
    """

    def __init__(self, inputs: int, chains: dict[str, Sequence[Step]], pooled: int | None = None) -> None:
        super().__init__()
        self._chains = [[name] if len(steps) == 1 else _numbered(name, len(steps)) for name, steps in chains.items()]
        for names, steps in zip(self._chains, chains.values(), strict=True):
            _chain(self, names, inputs, steps, 2 if pooled is None else 1)
        self.branch_pool = None if pooled is None else _Convolution(inputs, pooled, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = functional.max_pool2d(x, 3, 2) if self.branch_pool is None else self.branch_pool(_mean(x))
        return torch.cat([*(_along(self, names, x) for names in self._chains), pooled], 1)


class _Fanned(nn.Module):
    """The 8×8 blocks: each chain ends in a 1×3 and a 3×1 convolution side by side."""

    def __init__(self, inputs: int, pool: Pool) -> None:
        super().__init__()
        self.branch1x1 = _Convolution(inputs, 320, 1)
        for name, steps in (("branch3x3", [(384, 1, 0)]), ("branch3x3dbl", [(448, 1, 0), (384, 3, 1)])):
            outputs = _chain(self, _numbered(name, len(steps)), inputs, steps)
            last = len(steps) + 1
            self.add_module(f"{name}_{last}a", _Convolution(outputs, 384, (1, 3), (0, 1)))
            self.add_module(f"{name}_{last}b", _Convolution(outputs, 384, (3, 1), (1, 0)))
        self.branch_pool = _Convolution(inputs, 192, 1)
        self._pool = pool

    def forward(self, x: Tensor) -> Tensor:
        branches = [self.branch1x1(x)]
        for name, length in (("branch3x3", 1), ("branch3x3dbl", 2)):
            end = _along(self, _numbered(name, length), x)
            branches += [self.get_submodule(f"{name}_{length + 1}{side}")(end) for side in "ab"]
        pooled = _mean(x) if self._pool == "mean" else functional.max_pool2d(x, 3, 1, 1)
        return torch.cat([*branches, self.branch_pool(pooled)], 1)


def _block_35(inputs: int, pooled: int) -> _Block:
    chains: dict[str, Sequence[Step]] = {
        "branch1x1": [(64, 1, 0)],
        "branch5x5": [(48, 1, 0), (64, 5, 2)],
        "branch3x3dbl": [(64, 1, 0), (96, 3, 1), (96, 3, 1)],
    }
    return _Block(inputs, chains, pooled)


def _block_17(width: int) -> _Block:
    chains: dict[str, Sequence[Step]] = {
        "branch1x1": [(192, 1, 0)],
        "branch7x7": [(width, 1, 0), (width, *_ACROSS), (192, *_DOWN)],
        "branch7x7dbl": [
            (width, 1, 0), (width, *_DOWN), (width, *_ACROSS), (width, *_DOWN), (192, *_ACROSS),
        ],
    }  # fmt: skip
    return _Block(768, chains, 192)


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
        self.Mixed_6a = _Block(288, {"branch3x3": [(384, 3, 0)], "branch3x3dbl": [(64, 1, 0), (96, 3, 1), (96, 3, 0)]})
        self.Mixed_6b, self.Mixed_6c = _block_17(128), _block_17(160)
        self.Mixed_6d, self.Mixed_6e = _block_17(160), _block_17(192)
        self.Mixed_7a = _Block(
            768,
            {
                "branch3x3": [(192, 1, 0), (320, 3, 0)],
                "branch7x7x3": [(192, 1, 0), (192, *_ACROSS), (192, *_DOWN), (192, 3, 0)],
            },
        )
        self.Mixed_7b, self.Mixed_7c = _Fanned(1280, "mean"), _Fanned(2048, "max")
        self.fc = nn.Linear(FEATURES, CLASSES)  # of the published weights; not used

    def forward(self, x: Tensor) -> Tensor:
        """Return n×2048, from prepared images."""
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = functional.max_pool2d(x, 3, 2)
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x))
        x = functional.max_pool2d(x, 3, 2)
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x)))
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))
        return x.mean(dim=(2, 3))
