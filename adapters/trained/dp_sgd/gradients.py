"""One gradient per record, by torch.func.

Why not Opacus (1.6.0). Its hooks give one gradient per row of the batch; a record with several draws of noise is
several rows, which must all be held until they are averaged, where `vmap` over records of `grad` of the mean over draws
holds one. Its rule for convolutions reads an input as if it were laid out row by row; diffusers' attention hands on
another layout, and the gradients it gives for a UNet2DModel's convolutions behind attention are wrong (many are zero),
without an error. Its noise and batches come from PyTorch's generators, not from the system's entropy. And `vmap` makes
it plain that no record's gradient depends on another record: a model never sees two of them at once.

A loss is run under `vmap`: it decides nothing by a tensor's value, and draws nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from adapters.trained.dp_sgd.hyperparameters import GRID

Randomness = tuple[Tensor, ...]
_LARGEST = 2.0**127
"""The largest power of two in float32."""
Parameters = Mapping[str, Tensor]


class Loss(Protocol):
    """Per-record loss, and the randomness (timesteps, noise, flips) that goes into it."""

    def draw(self, records: int, draws: int, shape: tuple[int, int, int], generator: torch.Generator) -> Randomness:
        """Randomness for images of c×h×w: tensors on the generator's device, each records×draws×…, or none at all.

        The same for whatever images and labels there will be, and from `generator` alone.
        """
        ...

    def __call__(self, model: Callable[..., Any], image: Tensor, label: Tensor, randomness: Randomness) -> Tensor:
        """The losses of ONE record, (draws,), or of any shape if it draws nothing; their mean is taken.

        Args:
            model: called as the module is, with a batch dimension; for several draws, on a batch of them.
            image: float32 c×h×w in [−1, 1].
            label: int64, without dimensions.
            randomness: this record's part of what `draw` gave, each draws×…
        """
        ...


def record_gradients(
    model: nn.Module, loss: Loss, parameters: Parameters, images: Tensor, labels: Tensor, randomness: Randomness
) -> list[Tensor]:
    """The gradient of each record's mean loss over its draws, by the trained parameters.

    Args:
        model: where all that is not in `parameters` comes from. Its buffers are copied for each call: what a layer
            writes to them reaches no other micro-batch.
        loss: of one record.
        parameters: the trained ones, by name.
        images: float32 n×c×h×w.
        labels: int64 (n,).
        randomness: each n×draws×…

    Returns:
        For each parameter, in order, float32 n×its shape.
    """
    fixed = {name: value.detach() for name, value in model.named_parameters() if name not in parameters}
    fixed |= {name: value.detach().clone() for name, value in model.named_buffers()}

    def mean_loss(trained: dict[str, Tensor], image: Tensor, label: Tensor, drawn: Randomness) -> Tensor:
        def applied(*args: Any, **kwargs: Any) -> Any:
            return functional_call(model, {**fixed, **trained}, args, kwargs)

        return loss(applied, image, label, drawn).mean()

    # Of the ways to compute attention, only the one in plain operations has a batching rule for vmap.
    with sdpa_kernel(SDPBackend.MATH):
        found = vmap(grad(mean_loss), in_dims=(None, 0, 0, 0))(dict(parameters), images, labels, randomness)
    return [found[name] for name in parameters]


def clipped_sum(gradients: Sequence[Tensor], counted: Tensor, clip: float, singly: bool | None = None) -> Tensor:
    """The sum of the records' gradients, each cut to an L2 norm of `clip` over all parameters together, in whole steps.

    Guarantee: a record adds integers of its own, whose L2 norm is at most GRID, and the sum is exact: adding or
    removing a record moves it by at most GRID steps, replacing one by at most 2·GRID. A gradient that holds anything
    but finite numbers counts as zero, and so does one not `counted`.

    Args:
        gradients: for each parameter, float32 n×its shape.
        counted: bool (n,), which rows are records.
        clip: C, finite and above 0.
        singly: one record after the other, which stays in a processor's cache, or all in a few kernels; None: as the
            device wants it.

    Returns:
        int64 (p,), all parameters one after the other, in steps of C/GRID.
    """
    rows = torch.cat([gradient.detach().flatten(1) for gradient in gradients], dim=1)
    # The squares of float32 numbers cannot overflow in float64: a norm is finite exactly where all its numbers are.
    singly = rows.device.type == "cpu" if singly is None else singly
    norms = _norms_singly(rows) if singly else torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    counted = counted & norms.isfinite()
    # Steps per unit, less what rounding may add: 2^−24 in the factor and in each product, p·2^−53 in the norm.
    below_one = 1 - 2.0**-22 - (rows.shape[1] + 16) * 2.0**-52
    factors = (below_one * GRID / norms).clamp(max=min(below_one * GRID / clip, _LARGEST)).nan_to_num().float()
    blank = ~counted
    if not singly:
        rows.masked_fill_(blank[:, None], 0.0)
        return rows.mul_(factors[:, None]).int().sum(dim=0)  # rounds toward zero, to at most GRID
    total = rows.new_zeros(rows.shape[1], dtype=torch.int64)
    for row, factor, no in zip(rows, factors, blank, strict=True):
        total += row.masked_fill_(no, 0.0).mul_(factor).int()
    return total


def _norms_singly(rows: Tensor) -> Tensor:
    norms, wide = rows.new_zeros(len(rows), dtype=torch.float64), rows.new_zeros(rows.shape[1], dtype=torch.float64)
    for norm, row in zip(norms, rows, strict=True):
        norm += wide.copy_(row).norm()
    return norms
