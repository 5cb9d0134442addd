"""Everything that a run will do, fixed by public numbers before the first call."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Literal

import numpy as np

from pe.data.arrays import Int32Array
from pe.histogram import Voting
from pe.privacy.release import Release
from pe.selection import SelectionRule

Sizes = tuple[int, ...]
"""Numbers of members, one for each label."""


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
        selection_rule: how S_t follows from the votes.
        reuse: k, when the lookahead's variations become offspring; else 0.
    """

    t: int
    sizes: Sizes
    degree: float
    lookahead: int
    threshold: float
    release: Release
    selection_rule: SelectionRule = field(default_factory=SelectionRule)
    reuse: int = 0

    def offspring(self, size: int, parents: int) -> int:
        """Return the most samples asked for, for `size` members of a label with so many parents."""
        if not self.degree:  # copies of the chosen
            return 0
        staying = {"none": 0, "selected": 1, "winners": 0, "all": parents}[self.selection_rule.keep]
        return max(size - staying - self.reuse, 0)


@dataclass(frozen=True)
class Phase:
    """One piece of a run's work.

    It is a release, the rest of a fit, or samples that the generator is asked for.

    Attributes:
        name: as in the journal: founders, population/2, lookahead/2; of a release, the release's
            name.
        t: the iteration; 0 before the first one.
        release: what is released, if anything is.
        asks: the function of the generator that is asked; empty if none is.
        samples: most samples asked for, per label. Fewer are asked for where votes keep members.
        parents: members that may be varied, per label.
        ahead: variations of each chosen parent that the lookahead has made already.
    """

    name: str
    t: int
    release: Release | None = None
    asks: Literal["", "random", "variation"] = ""
    samples: Sizes = ()
    parents: Sizes = ()
    ahead: int = 0

    @property
    def most(self) -> int:
        """Most samples asked for, over all labels."""
        return sum(self.samples)

    @property
    def makes(self) -> bool:
        """True if the samples are members of S_t."""
        return self.name.startswith("population/")


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
        smooth: True if noisy votes are multiplied by label weights; see `pe.nearest.label_weights`.
    """

    classes: tuple[str, ...]
    sizes: Sizes
    steps: tuple[Step, ...]
    voting: Voting
    seed: int
    initial_variations: int = 0
    class_counts: Release | None = None
    fit: tuple[Release, ...] = ()
    smooth: bool = False

    @property
    def first_degree(self) -> float:
        """v_1, which is the degree of the variations in S_0, too. 1 without iterations."""
        return self.steps[0].degree if self.steps else 1.0

    @property
    def last_sizes(self) -> Sizes:
        """Members of S_T per label."""
        return self.sizes_at(len(self.steps))

    def sizes_at(self, t: int) -> Sizes:
        """Members of S_t per label."""
        return self.steps[t - 1].sizes if t else self.sizes

    def candidates(self, t: int) -> Sizes:
        """Members of S_{t-1} per label: the candidates of iteration t ≥ 1."""
        return self.sizes_at(t - 1)

    @property
    def founders(self) -> Sizes:
        """Random samples of S_0 per label. Its other members are variations of them."""
        return tuple(ceil(size / (self.initial_variations + 1)) for size in self.sizes)

    @property
    def phases(self) -> list[Phase]:
        """All of the run's work, in its order."""
        before = [] if self.class_counts is None else [self.class_counts]
        # Label counts come first, because the sizes of all that follow may depend on them.
        phases = [Phase(release.name, 0, release) for release in (*before, *self.fit)]
        if self.fit:
            phases.append(Phase("fit", 0))
        varied = tuple(size - new for size, new in zip(self.sizes, self.founders, strict=True))
        if self.initial_variations:
            phases.append(Phase("founders", 0, asks="random", samples=self.founders))
            phases.append(
                Phase("population/0", 0, asks="variation", samples=varied, parents=self.founders)
            )
        else:
            phases.append(Phase("population/0", 0, asks="random", samples=self.sizes))
        for step in self.steps:
            t = step.t
            parents = self.candidates(step.t)
            if step.lookahead:
                ahead = tuple(step.lookahead * size for size in parents)
                phases.append(
                    Phase(f"lookahead/{t}", t, asks="variation", samples=ahead, parents=parents)
                )
            phases.append(Phase(step.release.name, t, step.release))
            phases.append(
                Phase(
                    f"population/{t}",
                    t,
                    asks="variation",
                    samples=tuple(map(step.offspring, step.sizes, parents)),
                    parents=parents,
                    ahead=step.reuse,
                )
            )
        return phases

    @property
    def releases(self) -> list[Release]:
        """All releases of the run: label counts, fit, histograms."""
        return [phase.release for phase in self.phases if phase.release is not None]


def by_label(sizes: Sizes) -> Int32Array:
    """Return the labels of a population, int32, in order: `sizes[c]` members have label c."""
    return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
