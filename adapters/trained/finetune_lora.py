"""LoRA: matrices of low rank beside a layer that stays as it is (Hu et al. 2022), and the layer with them added to it.

They compute what peft's do. They are here because peft takes seconds to load, and so that what is trained is seen on
one page: `base` is never trained, and each matrix is a plain parameter, which `vmap` covers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from adapters.trained.dp_sgd.gradients import Loss, Parameters, Randomness, record_gradients, trained_parameters
from pe.errors import PluginError, RecipeError
from pe.plugins.devices import memory_refused


class LowRank(nn.Module):
    """A Linear or Conv2d layer plus scale·B·A: A random, B zero at first, so that the layer begins as it was.

    Args:
        base: the layer; a convolution without groups.
        rank: r: of A (r×in) and B (out×r); of a convolution A has the layer's own window.
        scale: α/r.
    """

    def __init__(self, base: nn.Linear | nn.Conv2d, rank: int, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), scale
        out, *inner = base.weight.shape
        wide = torch.empty(rank, *inner)
        nn.init.kaiming_uniform_(wide, a=math.sqrt(5))
        self.A = nn.Parameter(wide.to(base.weight.device))
        self.B = nn.Parameter(base.weight.new_zeros((out, rank) + (1,) * (len(inner) - 1)))

    def forward(self, x: Tensor) -> Tensor:
        """The layer's answer, and that of the matrices."""
        base = self.base
        found: Tensor = base(x)
        if isinstance(base, nn.Linear):
            return found + self.scale * functional.linear(functional.linear(x, self.A), self.B)
        low = functional.conv2d(x, self.A, None, base.stride, base.padding, base.dilation)
        return found + self.scale * functional.conv2d(low, self.B)

    def merged(self) -> nn.Module:
        """The layer with scale·B·A added to its weights."""
        with torch.no_grad():
            change = torch.einsum("or,ri->oi", self.B.flatten(1), self.A.flatten(1))
            self.base.weight += self.scale * change.view_as(self.base.weight)
        return self.base


def add_matrices(model: nn.Module, names: list[str], rank: int, scale: float) -> None:
    """Put matrices beside the layers of these names.

    Raises:
        RecipeError: a layer is neither Linear nor a Conv2d without groups.
    """
    for name in names:
        layer = model.get_submodule(name)
        convolution = type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"
        if not (convolution or type(layer) is nn.Linear):
            raise RecipeError(
                f"lora.targets: '{name}' is a {type(layer).__name__}, and LoRA matrices go beside Linear, and beside "
                "Conv2d without groups: leave it out, or train it whole under layers."
            )
        assert isinstance(layer, nn.Linear | nn.Conv2d)
        _put(model, name, LowRank(layer, rank, scale))


def merge_matrices(model: nn.Module) -> None:
    """Add all matrices to the layers that they are beside."""
    for name, module in list(model.named_modules()):
        if isinstance(module, LowRank):
            _put(model, name, module.merged())


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


# Per-record gradients of a model that we do not know, compared with a loop's before it sees a record.
#
# `vmap` has a rule for each operation, and a checkpoint may hold one without: then it refuses, or, as Opacus' hooks
# did for attention, could be wrong without a word. So two random images are tried, each at once and alone.


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
