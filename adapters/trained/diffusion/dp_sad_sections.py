"""The sections of a recipe that DP-SAD has alone."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from adapters.trained.dp_sgd.hyperparameters import FineTuning
from adapters.trained.sections import Rate
from pe.plugins.validation import Count, Settings


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
