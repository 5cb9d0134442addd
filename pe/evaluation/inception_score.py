"""The Inception Score (Salimans et al. 2016): exp of the mean divergence of class probabilities from their mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SPLITS = 10


@dataclass(frozen=True)
class InceptionScore:
    """exp E KL(p(y|x) ‖ p(y)), from 1 to the number of classes.

    Attributes:
        mean: over the splits.
        std: standard deviation over the splits (divisor: their number, as is usual for this score).
        splits: their number.
    """

    mean: float
    std: float
    splits: int


def inception_score(probabilities: npt.NDArray[np.floating], splits: int = SPLITS) -> InceptionScore:
    """The score of samples in random order by their class probabilities, (n, classes) with rows that sum to 1.

    Fewer samples than splits make one split each.

    Raises:
        ValueError: no sample.
    """
    if not len(probabilities):
        raise ValueError("An Inception Score needs a sample.")
    scores = [
        _score(part.astype(np.float64)) for part in np.array_split(probabilities, min(splits, len(probabilities)))
    ]
    return InceptionScore(float(np.mean(scores)), float(np.std(scores)), len(scores))


def _score(p: npt.NDArray[np.float64]) -> float:
    logs = np.log(np.where(p > 0, p, 1.0)) - np.log(np.where(p > 0, p.mean(axis=0), 1.0))  # 0·log 0 = 0
    return float(np.exp((p * logs).sum(axis=1).mean()))
