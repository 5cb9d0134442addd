"""Convolutional classifiers in torch: ResNet-9 and wide ResNets. Imported on use only."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def network(name: str, channels: int, classes: int) -> nn.Module:
    """`resnet9`, or `wrn-D-K`: a wide ResNet of depth D = 6n + 4 and width K; images of any size from 8×8 on."""
    if name == "resnet9":
        return _resnet9(channels, classes)
    _, depth, width = name.split("-")
    return _wide_resnet(int(depth), int(width), channels, classes)


def _resnet9(channels: int, classes: int) -> nn.Module:
    """Nine layers, after the residual network of the DAWNBench entries: 64, 128, 256, 512 channels."""
    return nn.Sequential(
        _convolution(channels, 64),
        _convolution(64, 128),
        nn.MaxPool2d(2),
        _Sum(_convolution(128, 128), _convolution(128, 128)),
        _convolution(128, 256),
        nn.MaxPool2d(2),
        _convolution(256, 512),
        nn.MaxPool2d(2),
        _Sum(_convolution(512, 512), _convolution(512, 512)),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes),
    )


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class _Sum(nn.Module):
    """x + f(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)  # type: ignore[no-any-return]


def _wide_resnet(depth: int, width: int, channels: int, classes: int) -> nn.Module:
    """WRN-depth-width (Zagoruyko & Komodakis 2016), without dropout."""
    if depth < 10 or (depth - 4) % 6 or width < 1:
        raise ValueError(f"A wide ResNet has a depth of 6n + 4 ≥ 10 and a width ≥ 1, not {depth} and {width}.")
    widths = [16, 16 * width, 32 * width, 64 * width]
    layers: list[nn.Module] = [nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)]
    for group, stride in ((1, 1), (2, 2), (3, 2)):
        for block in range((depth - 4) // 6):
            inputs = widths[group - 1] if block == 0 else widths[group]
            layers.append(_WideBlock(inputs, widths[group], stride if block == 0 else 1))
    layers += [nn.BatchNorm2d(widths[3]), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    made = nn.Sequential(*layers, nn.Linear(widths[3], classes))
    for module in made.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return made


class _WideBlock(nn.Module):
    """Pre-activated: BN, ReLU, 3×3, BN, ReLU, 3×3, and a short cut that is 1×1 where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        changes = inputs != outputs or stride != 1
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = functional.relu(self.norm1(x))
        kept = x if self.shortcut is None else self.shortcut(active)
        return kept + self.conv2(functional.relu(self.norm2(self.conv1(active))))  # type: ignore[no-any-return]


class MovingAverage:
    """An exponential moving average (EMA) of a network's weights and running statistics.

    Attributes:
        network: holds the average, in evaluation mode.
    """

    def __init__(self, followed: nn.Module, copied: nn.Module, decay: float) -> None:
        """Follows one network with another of the same shape; `decay` in [0, 1)."""
        self.network, self._followed, self._decay, self._steps = copied, followed, decay, 0
        copied.load_state_dict(followed.state_dict())
        copied.eval()

    @torch.no_grad()
    def update(self) -> None:
        """Move towards the followed network; in the first steps faster, so that the start is soon forgotten."""
        self._steps += 1
        decay = min(self._decay, self._steps / (10 + self._steps))
        for mine, its in zip(self.network.state_dict().values(), self._followed.state_dict().values(), strict=True):
            if mine.is_floating_point():
                mine.lerp_(its, 1 - decay)
            else:
                mine.copy_(its)
