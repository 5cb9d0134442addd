"""Everything that a run will do, settled from public numbers before the first call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pe.histogram import Voting
from pe.privacy.release import Release
from pe.selection import Selection


@dataclass(frozen=True)
class Step:
    """What iteration t does. All of it is public.

    Attributes:
        t: the iteration, ≥ 1.
        sizes: members of S_t per label.
        degree: v_t, variation in [0, 1].
        lookahead: k, variations per candidate.
        threshold: H, in votes.
        release: the histogram's release.
        reuse: k, when the lookahead's variations become offspring; else 0.
    """

    t: int
    sizes: tuple[int, ...]
    degree: float
    lookahead: int
    threshold: float
    release: Release
    reuse: int = 0


@dataclass(frozen=True)
class Plan:
    """What a run does, settled before its first call. All of it is public.

    Attributes:
        classes: the label names.
        sizes: members of S_0 per label.
        steps: one per iteration.
        selection: how parents are chosen.
        voting: how records vote.
        seed: the recipe's seed.
        class_counts: the release of the label counts, where label sizes are estimated from it.
        fit: the releases that the generator is fitted by, before S_0.
    """

    classes: tuple[str, ...]
    sizes: tuple[int, ...]
    steps: tuple[Step, ...]
    selection: Selection
    voting: Voting
    seed: int
    class_counts: Release | None = None
    fit: tuple[Release, ...] = ()

    @property
    def releases(self) -> list[Release]:
        """Every release that the run intends."""
        counts = [] if self.class_counts is None else [self.class_counts]
        return [*counts, *self.fit, *(step.release for step in self.steps)]


def by_label(sizes: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """Labels of a population with `sizes[c]` members of label c, in label order."""
    return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
