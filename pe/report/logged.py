"""What a logger is told of an iteration: values that may be shared, and no other.

Guarantee: made of the run's shareable side (populations, releases, recipe) and of what the generator billed, all
post-processing of the releases; no time, and nothing under confidential/.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pe.report.diagnostics import noisy_votes
from pe.report.pictures import contact_sheet
from pe.steps import Plan
from pe.store.run import Run


@dataclass(frozen=True)
class Logged:
    """S_t.

    Attributes:
        run: the name of the run's directory.
        t: the iteration, ≥ 0.
        noun: what samples are called.
        sizes: label → members.
        votes: of S_{t−1}, noisy: highest, mean, over the threshold (a share); empty at t = 0.
        epsilon: of all planned releases; None: none holds.
        delta: δ.
        images: billed so far; None: S_t was there before this process.
        cost: of all that was billed so far, in the price's currency; None: likewise.
        picture: a PNG file: S_t's samples by label.
    """

    run: str
    t: int
    noun: str
    sizes: Mapping[str, int]
    votes: Mapping[str, float]
    epsilon: float | None
    delta: float
    images: int | None
    cost: float | None
    picture: bytes

    def numbers(self) -> dict[str, float]:
        """All of them by names that any logger takes: letters, digits, spaces, `_`, `-`, `.` and `/`."""
        names = (re.sub(r"[^\w .-]", "_", name).strip() for name in self.sizes)
        sizes = {f"size/{i} {name}": n for i, (name, n) in enumerate(zip(names, self.sizes.values(), strict=True))}
        votes = {f"votes/{name}": value for name, value in self.votes.items()}
        others = {"privacy/epsilon": self.epsilon, "privacy/delta": self.delta}
        others |= {"billed/images": self.images, "billed/cost": self.cost}
        return sizes | votes | {name: float(value) for name, value in others.items() if value is not None}


class Logger(Protocol):
    """A plug-in of the group `pe.loggers`, constructed with one text: where it logs to.

    A resumed run tells every iteration again, by the same `t`.
    """

    def log(self, logged: Logged) -> None:
        """One more iteration; they come in order."""
        ...

    def close(self) -> None:
        """The run has ended, or stopped."""
        ...


def logged(
    run: Run, plan: Plan, t: int, epsilon: float | None, delta: float, images: int | None, cost: float | None
) -> Logged:
    """What may be told of S_t, which is finished."""
    population = run.population(t)
    assert population is not None
    counts = np.bincount(population.labels, minlength=len(plan.classes)).tolist()
    return Logged(
        run=run.name,
        t=t,
        noun=population.samples.noun,
        sizes=dict(zip(plan.classes, counts, strict=True)),
        votes=_votes(run, plan, t) if t else {},
        epsilon=epsilon,
        delta=delta,
        images=images,
        cost=cost,
        picture=contact_sheet([population], plan.classes),
    )


def _votes(run: Run, plan: Plan, t: int) -> dict[str, float]:
    step = plan.steps[t - 1]
    votes = noisy_votes(run, step)
    if votes is None or not len(votes):
        return {}
    over = float(np.mean(votes > step.threshold))
    return {"highest": float(votes.max()), "mean": float(votes.mean()), "over the threshold": over}
