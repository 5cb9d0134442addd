"""Which parameters of a checkpoint DP-SGD trains: LoRA matrices beside some layers, other layers whole."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from pe.errors import RecipeError
from pe.plugins.validation import Count, Settings

if TYPE_CHECKING:
    from torch import nn

from adapters.trained.sections import Rate

ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
"""The projections of diffusers' attention."""

COVERED = ("Linear", "Conv2d", "Embedding", "GroupNorm", "LayerNorm")
"""Layers that may be trained whole; for each, tests compare per-record gradients with a loop's."""


class LoRA(Settings):
    """Matrices of low rank beside layers that stay as they are (Hu et al. 2022).

    Attributes:
        rank: of the matrices.
        alpha: their product counts alpha/rank times; None: once.
        targets: endings of the layers' names, such as to_q or down_blocks.0.resnets.0.conv1; Linear and Conv2d.
    """

    rank: Count = 4
    alpha: Rate | None = None
    targets: tuple[str, ...] = ATTENTION


def prepare(model: nn.Module, lora: LoRA | None, layers: tuple[str, ...], seed: int) -> nn.Module:
    """The model with matrices beside layers, in which these and the chosen layers alone have `requires_grad`.

    Args:
        model: the checkpoint's network; changed in place.
        lora: the matrices; None: none.
        layers: endings of the names of layers to be trained whole.
        seed: of the matrices' first values.

    Raises:
        RecipeError: an ending that no layer has, a layer that is not covered or named twice, or nothing to train.
    """
    import torch

    from adapters.trained.finetune.lora import add_matrices

    model.requires_grad_(False)
    beside = [] if lora is None else _named(model, "lora.targets", lora.targets)
    whole = _named(model, "layers", layers)
    if twice := sorted({*beside} & {*whole}):
        raise RecipeError(f"layers: '{twice[0]}' is among lora.targets, too: name it under one of the two.")
    if not beside and not whole:
        raise RecipeError("lora is null and layers is empty, so nothing is trained: name layers by their endings.")
    for name in whole:
        layer = model.get_submodule(name)
        if type(layer).__name__ not in COVERED:
            raise RecipeError(
                f"layers: '{name}' is a {type(layer).__name__}, and those that can be trained here are "
                f"{', '.join(COVERED)}: name the layers in it."
            )
        layer.requires_grad_(True)
    if lora is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            add_matrices(model, beside, lora.rank, 1.0 if lora.alpha is None else lora.alpha / lora.rank)
    return model


def _named(model: nn.Module, setting: str, endings: tuple[str, ...]) -> list[str]:
    """The layers with one of these endings, in the model's order."""
    names = [name for name, _ in model.named_modules() if name]
    found = set()
    for ending in endings:
        fits = {name for name in names if name == ending or name.endswith(f".{ending}")}
        if not fits:
            near = get_close_matches(ending, {name.rpartition(".")[2] for name in names} | set(names), 1)
            hint = f"; did you mean '{near[0]}'?" if near else "."
            raise RecipeError(f"{setting}: no layer of the checkpoint has a name that ends in '{ending}'{hint}")
        found |= fits
    return [name for name in names if name in found]
