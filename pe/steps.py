"""Everything that a run will do, fixed by public numbers before the first call."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

import numpy as np

from pe.data.arrays import Int32Array
from pe.histogram import Voting
from pe.privacy.release import Release
from pe.selection import Descent


@dataclass(frozen=True)
class Step:
    """The plan of iteration t. All of it is public.

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
class PlannedPhase:
    """A phase in which the generator is asked for samples.

    Attributes:
        name: as in the journal: founders, population/2, lookahead/2.
        t: the iteration.
        most: most samples asked for; members that the votes keep, or the lookahead has made, are not asked for.
        exact: True if exactly `most` are asked for.
    """

    name: str
    t: int
    most: int
    exact: bool = True


@dataclass(frozen=True)
class Plan:
    """A run, fixed before its first call. All of it is public.

    Attributes:
        classes: the label names.
        sizes: members of S_0 per label.
        initial_variations: k, the number of variations that follow each random sample of S_0.
        steps: one per iteration.
        voting: how records vote.
        seed: the recipe's seed.
        class_counts: the release of the label counts, where label sizes are estimated from it.
        fit: the releases of the generator's fit, which comes before S_0.
        smooth: True if noisy votes are multiplied by claims; see `pe.claims.claims_on`.
    """

    classes: tuple[str, ...]
    sizes: tuple[int, ...]
    steps: tuple[Step, ...]
    voting: Voting
    seed: int
    initial_variations: int = 0
    class_counts: Release | None = None
    fit: tuple[Release, ...] = ()
    smooth: bool = False

    @property
    def first_degree(self) -> float:
        """v_1, which is the degree of the variations in S_0, too; 1 without iterations."""
        return self.steps[0].degree if self.steps else 1.0

    @property
    def last_sizes(self) -> tuple[int, ...]:
        """Members of S_T per label."""
        return self.steps[-1].sizes if self.steps else self.sizes

    def candidates(self, t: int) -> tuple[int, ...]:
        """Members of S_{t-1} per label: the candidates of iteration t ≥ 1."""
        return self.sizes if t == 1 else self.steps[t - 2].sizes

    @property
    def founders(self) -> tuple[int, ...]:
        """Random samples of S_0 per label; its other members are variations of them."""
        return tuple(ceil(size / (self.initial_variations + 1)) for size in self.sizes)

    @property
    def phases(self) -> list[PlannedPhase]:
        """The phases in which the generator is asked, in their order."""
        size, new = sum(self.sizes), sum(self.founders) if self.initial_variations else 0
        phases = [PlannedPhase("founders", 0, new)] if new else []
        phases.append(PlannedPhase("population/0", 0, size - new))
        for step in self.steps:
            if step.lookahead:
                ahead = step.lookahead * sum(self.candidates(step.t))
                phases.append(PlannedPhase(f"lookahead/{step.t}", step.t, ahead))
            exact = not step.reuse and step.descent.keep == "none" and step.degree > 0
            most = sum(step.sizes) if step.degree else 0
            phases.append(PlannedPhase(f"population/{step.t}", step.t, most, exact))
        return phases

    @property
    def releases(self) -> list[Release]:
        """All releases of the run: label counts, fit, histograms."""
        counts = [] if self.class_counts is None else [self.class_counts]
        return [*counts, *self.fit, *(step.release for step in self.steps)]


def by_label(sizes: tuple[int, ...]) -> Int32Array:
    """Return the labels of a population with `sizes[c]` members of label c, in label order, int32."""
    return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
