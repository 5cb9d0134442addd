"""What a training is, between two blocks: one flat array, so that it can be a release."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

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
