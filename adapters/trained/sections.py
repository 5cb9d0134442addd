"""Sections of a recipe that fitted generators share: public values, fixed before a private record is seen."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pe.plugins.validation import Count, Settings

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


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


class QueryTraining(PlainTraining):
    """PrivImage's semantic query, three convolutions that find the public labels that an image is most like."""

    steps: Count = 1000
    batch: Count = 128
