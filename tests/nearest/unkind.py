"""A search that errs as much as it may."""

from __future__ import annotations

import numpy as np

from pe.nearest import decide, exact


class Unkind:
    """A backend as inexact as the bound allows: each distance is off by nearly all of a kernel's share, either way."""

    returned = sieve = exact.Arithmetic(exact.FLOAT32)
    threads = decide.ALONE

    def __init__(self, candidates):
        self.candidates = candidates.astype(np.float64)
        self.rng = np.random.default_rng(0)

    def __call__(self, queries, k):
        x, c = queries.astype(np.float64), self.candidates
        reach = np.sqrt(np.square(x).sum(axis=1))[:, None] + np.sqrt(np.square(c).sum(axis=1))
        share = 0.99 * (x.shape[1] + 3) * self.sieve.roundoff * reach**2
        distances = np.square(x[:, None] - c).sum(axis=2) + share * self.rng.choice([-1, 1], share.shape)
        computed = np.maximum(distances, 0).astype(np.float32)
        indices = np.argpartition(computed, k - 1, axis=1)[:, :k]
        found = np.take_along_axis(computed, indices, axis=1)
        return decide.Neighbours(found, indices, found.max(axis=1))
