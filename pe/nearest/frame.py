"""The frame in which a float32 search is accurate: a public centre and scale, taken from the candidates alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pe.nearest.exact import Metric, lift
from pe.nearest.margin import FLOAT32, Reals, Vectors, radius

_SAMPLE = 256  # candidates that the frame is taken from
_CHUNK = 2**16  # elements placed at a time: they stay in the cache


@dataclass(frozen=True, eq=False)
class Frame:
    """Where float32 arithmetic is done: x ↦ (x − centre)·scale, after normalising under cosine.

    No answer depends on the frame, only how often float32 suffices.

    Attributes:
        metric: "l2" or "cosine".
        centre: (d,), in the precision of the vectors it is subtracted from: float32 for l2, else float64.
        scale: a power of two, at most 2⁶⁴.
    """

    metric: Metric
    centre: Vectors | Reals
    scale: float

    @classmethod
    def around(cls, candidates: Vectors, metric: Metric) -> Frame:
        """The median of some 256 candidates as the centre, their median distance to it scaled to about 1.

        Medians, and not means, so that a few enormous candidates do not cost all others their precision.
        """
        sample = lift(candidates[:: -(-len(candidates) // _SAMPLE)], metric)
        centre: Vectors | Reals = np.median(sample, axis=0)
        if metric == "l2":
            centre = centre.astype(np.float32)
        norms = np.sqrt(np.square(sample - centre).sum(axis=1))
        norms = norms[norms > 0]
        scale = 2.0 ** float(np.clip(-np.round(np.log2(np.median(norms))), -126, 64)) if norms.size else 1.0
        return cls(metric, centre, scale)

    def place(self, vectors: Vectors) -> tuple[Vectors, Reals]:
        """The rows placed in the frame, float32, and their radii: infinite where float32 overflows."""
        placed = np.empty(vectors.shape, np.float32)
        step = max(1, _CHUNK // vectors.shape[1])
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            for start in range(0, len(vectors), step):
                part = vectors[start : start + step]
                moved = (part if self.metric == "l2" else lift(part, self.metric)) - self.centre
                placed[start : start + step] = moved * self.scale
            return placed, radius(placed, FLOAT32)
