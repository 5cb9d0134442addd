"""From noisy votes to the next population. Post-processing: nothing here sees a private record."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np

from pe.data.arrays import Float64Array, Int64Array
from pe.data.population import Mask, Members
from pe.data.samples import Samples, distinct

Votes = Float64Array
Items = Int64Array
Selection = Literal["sample", "systematic", "rank"]
Keep = Literal["none", "selected", "winners", "all"]


@dataclass(frozen=True)
class SelectionRule:
    """The public rules by which S_t follows from the noisy votes for S_{t-1}, label by label.

    All of them are public.

    Attributes:
        selection: the rule for parents; see `select_parents`.
        keep: candidates that stay in S_t as they are, beside the offspring: `none`; `selected`: the
            parents; `winners`: all that this vote or an earlier one put over the threshold, those
            with the most votes first, for at most half of S_t; `all`: every candidate.
        offspring: k ≥ 1, the variations that each parent gets whenever it is chosen.
    """

    selection: Selection = "sample"
    keep: Keep = "none"
    offspring: int = 1

    def draws(self, size: int, survivors: int = 0) -> int:
        """Return how many parents to draw for `size` members of a label if `survivors` stay."""
        return (
            ceil(size / (self.offspring + 1))
            if self.keep == "selected"
            else ceil((size - survivors) / self.offspring)
        )


def descend(
    histogram: Votes,
    survivors: Mask,
    size: int,
    threshold: float,
    rules: SelectionRule,
    rng: np.random.Generator,
    label_weights: Votes | float = 1.0,
) -> Members:
    """Return the members of S_t of one label, the kept ones first.

    Kept members and offspring each stand in the order of their parents.

    Args:
        histogram: noisy votes (m,), m ≥ 1.
        survivors: bool (m,), the candidates that stayed in S_{t-1} as they were.
        size: members wanted, ≥ 0; if `rules.keep` is `all`, at least m.
        threshold: H, in votes.
        rules: for parents, offspring, and the candidates that stay.
        rng: public randomness.
        label_weights: (m,) in [0, 1], see `pe.nearest.label_weights`; 1 as in the paper.
    """
    weights, stand_in = parent_weights(histogram, threshold, label_weights)
    staying = np.empty(0, np.int64)
    if rules.keep == "all":
        staying = np.arange(len(histogram))
    elif rules.keep == "winners":
        winners = (
            np.flatnonzero(survivors | (weights > 0)) if not stand_in else np.flatnonzero(survivors)
        )
        # A weight below 1 must not raise votes below 0 in the order.
        worth = np.where(histogram > 0, histogram * label_weights, histogram)
        staying = np.sort(winners[np.argsort(-worth[winners], kind="stable")][: size // 2])
    parents = select_parents(weights, rules.draws(size, len(staying)), rules.selection, rng)
    if rules.keep == "selected":
        staying = np.unique(parents)
    offspring = np.sort(np.resize(parents, size - len(staying)))
    return Members(np.concatenate([staying, offspring]), np.arange(size) < len(staying))


def votes_of_equals(histogram: Votes, samples: Samples) -> Votes:
    """Return the noisy votes of one label, with equal candidates all given those of the first.

    Records vote for the first of equal vectors, so without lookahead the other equal candidates
    have noise alone.

    Guarantee: post-processing: which candidates are equal is public.

    Args:
        histogram: noisy votes (m,).
        samples: the m candidates.
    """
    first, place = distinct(samples)
    return histogram[first[place]]


def parent_weights(
    histogram: Votes,
    threshold: float,
    label_weights: Votes | float = 1.0,
) -> tuple[Votes, bool]:
    """Return max(histogram − H, 0) of one label , times label weights, or a stand-in.

    This is line 5 of Algorithm 2. The stand-in serves when every bin is under H.

    Args:
        histogram: noisy votes (m,), m ≥ 1.
        threshold: H, in votes.
        label_weights: (m,) in [0, 1]; 1 as in the paper.

    Returns:
        Weights (m,), finite, ≥ 0, with a positive sum; and True if they are a stand-in: the noisy
        votes clipped at 0 or, when those are all zero too, equal weights.
    """
    over = np.maximum(histogram - threshold, 0) * label_weights
    if over.any():
        return over, False
    positive = np.maximum(histogram, 0) * label_weights
    return (positive if positive.any() else np.ones_like(histogram)), True


def select_parents(weights: Votes, count: int, how: Selection, rng: np.random.Generator) -> Items:
    """Return `count` parents for one label: S' of Algorithm 1.

    The result holds ascending indices (count,) into the candidates.

    Args:
        weights: (m,), from `parent_weights`.
        count: parents wanted, ≥ 0.
        how: `sample` draws with replacement in proportion to the weights; `systematic` takes each
            candidate as often as its share of `count` says, rounded up or down at random (Kitagawa
            1996), which keeps more different candidates than `sample`; `rank` takes the candidates
            of positive weight from the heaviest down (ties to the lowest index), each once, then
            all again while parents are wanted.
        rng: public randomness.
    """
    if how == "sample":
        return np.repeat(np.arange(len(weights)), rng.multinomial(count, weights / weights.sum()))
    if how == "systematic":
        order = rng.permutation(np.flatnonzero(weights))
        shares = np.cumsum(weights[order])
        marks = (np.arange(count) + rng.random()) / max(count, 1) * shares[-1]
        return np.sort(
            order[np.minimum(np.searchsorted(shares, marks, side="right"), len(order) - 1)]
        )
    heaviest = np.argsort(-weights, kind="stable")[: np.count_nonzero(weights)]
    return np.sort(np.resize(heaviest, count))
