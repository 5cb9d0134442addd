"""What a training by DP-SGD is told: public values, all of them settled before it sees a record."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from pe.errors import RecipeError

Optimiser = Literal["adam", "sgd"]

_WHOLE = ("steps", "expected_batch", "declared_size", "draws", "micro_batch", "block")
GRID = 2**30
"""Integer steps per clip C, in which gradients are summed and noise is drawn: so fine that a gradient of 10^9 numbers
loses less than 10^−4 of itself to rounding, and no number of it exceeds 32 bits."""

_MOST_STEPS = 2**24
"""Up to here a float32, of which a state is made, counts without rounding."""


@dataclass(frozen=True)
class DPSGD:
    """How to train; nothing here follows from the private data.

    Attributes:
        steps: how many, in all; 1 to 2^24.
        expected_batch: records that a step takes on average, which every gradient is divided by.
        declared_size: the public number of private records; the real one is never used.
        clip: C, the L2 norm that a record's gradient is cut to; finite.
        learning_rate: of a step after the warm-up.
        noise_multiplier: σ: the noise on a sum of gradients has standard deviation σ·C in each coordinate. None
            until `calibrated` has found it.
        optimiser: adam (Kingma and Ba 2015, with PyTorch's constants) or sgd, without momentum.
        warm_up: steps over which the rate rises, as a straight line.
        ema: decay of the parameters' moving average, in [0, 1).
        draws: of the loss's own randomness per record and step, averaged before the clipping.
        micro_batch: records whose gradients are held at once; memory depends on it, the guarantee does not.
        block: steps between two states that are kept; each block is charged as one release.

    Raises:
        RecipeError: a value outside its range.
    """

    steps: int
    expected_batch: int
    declared_size: int
    clip: float
    learning_rate: float
    noise_multiplier: float | None = None
    optimiser: Optimiser = "adam"
    warm_up: int = 0
    ema: float = 0.999
    draws: int = 1
    micro_batch: int = 32
    block: int = 100

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _WHOLE and not _whole(value, 1, _MOST_STEPS):
                raise self._wrong(field.name, "a whole number from 1 to 2^24")
        if self.expected_batch > self.declared_size:
            raise self._wrong("expected_batch", f"at most declared_size, which is {self.declared_size}")
        if not 0 < self.clip < math.inf:
            raise self._wrong("clip", "a finite number above 0")
        if not 0 < self.learning_rate < math.inf:
            raise self._wrong("learning_rate", "a finite number above 0")
        if self.noise_multiplier is not None and not 0 <= self.noise_multiplier < math.inf:
            raise self._wrong("noise_multiplier", "a finite number from 0 on")
        if self.optimiser not in get_args(Optimiser):
            raise self._wrong("optimiser", "one of " + ", ".join(get_args(Optimiser)))
        if not _whole(self.warm_up, 0, _MOST_STEPS):
            raise self._wrong("warm_up", "a whole number from 0 to 2^24")
        if not 0 <= self.ema < 1:
            raise self._wrong("ema", "a number from 0 up to, and not including, 1")

    def _wrong(self, name: str, wanted: str) -> RecipeError:
        return RecipeError(f"{name} is {getattr(self, name)!r}: it must be {wanted}.")

    @property
    def rate(self) -> float:
        """q: the chance of every record, of whatever label, to be in a step."""
        return self.expected_batch / self.declared_size

    @property
    def settled(self) -> float:
        """σ.

        Raises:
            RecipeError: the noise is not settled yet.
        """
        if self.noise_multiplier is None:
            raise RecipeError("noise_multiplier is not settled: calibrate it to a budget before the training.")
        return self.noise_multiplier

    @property
    def scale(self) -> float:
        """σ·GRID: the standard deviation of the noise on a sum of gradients, in steps of C/GRID; see `settled`."""
        return self.settled * GRID

    @property
    def blocks(self) -> int:
        """How many blocks the steps make; the last one may be shorter."""
        return math.ceil(self.steps / self.block)

    def steps_from(self, step: int) -> int:
        """How many steps the block has that begins after `step` steps: 0 at the end.

        Raises:
            RecipeError: no block begins there.
        """
        if step % self.block and step != self.steps:
            raise RecipeError(
                f"block is {self.block}: no block begins after {step} steps; take the value it had before."
            )
        return max(0, min(self.block, self.steps - step))

    def rate_at(self, step: int) -> float:
        """The learning rate of step `step`, counted from 0: a schedule that no data can change."""
        return self.learning_rate * min(1.0, (step + 1) / (self.warm_up + 1))

    def decay_at(self, step: int) -> float:
        """The decay of the moving average in step `step`, counted from 0.

        It rises to `ema`, so that a short training does not remember how its parameters began.
        """
        return min(self.ema, (step + 1) / (step + 10))


def _whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
