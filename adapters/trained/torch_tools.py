"""What trainings by PyTorch share: public seeds, steps, and losses of single images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from adapters.diffusion.items import tensors
from pe.data.arrays import Float64Array, Int64Array, UInt8Array
from pe.data.samples import generator

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def step_down(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """Do one step of the optimiser down the gradient of `loss`."""
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def losses_one_by_one(
    images: UInt8Array,
    labels: Int64Array,
    device: torch.device,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Float64Array:
    """Return the loss of each image, float64 (n,), which is computed without the others.

    `loss` gets an image, float32 1×c×h×w in [−1, 1], and its label, int64 (1,).
    """
    import torch

    losses = np.empty(len(images))
    with torch.inference_mode():
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            losses[i] = float(
                loss(tensors(image[None], device), torch.tensor([label], device=device))
            )
    return losses


def torch_seed(seed: int, phase: str) -> int:
    """Return a public seed for PyTorch's generators, for one phase of the run."""
    return int(generator(seed, f"diffusion/{phase}").integers(2**63))


@contextmanager
def drawing_by(seed: int, phase: str) -> Iterator[None]:
    """Let PyTorch draw by `torch_seed` within the block.

    Its own generators are left as they were.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, phase))
        yield
