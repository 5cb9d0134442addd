"""ResNet-9 and its training: SGD, cosine schedule, pad and crop, EMA.

It imports torch, so import it only on use.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from math import ceil

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel

from pe.data.arrays import Float32Array, Float64Array, Int64Array, UInt8Array
from pe.data.images import Images
from pe.data.samples import Array, slices
from pe.errors import RecipeError
from pe.evaluation.labelled import Labelled, NetworkSettings, Predict
from pe.plugins.devices import find_cards

Scale = tuple[Float32Array, Float32Array]
"""Mean and standard deviation of each channel, each float32 (c,)."""

# Public constants, never tuned on private data.
# images of a batch, at most and at least; steps of an epoch, where possible
_BATCH = 128
_SMALLEST = 16
_STEPS = 32
_RATE = 0.1  # highest learning rate, of a full batch, and in proportion of a smaller one
# Nesterov's momentum; weight decay
_MOMENTUM = 0.9
_DECAY = 5e-4
_AVERAGE = 0.999  # decay of the EMA, per step
_TEMPERATURE = (
    10.0  # divides the student's and the teacher's logits under soft labels (Hinton et al. 2015)
)
_PADDING = 8  # a crop moves by at most the image's side over this
_EVALUATED = 512
_LEAST = 1e-12  # probability whose logarithm is taken


def resnet9(channels: int, classes: int) -> nn.Module:
    """Return ResNet-9, after the residual network of the DAWNBench entries.

    Images have any size from 8×8 on.
    """
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
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class _Sum(nn.Module):
    """x + f(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)  # type: ignore[no-any-return]


def _follow(average: Tensor, current: Tensor, updates: Tensor | int) -> Tensor:
    """Return the average, moved towards the network.

    It moves faster in the first steps, so that the start is soon forgotten.
    """
    decay = torch.as_tensor((updates + 1) / (updates + 11)).clamp(max=_AVERAGE)
    return current + (average - current) * decay


def fit_network(
    train: Labelled, validation: Labelled, classes: int, seed: int, settings: NetworkSettings
) -> Predict:
    """Train ResNet-9 and keep the epoch that is most accurate on the validation part.

    All randomness comes from `seed`, and torch's own generators are left as they were.

    Raises:
        RecipeError: the device cannot be used, or torch sees none of the driver's GPUs.
    """
    device = _check_device(settings.device or ("cuda" if find_cards("--device cpu") else "cpu"))
    scale = _scale(train.images)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (
            resnet9(train.images.shape[2], classes).to(device).to(memory_format=torch.channels_last)
        )
    average = AveragedModel(model, avg_fn=_follow, use_buffers=True).eval()
    batches = _Batches(train, settings.flip, np.random.default_rng(seed))
    optimizer = torch.optim.SGD(
        model.parameters(), batches.rate, _MOMENTUM, weight_decay=_DECAY, nesterov=True
    )
    best = -1.0
    best_network = average
    for epoch in range(settings.epochs):
        model.train()
        for step, (pixels, targets) in enumerate(batches):
            for group in optimizer.param_groups:
                group["lr"] = batches.rate * _schedule(
                    (epoch + step / len(batches)) / settings.epochs
                )
            optimizer.zero_grad()
            logits = model(_inputs(pixels, scale, device))
            _loss(logits, torch.from_numpy(targets).to(device)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            average.update_parameters(model)
        predictions = _logits(average, validation.images, scale, device).argmax(axis=1)
        score = float(np.mean(predictions == validation.labels))
        if score > best:
            best = score
            best_network = copy.deepcopy(average)
    return lambda samples: _logits(best_network, samples.images, scale, device)


def _loss(logits: Tensor, targets: Tensor, temperature: float = _TEMPERATURE) -> Tensor:
    """Return the cross-entropy with labels, or tempered divergence from soft ones.

    Labels are int64 (n,), soft ones float32 (n, classes).
    """
    if targets.ndim == 1:
        return functional.cross_entropy(logits, targets)
    teacher = (targets.clamp(min=_LEAST).log() / temperature).softmax(dim=1)
    student = (logits / temperature).log_softmax(dim=1)
    return functional.kl_div(student, teacher, reduction="batchmean") * temperature**2


def _check_device(device: str) -> str:
    """Return `device`. Raise RecipeError if torch can put no tensor there."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise RecipeError(
            f"The device '{device}' cannot be used ({reason}): take another, or cpu."
        ) from error
    return device


class _Batches:
    """Shuffled, augmented batches.

    A last one of a single image is left out, since batch norm has no use for it.
    """

    def __init__(self, train: Labelled, flip: bool, rng: np.random.Generator) -> None:
        self._targets = train.labels.astype(np.int64) if train.soft is None else train.soft
        self._flip = flip
        self._rng = rng
        self._size = train.images.shape[:2]
        high, wide = self._pad = tuple(max(1, round(side / _PADDING)) for side in self._size)
        self._padded = np.pad(train.images.pixels, ((0, 0), (high, high), (wide, wide), (0, 0)))
        self._batch = min(max(len(train) // _STEPS, _SMALLEST), _BATCH)
        self.rate = _RATE * self._batch / _BATCH

    def __len__(self) -> int:
        return max(1, ceil(len(self._targets) / self._batch))

    def __iter__(self) -> Iterator[tuple[UInt8Array, Array]]:
        order = self._rng.permutation(len(self._targets))
        for part in slices(len(order), self._batch):
            rows = order[part]
            if len(rows) > 1:
                yield self._augment(rows), self._targets[rows]

    def _augment(self, rows: Int64Array) -> UInt8Array:
        """Return the images at `rows` with a black margin, randomly cropped.

        Mirror half of them if `flip` is set.
        """
        height, width = self._size
        down, right = (self._rng.integers(0, 2 * pad + 1, len(rows)) for pad in self._pad)
        flips = self._rng.random(len(rows)) < 0.5 if self._flip else np.zeros(len(rows), bool)
        crops = []
        for row, i, j, mirror in zip(rows, down, right, flips, strict=True):
            crop = self._padded[row, i : i + height, j : j + width]
            crops.append(crop[:, ::-1] if mirror else crop)
        return np.stack(crops)


def _schedule(progress: float) -> float:
    """Return the share of the highest learning rate at `progress` in [0, 1] of the training.

    It rises, then follows a cosine.
    """
    warm = 0.1
    return (
        progress / warm
        if progress < warm
        else 0.5 * (1 + float(np.cos(np.pi * (progress - warm) / (1 - warm))))
    )


def _scale(images: Images) -> Scale:
    means = images.pixels.mean(axis=(0, 1, 2), dtype=np.float64) / 255
    deviations = images.pixels.std(axis=(0, 1, 2), dtype=np.float64) / 255
    return means.astype(np.float32), (deviations + 1e-3).astype(np.float32)


def _inputs(pixels: UInt8Array, scale: Scale, device: str) -> Tensor:
    """Return the pixels, normalised by `scale`, as float32 (n, c, h, w) on the device."""
    mean, deviation = scale
    values = (pixels.astype(np.float32) / np.float32(255) - mean) / deviation
    return (
        torch.from_numpy(values).permute(0, 3, 1, 2).to(device, memory_format=torch.channels_last)
    )


@torch.no_grad()
def _logits(network: nn.Module, images: Images, scale: Scale, device: str) -> Float64Array:
    blocks = (images.pixels[part] for part in slices(len(images), _EVALUATED))
    return np.concatenate(
        [network(_inputs(block, scale, device)).cpu().double().numpy() for block in blocks]
    )
