"""Per-record gradients of a model that we do not know, compared with a loop's before it sees a record.

`vmap` has a rule for each operation, and a checkpoint may hold one without: then it refuses, or, as Opacus' hooks did
for attention, could be wrong without a word. So two random images are tried, each at once and alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from adapters.trained.dp_sgd.gradients import Loss, Parameters, Randomness, record_gradients
from adapters.trained.dp_sgd.suitable import trained_parameters
from pe.errors import PluginError
from pe.plugins.devices import memory_refused

_FAR = 0.01
"""How far a gradient may be from the loop's, in its own norm: arithmetic of ten bits (TF32) stays below."""

_NOTHING = 1e-6
"""Of the whole gradient's norm: what is smaller is rounding."""


def check_gradients(model: nn.Module, loss: Loss, shape: tuple[int, int, int], device: torch.device) -> None:
    """Refuse a model whose per-record gradients are not those of one record after the other.

    Args:
        model: its parameters with `requires_grad` are trained; they are moved a little here, and not in the model, as
            LoRA matrices begin where half of the gradient is zero.
        loss: of one record.
        shape: h, w, c of the images.
        device: where it will be trained.

    Raises:
        PluginError: a layer that `vmap` does not cover, or whose gradients differ.
    """
    model.to(device)
    generator = torch.Generator().manual_seed(0)
    height, width, channels = shape
    images = torch.rand((2, channels, height, width), generator=generator) * 2 - 1
    drawn = [part.to(device) for part in loss.draw(2, 1, (channels, height, width), generator)]
    parameters = {
        name: value + 0.01 * torch.randn(value.shape, generator=generator).to(device)
        for name, value in trained_parameters(model).items()
    }
    x, labels = images.to(device), torch.zeros(2, dtype=torch.int64, device=device)
    try:
        at_once = record_gradients(model, loss, parameters, x, labels, tuple(drawn))
    except (RuntimeError, ValueError) as error:
        if memory_refused(error):
            raise
        why = " ".join(str(error).split())[:160].rstrip(".")
        raise PluginError(
            f"{type(model).__name__} has a layer for which PyTorch gives no gradient per record ({why}): DP-SGD cannot "
            "train this checkpoint."
        ) from error
    for i in range(len(x)):
        alone = _alone(model, loss, parameters, x[i], labels[i], tuple(part[i] for part in drawn))
        _compare(list(parameters), [gradient[i] for gradient in at_once], alone)


def _alone(
    model: nn.Module, loss: Loss, parameters: Parameters, image: Tensor, label: Tensor, randomness: Randomness
) -> list[Tensor]:
    """One record's gradient by plain backpropagation."""
    trained = {name: value.clone().requires_grad_() for name, value in parameters.items()}

    def applied(*args: Any, **kwargs: Any) -> Any:
        return functional_call(model, trained, args, kwargs)

    total = loss(applied, image, label, randomness).mean()
    found = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, trained.values(), strict=True)]


def _compare(names: list[str], found: list[Tensor], wanted: list[Tensor]) -> None:
    rounding = _NOTHING * float(torch.stack([each.norm() for each in wanted]).norm())
    for name, ours, alone in zip(names, found, wanted, strict=True):
        if not float((ours - alone).norm()) <= _FAR * float(alone.norm()) + rounding:
            raise PluginError(
                f"'{name}' has another gradient for a record among others than for the record alone, so it may depend "
                "on the others: leave its layer out of lora.targets and layers."
            )
