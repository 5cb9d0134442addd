"""Memorisation: whether generated samples lie nearer to the private records than real samples do that no run has seen.

Everything here is computed from private records without noise: it is internal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.data.samples import Samples
from pe.evaluation.copies import NEIGHBOURS, Copies, count_copies
from pe.evaluation.features import Seen
from pe.evaluation.frechet import Reals
from pe.nearest import nearest
from pe.plugins.protocols import Vectors

LEVELS = np.linspace(0, 1, 101)
PAIRS = 24
_ROWS, _RIM = 4096, 1e-9


@dataclass(frozen=True)
class Membership:
    """How well the distance to the nearest generated sample tells private records from held-out ones.

    Attributes:
        auc: chance that a private record lies nearer than a held-out one (ties count half); ½ says nothing leaks here.
        low: lower end of the interval.
        high: upper end.
        level: the interval's confidence.
    """

    auc: float
    low: float
    high: float
    level: float


@dataclass(frozen=True, eq=False)
class Memorisation:
    """Nearest distances, float64, one per sample of the set named first. Confidential.

    Attributes:
        generated_to_private: from each generated sample to its nearest private record.
        heldout_to_private: from each held-out sample; what the former would be without memorisation.
        private_to_generated: from each private record to its nearest generated sample.
        heldout_to_generated: from each held-out sample.
        membership: of private records by the last two.
        pairs: the PAIRS nearest, (generated, private), int64 (≤ PAIRS, 2), each generated and each private sample once.
        pair_distances: of them, ascending.
        copies: of private records among the generated samples.
    """

    generated_to_private: Reals
    heldout_to_private: Reals
    private_to_generated: Reals
    heldout_to_generated: Reals
    membership: Membership
    pairs: npt.NDArray[np.int64]
    pair_distances: Reals
    copies: Copies

    def to_dict(self) -> dict[str, Any]:
        """As docs/evaluation.md has it."""
        sizes = {"generated": self.generated_to_private, "private": self.private_to_generated}
        sizes["heldout"] = self.heldout_to_private
        distances = ("generated_to_private", "heldout_to_private", "private_to_generated", "heldout_to_generated")
        pairs = zip(self.pairs.tolist(), self.pair_distances.tolist(), strict=True)
        return {
            "samples": {name: len(values) for name, values in sizes.items()},
            **{name: _cdf(getattr(self, name)) for name in distances},
            "membership": vars(self.membership),
            "copies": self.copies.to_dict(),
            "nearest_pairs": {
                "pairs": [{"generated": made, "private": record, "distance": apart} for (made, record), apart in pairs]
            },
        }


def memorisation(generated: Samples, private: Samples, heldout: Samples, seen: Seen) -> Memorisation:
    """Distances between generated, private and held-out samples under the embedding of `seen`.

    Held-out samples must come from the same source as the private ones, and no run may have seen them.

    Guarantee: none. The result is confidential.

    Raises:
        ContractError: a vector that is not finite.
    """
    made, records, unseen = map(seen.vectors, (generated, private, heldout))
    around = min(NEIGHBOURS, len(records))
    nearest_record, around_made = _nearest(made, records, around)
    around_unseen = _nearest(unseen, records, around)[1]
    to_private = around_made[:, 0]
    to_generated, held_to_generated = _nearest(records, made)[1][:, 0], _nearest(unseen, made)[1][:, 0]
    pairs = _closest_pairs(nearest_record, to_private)
    return Memorisation(
        generated_to_private=to_private,
        heldout_to_private=around_unseen[:, 0],
        private_to_generated=to_generated,
        heldout_to_generated=held_to_generated,
        membership=membership(to_generated, held_to_generated),
        pairs=pairs,
        pair_distances=to_private[pairs[:, 0]],
        copies=count_copies(generated, private, heldout, around_made, around_unseen),
    )


def membership(members: Reals, others: Reals, level: float = 0.95) -> Membership:
    """The area under the ROC curve of 'near, hence a member', with Newcombe's interval.

    Method 5 of Newcombe (2006): Hanley and McNeil's variance taken at the unknown area itself, which keeps its
    level near 0 and 1 too, where the usual one shrinks to nothing. Records of one person are not independent; the
    interval is then too narrow.

    Args:
        members: distances of private records, n ≥ 1.
        others: distances of held-out ones, m ≥ 1.
        level: of confidence, in (0, 1).
    """
    from scipy.stats import rankdata

    n, m = len(members), len(others)
    ranks = rankdata(np.concatenate([members, others]))
    auc = 1 - (float(ranks[:n].sum()) - n * (n + 1) / 2) / (n * m)
    return Membership(auc, *_interval(auc, n, m, NormalDist().inv_cdf((1 + level) / 2)), level)


def _interval(auc: float, n: int, m: int, z: float) -> tuple[float, float]:
    """All areas a from which `auc` is at most z standard errors away."""
    from scipy.optimize import brentq

    half = (n + m) / 2 - 1

    def excess(a: float) -> float:
        variance = a * (1 - a) * (1 + half * ((1 - a) / (2 - a) + a / (1 + a))) / (n * m)
        return abs(auc - a) - z * math.sqrt(max(variance, 0.0))

    inside = min(max(auc, _RIM), 1 - _RIM)  # at 0 and 1 themselves the variance is 0
    low = brentq(excess, 0.0, inside) if excess(0.0) > 0 else 0.0
    high = brentq(excess, inside, 1.0) if excess(1.0) > 0 else 1.0
    return float(low), float(high)


def _nearest(queries: Vectors, candidates: Vectors, count: int = 1) -> tuple[npt.NDArray[np.int64], Reals]:
    """The nearest candidate of each query, and the distances of its `count` nearest: float64 (n, count), ascending."""
    found = nearest(queries, candidates, count)
    distances = np.empty(found.shape)
    for start in range(0, len(queries), _ROWS):
        part = slice(start, start + _ROWS)
        for rank in range(count):
            apart = queries[part].astype(np.float64) - candidates[found[part, rank]]
            distances[part, rank] = np.sqrt(np.square(apart).sum(axis=1))
    return found[:, 0], distances


def _closest_pairs(records: npt.NDArray[np.int64], distances: Reals) -> npt.NDArray[np.int64]:
    """The PAIRS closest (generated, private), each private record with its closest generated sample only."""
    order = np.argsort(distances, kind="stable")
    _, first = np.unique(records[order], return_index=True)
    rows = order[np.sort(first)[:PAIRS]]
    return np.stack([rows, records[rows]], axis=1)


def _cdf(distances: Reals) -> dict[str, Any]:
    """The distances' quantiles at LEVELS: their distribution function, with the axes changed over."""
    return {"levels": LEVELS.tolist(), "quantiles": np.quantile(distances, LEVELS).tolist()}
