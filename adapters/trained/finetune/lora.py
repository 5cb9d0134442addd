"""LoRA: matrices of low rank beside a layer that stays as it is (Hu et al. 2022), and the layer with them added to it.

They compute what peft's do. They are here because peft takes seconds to load, and so that what is trained is seen on
one page: `base` is never trained, and each matrix is a plain parameter, which `vmap` covers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from pe.errors import RecipeError


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
