"""What a recipe says of public and private training: public values, settled before a private record is seen."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from adapters.trained.dp_sgd import DPSGD
from adapters.trained.dp_sgd.settings import Optimiser
from pe.errors import RecipeError
from pe.plugins.validation import Count, Settings

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class PlainTraining(Settings):
    """Training on public images.

    Attributes:
        steps: of Adam.
        batch: images per step.
        learning_rate: its highest; it rises for the first steps, and falls as a cosine.
    """

    steps: Count = 2000
    batch: Count = 64
    learning_rate: Rate = 2e-3


class FineTuning(Settings):
    """DP-SGD on the private records; see `DPSGD` for what the names mean.

    A class names the section of the recipe that it is, for messages.

    Attributes:
        steps: how many.
        expected_batch: records per step, on average; None: an eighth of the declared size.
        clip: C, the L2 norm to which each record's gradient is cut.
        learning_rate: of a step after the warm-up.
        optimiser: adam or sgd.
        warm_up: steps over which the rate rises.
        ema: decay of the moving average, which is what is sampled.
        draws: timesteps and noises per record and step, averaged before the clipping.
        micro_batch: records whose gradients are held at once.
        block: steps between two states that are kept.
        spare_blocks: how many blocks more than planned the budget is to hold. A run's store leaves no trace of a
            block that was broken off, so that it is not charged again, and there is no need for one.
    """

    section: ClassVar[str] = "training"

    steps: Count = 200
    expected_batch: Count | None = None
    clip: Rate = 1e-3
    learning_rate: Rate = 1e-3
    optimiser: Optimiser = "adam"
    warm_up: Annotated[int, Field(ge=0)] = 0
    ema: Decay = 0.999
    draws: Count = 4
    micro_batch: Count = 32
    block: Count = 50
    spare_blocks: Annotated[int, Field(ge=0)] = 0

    def dp_sgd(self, declared_size: int) -> DPSGD:
        """The same for DP-SGD; its noise is still open.

        Raises:
            RecipeError: a value out of range.
        """
        try:
            return DPSGD(
                steps=self.steps,
                expected_batch=max(1, declared_size // 8) if self.expected_batch is None else self.expected_batch,
                declared_size=declared_size,
                clip=self.clip,
                learning_rate=self.learning_rate,
                optimiser=self.optimiser,
                warm_up=self.warm_up,
                ema=self.ema,
                draws=self.draws,
                micro_batch=self.micro_batch,
                block=self.block,
            )
        except RecipeError as error:
            raise RecipeError(f"{self.section}.{error}") from error
