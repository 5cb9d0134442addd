"""What a recipe says of a fitted diffusion model: public values, all of them settled before it sees a record."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from adapters.diffusion.pixel_files import Sampler
from adapters.trained.settings import FineTuning, Rate
from pe.plugins.validation import Count, Settings


class Network(Settings):
    """The size of the UNet; the last level, of the least resolution, has attention.

    Attributes:
        channels: of each level, in multiples of 8; each but the last halves the image. None: a level for each
            time that the image can be halved until it has at most 8 pixels a side, of 16, 32, 32, … channels.
        layers: residual blocks per level.
    """

    channels: Annotated[tuple[Annotated[int, Field(ge=8, multiple_of=8)], ...], Field(min_length=1)] | None = None
    layers: Count = 1


class Sampling(Settings):
    """How the fitted model is sampled; see `PixelSpace`.

    Attributes:
        steps: from pure noise to an image, at most the 1,000 of the noise's schedule.
        sampler: ddim or ddpm.
        eta: of ddim: 0 is deterministic given the first noise.
        chunk: most images of one request.
    """

    steps: Annotated[int, Field(ge=1, le=1000)] = 25
    sampler: Sampler = "ddim"
    eta: Annotated[float, Field(ge=0, le=1)] = 0.0
    chunk: Count = 1024


class Teaching(FineTuning):
    """DP-SAD's teacher: DP-SGD of its own.

    Attributes:
        share: of the fit's ε, which the teacher's training alone takes; 0: it learns from public images alone.
    """

    section: ClassVar[str] = "teacher"

    share: Annotated[float, Field(ge=0, lt=1)] = 0.5


class Learning(FineTuning):
    """DP-SAD's student; between two blocks the discriminator learns."""

    block: Count = 10


class Discrimination(Settings):
    """DP-SAD's discriminator: Adam, before each block of the student's steps.

    Attributes:
        steps: before each block.
        batch: images of the teacher, and as many of the student, per step.
        learning_rate: of each step.
        chains: of the teacher's, from public noise to an image, whose points it is shown.
    """

    steps: Count = 50
    batch: Count = 64
    learning_rate: Rate = 1e-3
    chains: Count = 256
