"""From a private gradient to the next state: post-processing, by public rules."""

from __future__ import annotations

import torch
from torch import Tensor

from adapters.trained.dp_sgd.hyperparameters import DPSGD, Optimiser
from adapters.trained.dp_sgd.state import State

MOMENTS: dict[Optimiser, int] = {"adam": 2, "sgd": 0}
"""How many vectors an optimiser keeps beside the parameters."""

_BETAS = (0.9, 0.999)
_TINY = 1e-8


def advance(state: State, gradient: Tensor, settings: DPSGD) -> State:
    """One step of the optimiser, then one of the moving average.

    Args:
        state: before the step; left as it is.
        gradient: float32 (p,), noised.
        settings: optimiser, rate and decay.
    """
    rate = settings.rate_at(state.step)
    if settings.optimiser == "adam":
        parameters, moments = _adam(state, gradient, rate)
    else:
        parameters, moments = state.parameters - rate * gradient, ()
    decay = settings.decay_at(state.step)
    average = torch.lerp(state.average, parameters, 1 - decay)
    return State(state.step + 1, parameters, average, moments)


def _adam(state: State, gradient: Tensor, rate: float) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Algorithm 1 of Kingma and Ba (2015)."""
    step = state.step + 1
    first = torch.lerp(state.moments[0], gradient, 1 - _BETAS[0])
    second = (_BETAS[1] * state.moments[1]).addcmul(gradient, gradient, value=1 - _BETAS[1])
    spread = (second / (1 - _BETAS[1] ** step)).sqrt() + _TINY
    return state.parameters.addcdiv(first, spread, value=-rate / (1 - _BETAS[0] ** step)), (first, second)
