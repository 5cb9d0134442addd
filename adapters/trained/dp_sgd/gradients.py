"""One gradient per record, by torch.func.

Opacus (1.6.0) does not serve here. Its hooks give one gradient per row of the batch; a record with
several draws of noise is several rows, and the gradients of all are held until they are averaged.
`vmap` over records of `grad` of the mean over draws holds one per record. Opacus's rule for
convolutions reads an input as if it were laid out row by row; diffusers' attention returns another
layout, so the gradients of a UNet2DModel's convolutions after attention are wrong (many are zero),
without an error. Opacus's noise and batches come from PyTorch's generators, not from the system's
entropy. And `vmap` makes it plain that no record's gradient depends on another record: a model sees
one at a time.

A loss runs under `vmap`: it must not branch on a tensor's value, nor draw random numbers itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from adapters.trained.settings import GRID
from pe.data.arrays import ImageShape
from pe.errors import PluginError
from pe.plugins.devices import memory_refused

Randomness = tuple[Tensor, ...]

# Called as the module is, with a batch dimension.
Network = Callable[..., Any]
Parameters = Mapping[str, Tensor]

# The largest power of two in float32.
_LARGEST = 2.0**127


class Loss(Protocol):
    """The loss of a record, and the randomness (timesteps, noise, flips) that goes into it."""

    def draw(
        self,
        draws: int,
        shape: ImageShape,
        generator: torch.Generator,
    ) -> Randomness:
        """Return one record's randomness, for images of c×h×w: tensors of draws×…, or ().

        They lie on the generator's device, are independent of images and labels, and come from
        `generator` alone.
        """
        ...

    def __call__(
        self, model: Network, image: Tensor, label: Tensor, randomness: Randomness
    ) -> Tensor:
        """Return the losses of ONE record, (draws,), or of any shape if the loss draws nothing.

        Their mean is taken.

        Args:
            model: called as the module is, with a batch dimension; several draws make one batch.
            image: float32 c×h×w in [−1, 1].
            label: int64, without dimensions.
            randomness: what `draw` returned for this record, on the model's device.
        """
        ...


def stack(drawn: Sequence[Randomness], device: torch.device) -> Randomness:
    """Return the randomness of all records, each tensor n×draws×…, on the device."""
    return tuple(torch.stack(part).to(device) for part in zip(*drawn, strict=True))


def record_gradients(
    model: nn.Module,
    loss: Loss,
    parameters: Parameters,
    images: Tensor,
    labels: Tensor,
    randomness: Randomness,
) -> list[Tensor]:
    """Return the gradient of each record's mean loss over its draws.

    For each parameter it is float32 n×its shape.

    Args:
        model: gives all parameters that `parameters` leaves out. Its buffers are copied for each
            call: what a layer writes to them reaches no other micro-batch.
        loss: of one record.
        parameters: the trained ones, by name.
        images: float32 n×c×h×w.
        labels: int64 (n,).
        randomness: of all records, each tensor n×draws×…
    """
    constants = {
        name: value.detach() for name, value in model.named_parameters() if name not in parameters
    }
    constants |= {name: value.detach().clone() for name, value in model.named_buffers()}

    def mean_loss(
        own: dict[str, Tensor], image: Tensor, label: Tensor, randomness: Randomness
    ) -> Tensor:
        def apply(*args: Any, **kwargs: Any) -> Any:
            return functional_call(model, {**constants, **own}, args, kwargs)

        return loss(apply, image, label, randomness).mean()

    # Of the ways to compute attention, only the one in plain operations has a batching rule for
    # vmap.
    with sdpa_kernel(SDPBackend.MATH):
        gradients = vmap(grad(mean_loss), in_dims=(None, 0, 0, 0))(
            dict(parameters), images, labels, randomness
        )
    return [gradients[name] for name in parameters]


def clipped_sum(
    gradients: Sequence[Tensor],
    is_record: Tensor,
    clip: float,
    singly: bool | None = None,
) -> Tensor:
    """Return the sum of the records' gradients, each cut to an L2 norm of `clip`, in integer steps.

    The norm is taken over all parameters.

    Guarantee: each record adds a vector of integers, computed from its gradient alone, of L2 norm
    at most GRID, and the sum is exact: adding or removing a record moves it by at most GRID steps
    in L2 norm, replacing one by at most 2·GRID. A gradient with a number that is not finite counts
    as zero, and so does a row that is no record.

    Args:
        gradients: for each parameter, float32 n×its shape.
        is_record: bool (n,): True for each row that is a record, not padding.
        clip: C, finite and above 0.
        singly: True: one record after the other, each within a processor's cache; False: all
            together, in a few kernels; None: True on a CPU, otherwise False.

    Returns:
        int64 (p,), all parameters one after the other, in steps of C/GRID.
    """
    rows = torch.cat([gradient.detach().flatten(1) for gradient in gradients], dim=1)
    # The squares of float32 numbers cannot overflow in float64: a norm is finite exactly where all
    # its numbers are.
    singly = rows.device.type == "cpu" if singly is None else singly
    norms = (
        _norms_singly(rows)
        if singly
        else torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    )
    counts = is_record & norms.isfinite()
    # Steps per unit, less what rounding may add: 2^−24 in the factor and in each product, p·2^−53
    # in the norm.
    below_one = 1 - 2.0**-22 - (rows.shape[1] + 16) * 2.0**-52
    factors = (
        (below_one * GRID / norms)
        .clamp(max=min(below_one * GRID / clip, _LARGEST))
        .nan_to_num()
        .float()
    )
    blank = ~counts
    if not singly:
        rows.masked_fill_(blank[:, None], 0.0)
        return rows.mul_(factors[:, None]).int().sum(dim=0)  # rounds toward zero, to at most GRID
    total = rows.new_zeros(rows.shape[1], dtype=torch.int64)
    for row, factor, no in zip(rows, factors, blank, strict=True):
        total += row.masked_fill_(no, 0.0).mul_(factor).int()
    return total


def _norms_singly(rows: Tensor) -> Tensor:
    norms = rows.new_zeros(len(rows), dtype=torch.float64)
    wide = rows.new_zeros(rows.shape[1], dtype=torch.float64)
    for norm, row in zip(norms, rows, strict=True):
        norm += wide.copy_(row).norm()
    return norms


def trained_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters with `requires_grad`, by name, in the model's order.

    Raises:
        PluginError: a model that DP-SGD cannot train.
    """
    for name, module in model.named_modules():
        _check(name, module)
    parameters = {
        name: value.detach() for name, value in model.named_parameters() if value.requires_grad
    }
    if not parameters:
        raise PluginError(
            f"{type(model).__name__} has no parameter to train. Set `requires_grad` on those to "
            "train."
        )
    for name, value in parameters.items():
        if str(value.dtype) != "torch.float32":
            raise PluginError(
                f"Parameter '{name}' is {value.dtype}, but DP-SGD trains float32. Call `.float()` "
                "on the model."
            )
    return parameters


