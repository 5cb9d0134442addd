"""Sections of a recipe that fitted generators share.

They hold public values, fixed before a private record is seen.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pe.errors import RecipeError
from pe.plugins.settings import Count, Settings

Share = Annotated[float, Field(gt=0, lt=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Optimiser = Literal["adam", "sgd"]

# Integer steps per clip C, in which gradients are summed and noise is drawn: so fine that a
# gradient of 10^9 numbers loses less than 10^−4·C to rounding, and each of its numbers fits into 32
# bits.
GRID = 2**30


# Name of the public images in messages and forecasts.
PUBLIC_IMAGES = "public images"


class Discrimination(Settings):
    """Training of DP-SAD's discriminator, by Adam, before each block of the student's steps.

    Attributes:
        steps: number of steps before each block.
        batch: images of the teacher, and as many of the student, per step.
        learning_rate: of each step.
        chains: number of the teacher's denoising chains, from public noise to images, whose points
            are compared.
    """

    steps: Count = 50
    batch: Count = 64
    learning_rate: Rate = 1e-3
    chains: Count = 256


class Alignment(Settings):
    """Alignment of public images (Equation 5 of DP-ImgSyn): Adam on their pixels.

    Attributes:
        steps: k, the most steps of an image; 0 leaves the public images as they are.
        rate: learning rate, where pixels lie in [−1, 1].
        feature: weight of the distance between moments.
        classification: weight of the cross-entropy with the label.
        total_variation: weight of the sum of differences between neighbouring pixels.
        norm: weight of the sum of squared pixels.
        roughest: an image stops before its total variation exceeds this many times the least that
            it has had.
        companions: number of public images aligned first, together; others are aligned as if each
            were one more.
    """

    steps: Annotated[int, Field(ge=0)] = 10
    rate: Rate = 0.1
    feature: Weight = 10.0
    classification: Weight = 1.0
    total_variation: Weight = 2.5e-5
    norm: Weight = 3e-8
    roughest: Annotated[float, Field(ge=1)] = 2.0
    companions: Annotated[int, Field(ge=10)] = 200


class PlainTraining(Settings):
    """Training on public images, or on images made from releases.

    Attributes:
        steps: number of Adam's steps.
        batch: images per step.
        learning_rate: the highest; the rate rises for the first steps, then falls as a cosine. For
            GANs it is constant.
    """

    steps: Count = 2000
    batch: Count = 64
    learning_rate: Rate = 2e-3


class FineTuning(Settings):
    """DP-SGD on the private records, as a section of the recipe.

    `section` is its name, for messages.

    Attributes:
        steps: number of steps.
        expected_batch: records per step, on average; sums of gradients are divided by it. None: an
            eighth of the declared size.
        clip: C, the L2 norm to which each record's gradient is cut.
        learning_rate: of each step after the warm-up.
        optimiser: adam (Kingma and Ba 2015, with PyTorch's constants) or sgd, without momentum.
        warm_up: steps over which the learning rate rises, as a straight line.
        ema: decay of the parameters' moving average, which the fitted model uses.
        draws: of the loss's randomness (timestep and noise) per record and step; the mean of the
            gradients is clipped.
        micro_batch: records whose gradients are held at once; memory depends on it, the guarantee
            does not. None: a device's part of a step, up to 32 on a processor and 512 on a GPU;
            halved until memory suffices.
        block: steps between two states that are kept; each block is charged as one release.
    """

    section: ClassVar[str] = "training"

    steps: Annotated[int, Field(ge=1, le=2**24)] = (
        200  # a float32, of which a state is made, counts them
    )
    expected_batch: Count | None = None
    clip: Rate = 1e-3
    learning_rate: Rate = 1e-3
    optimiser: Optimiser = "adam"
    warm_up: Annotated[int, Field(ge=0)] = 0
    ema: Fraction = 0.999
    draws: Count = 4
    micro_batch: Count | None = None
    block: Count = 50

    def dp_sgd(self, declared_size: int) -> DPSGD:
        """Return these settings for `declared_size` records. The noise multiplier is not set yet.

        Raises:
            RecipeError: `expected_batch` exceeds the declared size.
        """
        batch = self.expected_batch or max(1, declared_size // 8)
        if batch > declared_size:
            raise RecipeError(
                f"`{self.section}.expected_batch` is {batch}. It must be at most `declared_size`, "
                f"{declared_size}."
            )
        values = {name: getattr(self, name) for name in FineTuning.model_fields}
        return DPSGD(**values | {"declared_size": declared_size, "expected_batch": batch})


class DPSGD(FineTuning):
    """Settings of a training. None of them follows from the private data.

    Attributes:
        declared_size: the public number of private records; the real one is never used.
        noise_multiplier: σ: the noise on a sum of gradients has standard deviation σ·C in each
            coordinate. None until it is calibrated.
    """

    expected_batch: Count
    declared_size: Count
    noise_multiplier: Weight | None = None

    def with_noise(self, noise_multiplier: float) -> DPSGD:
        """Return these settings with σ = `noise_multiplier`."""
        return self.model_copy(update={"noise_multiplier": noise_multiplier})

    @property
    def rate(self) -> float:
        """q: the probability that a record, of whatever label, is in a step."""
        return self.expected_batch / self.declared_size

    @property
    def sigma(self) -> float:
        """Return σ. Raise RecipeError if it is not set yet."""
        if self.noise_multiplier is None:
            raise RecipeError(
                "`noise_multiplier` is not set. Calibrate it to a budget before the training."
            )
        return self.noise_multiplier

    @property
    def scale(self) -> float:
        """σ·GRID: the standard deviation of the noise on a sum of gradients, in steps of C/GRID."""
        return self.sigma * GRID

    @property
    def blocks(self) -> int:
        """Number of blocks, of which the last may be shorter."""
        return math.ceil(self.steps / self.block)

    def steps_from(self, step: int) -> int:
        """Return how many steps the block has that begins after `step` steps: 0 at the end.

        Raises:
            RecipeError: no block begins there.
        """
        if step % self.block and step != self.steps:
            raise RecipeError(
                f"No block begins after {step} steps. Set `block` to the value that it had before."
            )
        return max(0, min(self.block, self.steps - step))

    def rounds(self, micro_batch: int, devices: int = 1) -> float:
        """Return how many micro-batches each device computes in a step, on average.

        On average, the last micro-batch is half full, and meanwhile half of the other devices have
        no micro-batch.
        """
        return (self.expected_batch / micro_batch + 0.5) / devices + (1 - 1 / devices) / 2

    def rate_at(self, step: int) -> float:
        """Return the learning rate of step `step`, counted from 0.

        No data can change this schedule.
        """
        return self.learning_rate * min(1.0, (step + 1) / (self.warm_up + 1))

    def decay_at(self, step: int) -> float:
        """Return the decay of the moving average in step `step`, counted from 0.

        It rises to `ema`, so that the first parameters do not weigh much in the average of a short
        training.
        """
        return min(self.ema, (step + 1) / (step + 10))


# Most pixels of the shorter side at which a network without `channels` stops halving the image.
_COARSE = 8

# Least pixels a side at the last level.
_LEAST = 2

_FIRST = 16
_FURTHER = 32


class NetworkSize(Settings):
    """The size of the UNet. The last level, of the least resolution, has attention.

    Attributes:
        channels: of each level, multiples of 8; every level but the last halves the image. None:
            16, then 32 for each halving of the image, until its shorter side has at most 8 pixels,
            or a side is odd.
        layers: residual blocks per level.
    """

    channels: (
        Annotated[tuple[Annotated[int, Field(ge=8, multiple_of=8)], ...], Field(min_length=1)]
        | None
    ) = None
    layers: Count = 1

    def levels(self, height: int, width: int) -> tuple[int, ...]:
        """Return the channels of each level, for images of this size.

        Raises:
            RecipeError: the images are too small, or cannot be halved so often.
        """
        if self.channels is None:
            times = 0
            while min(height, width) > _COARSE and height % 2 == 0 and width % 2 == 0:
                height //= 2
                width //= 2
                times += 1
            return (_FIRST, *[_FURTHER] * times)
        times = len(self.channels) - 1
        least = _LEAST * 2**times
        if min(height, width) < least or height % 2**times or width % 2**times:
            raise RecipeError(
                f"`network.channels` has {times + 1} levels, but {height}×{width} cannot be "
                f"halved so often. Take fewer levels, or sides of at least {least} pixels that "
                f"{2**times} divides."
            )
        return self.channels
