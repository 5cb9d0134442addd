"""From noisy votes to parents. Post-processing: nothing here sees a private record."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Votes = npt.NDArray[np.float64]
Items = npt.NDArray[np.int64]
Selection = Literal["sample", "systematic", "rank"]


def parent_weights(histogram: Votes, threshold: float) -> tuple[Votes, bool]:
    """max(histogram − H, 0) of one label (Alg. 2), or what stands in for it when every bin is under H.

    Args:
        histogram: noisy votes (m,), m ≥ 1.
        threshold: H, in votes.

    Returns:
        Weights (m,), finite, ≥ 0, with a positive sum; and whether they are a stand-in: the noisy
        votes clipped at 0 or, when those are all zero too, equal weights.
    """
    over = np.maximum(histogram - threshold, 0)
    if over.any():
        return over, False
    positive = np.maximum(histogram, 0)
    return (positive if positive.any() else np.ones_like(histogram)), True


def select_parents(weights: Votes, count: int, how: Selection, rng: np.random.Generator) -> Items:
    """S' of Algorithm 1 for one label: `count` parents, as ascending indices (count,) into the candidates.

    Args:
        weights: (m,), from `parent_weights`.
        count: parents wanted, ≥ 0.
        how: `sample` draws with replacement in proportion to the weights; `systematic` takes each candidate as often
            as its share of `count` says, rounded up or down at random (Kitagawa 1996), so that the same shares keep
            more different candidates; `rank` takes the candidates
            of positive weight from the heaviest down (ties to the lowest index), each once, and over
            again while parents are wanted.
        rng: public randomness.
    """
    if how == "sample":
        return np.repeat(np.arange(len(weights)), rng.multinomial(count, weights / weights.sum()))
    if how == "systematic":
        order = rng.permutation(np.flatnonzero(weights))
        shares = np.cumsum(weights[order])
        marks = (np.arange(count) + rng.random()) / max(count, 1) * shares[-1]
        return np.sort(order[np.minimum(np.searchsorted(shares, marks, side="right"), len(order) - 1)])
    ranked = np.argsort(-weights, kind="stable")[: np.count_nonzero(weights)]
    return np.sort(np.resize(ranked, count))
