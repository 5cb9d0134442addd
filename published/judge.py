"""Train ResNet-9 on a run's images, and test it on real ones.

    python -m published.judge RUN TEST [--images N] [--epochs N] [--flip]

Published accuracies are those of networks that were trained for many epochs. `pe evaluate` trains
a small one, so these scripts bring their own. The accuracy on the whole test set goes to
RUN/confidential/judged.json. It is internal, as what `pe evaluate` writes is.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator
from math import ceil, cos, pi
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel

from pe.data.samples import slices
from pe.evaluation.methods import methods_of
from pe.evaluation.sets import Notes, read_real
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.store.places import RECIPE

Array = np.ndarray[Any, Any]
Scale = tuple[Array, Array]
"""Mean and standard deviation of each channel."""

HELD_OUT = 500
"""Most synthetic images on which the best epoch is chosen."""
# Public constants, never tuned on private data.
BATCH = 128
SMALLEST = 16
STEPS = 32  # of an epoch, where there are images enough
RATE = 0.1  # of a full batch, and in proportion of a smaller one
MOMENTUM = 0.9
DECAY = 5e-4
AVERAGE = 0.999  # decay of the network's moving average
PADDING = 8  # a crop moves by at most the image's side over this
EVALUATED = 512


class Sum(nn.Module):
    """x + f(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return x + f(x)."""
        return x + self.layers(x)


def convolution(inputs: int, outputs: int) -> nn.Sequential:
    """Return a convolution of 3×3, batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def resnet9(channels: int, classes: int) -> nn.Module:
    """Return ResNet-9, after the residual network of the DAWNBench entries, for 8×8 pixels on."""
    return nn.Sequential(
        convolution(channels, 64),
        convolution(64, 128),
        nn.MaxPool2d(2),
        Sum(convolution(128, 128), convolution(128, 128)),
        convolution(128, 256),
        nn.MaxPool2d(2),
        convolution(256, 512),
        nn.MaxPool2d(2),
        Sum(convolution(512, 512), convolution(512, 512)),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes),
    )


def follow(average: Tensor, current: Tensor, updates: Tensor | int) -> Tensor:
    """Return the average, moved towards the network: faster in the first steps."""
    decay = torch.as_tensor((updates + 1) / (updates + 11)).clamp(max=AVERAGE)
    return current + (average - current) * decay


def schedule(progress: float) -> float:
    """Return the share of RATE at `progress`, in [0, 1]: it rises, then follows a cosine."""
    warm = 0.1
    if progress < warm:
        return progress / warm
    return 0.5 * (1 + cos(pi * (progress - warm) / (1 - warm)))


def batches(pixels: Array, size: int, flip: bool, rng: np.random.Generator) -> Iterator[Any]:
    """Yield (rows, images): shuffled, cropped at random from a black margin, half of them mirrored.

    A batch of a single image is left out, since batch norm has no use for it.
    """
    height, width = pixels.shape[1:3]
    pads = [max(1, round(side / PADDING)) for side in (height, width)]
    padded = np.pad(pixels, ((0, 0), (pads[0], pads[0]), (pads[1], pads[1]), (0, 0)))
    order = rng.permutation(len(pixels))
    for part in slices(len(order), size):
        rows = order[part]
        if len(rows) < 2:
            continue
        down, right = (rng.integers(0, 2 * pad + 1, len(rows)) for pad in pads)
        mirrored = rng.random(len(rows)) < 0.5 if flip else np.zeros(len(rows), bool)
        crops = []
        for row, i, j, mirror in zip(rows, down, right, mirrored, strict=True):
            crop = padded[row, i : i + height, j : j + width]
            crops.append(crop[:, ::-1] if mirror else crop)
        yield rows, np.stack(crops)


def inputs(pixels: Array, scale: Scale, device: str) -> Tensor:
    """Return uint8 (n, h, w, c) as float32 (n, c, h, w) on the device."""
    values = (pixels.astype(np.float32) / np.float32(255) - scale[0]) / scale[1]
    moved = torch.from_numpy(values).permute(0, 3, 1, 2)
    return moved.to(device, memory_format=torch.channels_last)


@torch.no_grad()
def labels_of(network: nn.Module, pixels: Array, scale: Scale, device: str) -> Array:
    """Return the label that the network gives to each image."""
    found = [
        network(inputs(pixels[part], scale, device)).argmax(dim=1).cpu().numpy()
        for part in slices(len(pixels), EVALUATED)
    ]
    return np.concatenate(found)


def accuracy(
    synthetic: tuple[Array, Array], real: tuple[Array, Array], classes: int, epochs: int, flip: bool
) -> float:
    """Return the accuracy on real images after training on synthetic ones.

    The epoch is kept that is best on the first HELD_OUT synthetic images.
    """
    pixels, labels = synthetic
    held = min(HELD_OUT, len(pixels) // 2)
    rest, targets = pixels[held:], torch.from_numpy(labels[held:].astype(np.int64))
    scale = (
        (rest.mean(axis=(0, 1, 2), dtype=np.float64) / 255).astype(np.float32),
        (rest.std(axis=(0, 1, 2), dtype=np.float64) / 255 + 1e-3).astype(np.float32),
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    network = resnet9(pixels.shape[3], classes).to(device).to(memory_format=torch.channels_last)
    average = AveragedModel(network, avg_fn=follow, use_buffers=True).eval()
    size = min(max(len(rest) // STEPS, SMALLEST), BATCH)
    rate = RATE * size / BATCH
    optimizer = torch.optim.SGD(
        network.parameters(), rate, MOMENTUM, weight_decay=DECAY, nesterov=True
    )
    rng = np.random.default_rng(0)
    steps = ceil(len(rest) / size)
    best, best_network = -1.0, average
    for epoch in range(epochs):
        network.train()
        for step, (rows, images) in enumerate(batches(rest, size, flip, rng)):
            for group in optimizer.param_groups:
                group["lr"] = rate * schedule((epoch + step / steps) / epochs)
            optimizer.zero_grad()
            logits = network(inputs(images, scale, device))
            functional.cross_entropy(logits, targets[rows].to(device)).backward()
            optimizer.step()
            average.update_parameters(network)
        score = float(np.mean(labels_of(average, pixels[:held], scale, device) == labels[:held]))
        if score > best:
            best, best_network = score, copy.deepcopy(average)
    return float(np.mean(labels_of(best_network, real[0], scale, device) == real[1]))


def main() -> None:
    """Train, test, and write the accuracy."""
    parser = argparse.ArgumentParser(description="Train ResNet-9 on a run's images.")
    parser.add_argument("run", type=Path)
    parser.add_argument("test", help="real images: a folder of labels, or a .npz file")
    parser.add_argument("--images", type=int, help="how many to train on; default: all")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--flip", action="store_true", help="mirror images; not for digits")
    given = parser.parse_args()
    source = Recipe.load(given.run / RECIPE).private
    names = source.labels
    real_source = methods_of(source.modality).source_at(given.test, source)
    real = read_real(real_source, "test set", names, Notes(Progress())).content
    file = np.load(given.run / "synthetic.npz")
    rows = np.random.default_rng(0).permutation(len(file["labels"]))
    if given.images is not None:
        rows = rows[: HELD_OUT + given.images]
    labels = np.array([names.index(name) for name in file["label_names"]])
    synthetic = file["images"][rows], labels[file["labels"][rows]]
    found = accuracy(
        synthetic, (real.images.pixels, real.labels), len(names), given.epochs, given.flip
    )
    path = given.run / "confidential" / "judged.json"
    path.write_text(json.dumps({"resnet9": found}))


if __name__ == "__main__":
    main()
