"""Everything that a run will do, settled from public numbers before the first call."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pe.histogram import Voting
from pe.privacy.release import Release
from pe.selection import Descent


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
        descent: how S_t follows from the votes.
        reuse: k, when the lookahead's variations become offspring; else 0.
    """

    t: int
    sizes: tuple[int, ...]
    degree: float
    lookahead: int
    threshold: float
    release: Release
    descent: Descent = field(default_factory=Descent)
    reuse: int = 0


@dataclass(frozen=True)
class Plan:
    """What a run does, settled before its first call. All of it is public.

    Attributes:
        classes: the label names.
        sizes: members of S_0 per label.
        initial_variations: k, the variations in S_0 of each of its random samples.
        steps: one per iteration.
        voting: how records vote.
        seed: the recipe's seed.
        class_counts: the release of the label counts, where label sizes are estimated from it.
        fit: the releases that the generator is fitted by, before S_0.
    """

    classes: tuple[str, ...]
    sizes: tuple[int, ...]
    steps: tuple[Step, ...]
    voting: Voting
    seed: int
    initial_variations: int = 0
    class_counts: Release | None = None
    fit: tuple[Release, ...] = ()

    @property
    def first_degree(self) -> float:
        """v_1, at which S_0's variations are made, too."""
        return self.steps[0].degree if self.steps else 1.0

    @property
    def releases(self) -> list[Release]:
        """Every release that the run intends."""
        counts = [] if self.class_counts is None else [self.class_counts]
        return [*counts, *self.fit, *(step.release for step in self.steps)]


def by_label(sizes: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """Labels of a population with `sizes[c]` members of label c, in label order."""
    return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
