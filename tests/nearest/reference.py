"""The definition of the answer, written out naively: Python loops, one pair at a time; and a search
that errs.
"""

import math

import numpy as np

from pe.nearest import decide, exact


def folded(terms):
    while len(terms) > 1:
        half = (len(terms) + 1) // 2
        upper = terms[half:]
        terms = [low + up for low, up in zip(terms, upper, strict=False)] + terms[len(upper) : half]
    return terms[0]


def lifted(vector, metric):
    values = [float(v) for v in vector]
    norm = math.sqrt(folded([v * v for v in values])) if metric == "cosine" else 1.0
    return [v / norm for v in values] if norm else values


def distance(x, c, metric):
    if metric == "cosine" and not (any(x) and any(c)):
        return 2.0
    return folded([(a - b) * (a - b) for a, b in zip(x, c, strict=True)])


def naive(queries, candidates, q, metric="l2"):
    seen: set[tuple[float, ...]] = set()
    kept: dict[int, list[float]] = {}
    for j, c in enumerate(candidates):
        if np.isfinite(c).all() and tuple(c.tolist()) not in seen:  # tuples: -0.0 == 0.0
            seen.add(tuple(c.tolist()))
            kept[j] = lifted(c, metric)
    answer = np.full((len(queries), q), -1, np.int64)
    for i, query in enumerate(queries):
        if np.isfinite(query).all():
            x = lifted(query, metric)
            ranked = sorted((distance(x, c, metric), j) for j, c in kept.items())[:q]
            answer[i, : len(ranked)] = [j for _, j in ranked]
    return answer


class Unkind:
    """A backend as inexact as the bound allows: each distance is off by nearly all of a kernel's
    share, either way.
    """

    threads = decide.ALONE

    def __init__(self, candidates):
        self.candidates = candidates.astype(np.float64)
        self.rng = np.random.default_rng(0)

    def __call__(self, queries, k):
        x, c = queries.astype(np.float64), self.candidates
        reach = np.sqrt(np.square(x).sum(axis=1))[:, None] + np.sqrt(np.square(c).sum(axis=1))
        share = 0.99 * (x.shape[1] + 3) * exact.FLOAT32 * reach**2
        distances = np.square(x[:, None] - c).sum(axis=2) + share * self.rng.choice(
            [-1, 1], share.shape
        )
        computed = np.maximum(distances, 0).astype(np.float32)
        indices = np.argpartition(computed, k - 1, axis=1)[:, :k]
        found = np.take_along_axis(computed, indices, axis=1)
        return decide.Neighbours(found, indices, found.max(axis=1))