# Largest ‖g − h‖/‖h‖ of a record's gradients g, among others, and h, alone; TF32 rounds by less.
_FAR = 0.01

# Distance that is put down to rounding, as a share of the norm of the gradient of all parameters.
_NOTHING = 1e-6


def check_gradients(
    model: nn.Module,
    loss: Loss,
    shape: ImageShape,
    name: str,
) -> None:
    """Check that a record has the same gradient among others as alone.

    Two noise images of h×w×c are tried.

    `vmap` needs a rule for each operation; a model that others wrote may have operations with no
    rule or a wrong one. Raises PluginError, whose sentence begins with `name`, for a layer that
    `vmap` does not cover or gets wrong.
    """
    height, width, channels = shape
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    images = (torch.rand((2, channels, height, width), generator=generator) * 2 - 1).to(device)
    noise = stack([loss.draw(1, (channels, height, width), generator) for _ in range(2)], device)
    # These copies are moved a little, because LoRA matrices begin where half of the gradient is
    # zero.
    parameters = {
        key: value + 0.01 * torch.randn(value.shape, generator=generator).to(device)
        for key, value in trained_parameters(model).items()
    }
    labels = torch.zeros(2, dtype=torch.int64, device=device)

    def gradients(rows: slice) -> list[Tensor]:
        randomness = tuple(part[rows] for part in noise)
        return record_gradients(model, loss, parameters, images[rows], labels[rows], randomness)

    try:
        among_others = gradients(slice(2))
        first = gradients(slice(1))
        second = gradients(slice(1, 2))
    except (RuntimeError, ValueError) as error:
        if memory_refused(error):
            raise
        why = " ".join(str(error).split())[:160].rstrip(".")
        raise PluginError(
            f"{name} cannot be trained record by record on images of {height}×{width}×{channels} "
            f"({why}). Use layers that fit them, and that torch.func.vmap can run."
        ) from error
    alone = [torch.cat(pair).flatten(1) for pair in zip(first, second, strict=True)]
    norms = torch.stack([each.norm(dim=1) for each in alone])
    # A gradient that is nearly zero may differ by as much as rounding moves the others.
    allowed = _FAR * norms + _NOTHING * norms.norm(dim=0)
    for key, whole, single, most in zip(parameters, among_others, alone, allowed, strict=True):
        if not ((whole.flatten(1) - single).norm(dim=1) <= most).all():
            raise PluginError(
                f"{name}: '{key}' has another gradient for a record among others than for the "
                "record alone, so it may depend on the others. Leave its layer out of what is "
                "trained."
            )


def _check(name: str, module: nn.Module) -> None:
    kind = type(module).__name__
    if isinstance(module, _BatchNorm) or (
        isinstance(module, _InstanceNorm) and module.track_running_stats
    ):
        raise PluginError(
            f"Layer '{name}' is a {kind}, which keeps statistics of private records outside the "
            "guarantee. Use GroupNorm instead."
        )
    if isinstance(module, _DropoutNd) and module.training and module.p > 0:
        raise PluginError(
            f"Layer '{name}' is a {kind}, whose coins are no part of the loss's randomness. Set "
            "its `p` to 0, or draw the coins in the loss."
        )
