"""Which models DP-SGD can train, and which of their parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from pe.errors import PluginError


def trained_parameters(model: nn.Module) -> dict[str, Tensor]:
    """The parameters with `requires_grad`, by name, in the model's order; the others stay as they are.

    Raises:
        PluginError: a model that DP-SGD cannot train.
    """
    for name, module in model.named_modules():
        _check(name, module)
    found = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    if not found:
        raise PluginError(
            f"{type(model).__name__} has no parameter to train: set requires_grad on those that shall move."
        )
    for name, value in found.items():
        if str(value.dtype) != "torch.float32":
            raise PluginError(
                f"Parameter '{name}' is {value.dtype}: DP-SGD trains float32; call .float() on the model."
            )
    return found


def check_stateless(model: nn.Module, images: Tensor) -> None:
    """Check, by a trial, that a model's answer follows from its parameters and its images alone.

    What a model keeps from one call to the next would carry private records past every clip and all noise. In training
    and in evaluation mode it is shown all images but the first, and before and after them the first.

    Args:
        model: of a class that others wrote; its mode is left as it was.
        images: float32 n×c×h×w, n ≥ 2, public.

    Raises:
        PluginError: a call moved a buffer or a parameter, or the first image got another answer the second time.
    """
    kind, mode = type(model).__name__, model.training
    before = {name: value.clone() for name, value in _state(model).items()}
    for training in (True, False):
        model.train(training)
        with torch.no_grad():
            first, _, again = (model(part) for part in (images[:1], images[1:], images[:1]))
        for name, value in _state(model).items():
            if name not in before or not torch.equal(value, before[name]):
                raise PluginError(
                    f"{kind} writes to '{name}' when it is called, and so would keep traces of private records outside "
                    "the guarantee: take layers that keep no statistics, GroupNorm among them."
                )
        if not torch.allclose(first, again):
            raise PluginError(
                f"{kind} answers the same image otherwise when it is asked again: it must keep nothing between calls, "
                "and draw no coins."
            )
    model.train(mode)


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _check(name: str, module: nn.Module) -> None:
    kind = type(module).__name__
    if isinstance(module, _BatchNorm) or (isinstance(module, _InstanceNorm) and module.track_running_stats):
        raise PluginError(
            f"Layer '{name}' is a {kind}, which keeps statistics of private records outside the guarantee: "
            "take GroupNorm in its place."
        )
    if isinstance(module, _DropoutNd) and module.training and module.p > 0:
        raise PluginError(
            f"Layer '{name}' is a {kind}, whose coins are no part of the loss's randomness: set its p to 0, "
            "or draw the coins in the loss."
        )
