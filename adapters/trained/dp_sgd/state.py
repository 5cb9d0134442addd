"""What a training is between two blocks, one flat array, so that it can be a release; and its next step.

The step is post-processing of a noised gradient, by public rules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adapters.trained.dp_sgd.hyperparameters import DPSGD, Optimiser
from pe.errors import RunError

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class State:
    """All that the next step builds upon.

    Attributes:
        step: how many steps were done.
        parameters: the trained ones, float32 (p,).
        average: their exponential moving average, float32 (p,).
        moments: what the optimiser keeps of earlier gradients, each float32 (p,).
    """

    step: int
    parameters: Tensor
    average: Tensor
    moments: tuple[Tensor, ...]

    @classmethod
    def fresh(cls, parameters: Tensor, moments: int) -> State:
        """Before the first step."""
        return cls(0, parameters, parameters, tuple(torch.zeros_like(parameters) for _ in range(moments)))

    def to_array(self) -> FloatArray:
        """float32 (1 + (2 + moments)·p,): the step, the parameters, the average, the moments; nothing is rounded."""
        step = torch.tensor([float(self.step)])
        parts = [step, *(part.cpu() for part in (self.parameters, self.average, *self.moments))]
        array: FloatArray = torch.cat(parts).numpy()
        return array

    @classmethod
    def from_array(cls, array: npt.NDArray[np.generic], count: int, moments: int, device: torch.device) -> State:
        """The state that `to_array` wrote, of `count` parameters.

        Raises:
            RunError: an array of another training.
        """
        wanted = 1 + (2 + moments) * count
        if array.dtype != np.float32 or array.shape != (wanted,):
            raise RunError(
                f"The kept state is {array.dtype} {array.shape}, and this model and optimiser need float32 "
                f"({wanted},): it belongs to another training; start a new one."
            )
        parts = torch.from_numpy(np.array(array[1:])).to(device).view(2 + moments, count)
        return cls(int(array[0]), parts[0], parts[1], tuple(parts[2:].unbind()))


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
