"""Which models DP-SGD can train, and which of their parameters."""

from __future__ import annotations

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
