"""Judge a run by DPImageBench's ResNet-110: `python -m published.bench_classifier CHECKOUT RUN TEST
EPOCHS`.

CHECKOUT is a checkout of github.com/2019ChenGong/DPImageBench, whose network, average and settings
for MNIST are taken: 55,000 images to train on, 5,000 to choose the epoch by, Adam at 0.01, batches
of 256. It trains 50 epochs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

TRAINED_ON, BATCH, EVALUATED = 55_000, 256, 500
Array = np.ndarray[Any, Any]


def read(path: str) -> tuple[Array, Array]:
    """Return a .npz file's images, float32 (n, c, h, w) in [-1, 1], and its labels, whole
    numbers.
    """
    file = np.load(path)
    return (file["images"].astype(np.float32) / 127.5 - 1).transpose(0, 3, 1, 2), file[
        "labels"
    ].astype(np.int64)


@torch.no_grad()
def correct(network: nn.Module, images: Array, labels: Array) -> float:
    """Return the share of images whose label the network says."""
    network.eval()
    blocks = [torch.from_numpy(images[i : i + EVALUATED]) for i in range(0, len(images), EVALUATED)]
    return float(
        np.mean(
            np.concatenate([network(block).argmax(dim=1).numpy() for block in blocks]) == labels
        )
    )


def main(checkout: str, run: str, test: str, epochs: str) -> None:
    """Print the accuracy of each epoch's averaged network on held-out synthetic images, and on the
    test set.
    """
    sys.path.insert(0, str(Path(checkout, "evaluation")))
    from classifier.resnet import ResNet
    from ema import ExponentialMovingAverage

    (images, labels), real = read(f"{run}/synthetic.npz"), read(test)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(images))
    held_out = order[TRAINED_ON:]
    torch.manual_seed(0)
    network = ResNet(in_c=images.shape[1], img_size=images.shape[2], num_classes=10)
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    average = ExponentialMovingAverage(network.parameters(), 0.9999)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.2)
    for epoch in range(1, int(epochs) + 1):
        network.train()
        for rows in torch.from_numpy(rng.permutation(order[:TRAINED_ON])).split(BATCH):
            optimizer.zero_grad()
            loss = functional.cross_entropy(
                network(torch.from_numpy(images[rows])), torch.from_numpy(labels[rows])
            )
            loss.backward()
            optimizer.step()
            average.update(network.parameters())
        schedule.step()
        average.store(network.parameters())
        average.copy_to(network.parameters())
        chosen_by = (
            correct(network, images[held_out], labels[held_out]) if len(held_out) else float("nan")
        )
        print(
            f"epoch {epoch}: held-out {chosen_by:.4f}, test {correct(network, *real):.4f}",
            flush=True,
        )
        average.restore(network.parameters())


if __name__ == "__main__":
    main(*sys.argv[1:])
