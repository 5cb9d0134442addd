"""What a recipe says of DP-ImgSyn: public values, all of them settled before it sees a record."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from adapters.trained.dp_sgd.hyperparameters import FineTuning
from adapters.trained.sections import Rate, Weight
from pe.plugins.validation import Count, Settings

TEACHERS = ("small", "resnet18")
"""The toolkit's own."""


class TeacherTraining(FineTuning):
    """DP-SGD of the classifier.

    Attributes:
        draws: shifted copies of each record, whose losses are averaged before its gradient is clipped.
        ema: share of the past in the average of weights that labels the images; 0: the last weights do.
        shift: pixels by which a copy is moved at most.
    """

    steps: Count = 150
    learning_rate: Rate = 4e-3
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.95
    draws: Count = 2
    micro_batch: Count = 64
    shift: Annotated[int, Field(ge=0, le=8)] = 1


class Alignment(Settings):
    """How public images are aligned (Equation 5): Adam on their pixels.

    Attributes:
        steps: k, at the most; 0 leaves the public images as they are.
        rate: of a step, where pixels lie in [−1, 1].
        feature: weight of the distance between moments.
        classification: of the cross-entropy with the target label.
        total_variation: of the sum of differences between neighbouring pixels.
        norm: of the pixels' squares.
        roughest: an image stops before its total variation exceeds so many times the least that it had on its way.
        companions: public images that are aligned together, first; all others as if each were one more of them.
    """

    steps: Annotated[int, Field(ge=0)] = 10
    rate: Rate = 0.1
    feature: Weight = 10.0
    classification: Weight = 1.0
    total_variation: Weight = 2.5e-5
    norm: Weight = 3e-8
    roughest: Annotated[float, Field(ge=1)] = 2.0
    companions: Annotated[int, Field(ge=10)] = 200
