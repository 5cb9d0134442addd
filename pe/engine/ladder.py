"""Vary the same parents at one degree or several, to see if a generator heeds its parents and the degree.

`pe probe --ladder` shows it; a run tries its parents once, before its first samples.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pe.data.samples import Samples
from pe.dispatch.dispatcher import Dispatcher
from pe.errors import APIError
from pe.lookahead import embed
from pe.planning.calls import PARENTS, Trial, trial_step
from pe.plugins.protocols import Embedding
from pe.recipe.schema import Recipe
from pe.steps import Plan, Step
from pe.store.certified import read_json_file
from pe.store.places import CONFIDENTIAL, DEGREE, population_place

Items = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Heeded = Literal["heeded", "ignored", "mixed up", "unknown"]

CHANCE = 1 / 16
"""A difference counts if chance makes so clear a one at most so often."""
GROWTH = 1.1
"""Least distance of variations of the higher degree, over that of the lower one."""
FEWEST = 5
"""Parents, at the fewest, by which anything is judged."""
STRAYED = 1 / 4
"""Share of variations, at the least, that lie with another parent where parents are mixed up."""
NEAREST = 1 / 2
"""Share of variations, at the least, whose nearest parent is their own where they are heeded; chance makes 1 of 8."""
SPACES = ("samples", "embedding")
"""The spaces of distances: between samples, as their modality measures them, and between their vectors."""


@dataclass(frozen=True, eq=False)
class Rung:
    """The variations of one degree. NaN in `apart` has no vector.

    Attributes:
        degree: in [0, 1].
        parents: int64 (m,), the parents of those variations that were made, ascending.
        samples: the m variations.
        apart: for each of SPACES, float64 (m,): the distance of each from its parent.
        nearest: for each of SPACES, the number that lie no nearer to another of the parents than to their own.
        astray: for each of SPACES, the number that lie nearer to another parent than half way from there to their own.
    """

    degree: float
    parents: Items
    samples: Samples
    apart: dict[str, Floats]
    nearest: dict[str, int]
    astray: dict[str, int]

    @property
    def follows(self) -> bool:
        """True if these are variations of their own parents, as either space shows."""
        least = NEAREST * len(self.parents)
        return any(least <= self.nearest[space] > self.astray[space] for space in SPACES)

    @property
    def mixed_up(self) -> bool:
        """True if these are variations of others' parents instead."""
        return not self.follows and any(self.astray[space] >= STRAYED * len(self.parents) for space in SPACES)

    def means(self) -> dict[str, float | None]:
        """Return the mean distance from the parent in each of SPACES; None where there is none."""
        return {space: _mean(self.apart[space]) for space in SPACES}

    def describe(self) -> str:
        """Say in a clause how near the variations lie to their own parents."""
        nearest, astray = max(self.nearest.values()), max(self.astray.values())
        return (
            f"of {len(self.parents)} variations of degree {self.degree:g}, {nearest} lie nearest to their own parents, "
            f"and {astray} lie with another's"
        )

    def count_equal(self, other: Rung) -> int:
        """Return the number of parents that have the same variation on both rungs."""
        _, mine, theirs = np.intersect1d(self.parents, other.parents, return_indices=True)
        return int((self.samples.take(mine).distances(other.samples.take(theirs)) == 0).sum())


@dataclass(frozen=True)
class Verdict:
    """The verdict on a ladder.

    Attributes:
        degree: it is heeded or ignored; parents come back mixed up; or that is not known.
        why: the reason, a clause.
    """

    degree: Heeded
    why: str


def measure(degree: float, founders: Samples, answers: Iterable[tuple[Items, Samples]], embedding: Embedding) -> Rung:
    """Measure how far variations of `founders`, all of one degree, are from their parents.

    `answers` hold, request by request, the parents of those that were made, and one variation of each.
    """
    parts = [(np.empty(0, np.int64), founders.take(slice(0))), *answers]
    whole = np.concatenate([items for items, _ in parts])
    order = np.argsort(whole)
    variations = type(founders)(np.concatenate([samples.array for _, samples in parts])[order])
    parents, at = founders.take(whole[order]), embed(embedding, founders).astype(np.float64)[whole[order]]
    vectors = embed(embedding, variations).astype(np.float64) if len(variations) else at
    tables = {"samples": _table(variations, parents), "embedding": _norms(vectors, at)}
    between = {"samples": _table(parents, parents), "embedding": _norms(at, at)}
    return Rung(
        degree=degree,
        parents=whole[order],
        samples=variations,
        apart={space: np.diagonal(table) for space, table in tables.items()},
        nearest={
            space: int((np.diagonal(one) <= one.min(axis=1, initial=np.inf)).sum()) for space, one in tables.items()
        },
        astray={space: int((tables[space] < between[space] / 2).any(axis=1).sum()) for space in SPACES},
    )


def judge(low: Rung, high: Rung, unit: str) -> Verdict:
    """Judge if variations of a low degree are of their own parents, and those of a high one go farther.

    They go farther if, between samples (whose distances have the `unit`) or in the embedding, the differences are more
    than chance makes of their signs (CHANCE), and by GROWTH, too. Of 8 parents, honest variations whose differences
    scatter by two thirds of their mean fail once in 300 times; those that do not depend on the degree pass once in ten
    times, and never if equal seeds make them equal.
    """
    _, mine, theirs = np.intersect1d(low.parents, high.parents, return_indices=True)
    count, least, most = len(mine), f"{low.degree:g}", f"{high.degree:g}"
    if count < FEWEST:
        return Verdict("unknown", f"{count} parents, not {FEWEST}, have variations of the degrees {least} and {most}")
    if low.mixed_up:
        return Verdict("mixed up", low.describe())
    farther = any(_grows(low.apart[space][mine], high.apart[space][theirs]) for space in SPACES)
    near, far = (
        " and ".join(f"{_mean(one.apart[space][rows]) or 0:.3g}" for space in SPACES)
        for one, rows in ((low, mine), (high, theirs))
    )
    lie = "farther" if farther else "no farther"
    return Verdict(
        "heeded" if farther else "ignored",
        f"variations of degree {most} lie {lie} from their {count} parents than those of degree {least}: {far} against "
        f"{near} ({unit}; in the embedding)",
    )


def _grows(near: Floats, far: Floats) -> bool:
    """True if distances from the same parents grow, by more than chance and by a share that is worth having."""
    finite = np.isfinite(near) & np.isfinite(far)
    return chance(far - near) <= CHANCE and bool(far[finite].sum() >= GROWTH * near[finite].sum())


def chance(differences: Floats) -> float:
    """Return how often random signs give as large a sum: Fisher's exact test of pairs; NaN is left out, 1 for few."""
    finite = differences[np.isfinite(differences)]
    if len(finite) < FEWEST:
        return 1.0
    sums = np.array(list(product((-1.0, 1.0), repeat=len(finite)))) @ finite
    return float(np.mean(sums >= finite.sum() - 1e-9 * np.abs(finite).sum()))


def rises(rungs: Sequence[Rung]) -> dict[str, bool]:
    """Say for each of SPACES if the mean distance grows from each degree to the next."""
    means = {space: [_mean(rung.apart[space]) for rung in rungs] for space in SPACES}
    return {
        space: all(a is not None and b is not None and a < b for a, b in pairwise(of)) for space, of in means.items()
    }


def _table(samples: Samples, others: Samples) -> Floats:
    """(i, j): the distance of sample i from the j-th of the others, which are as many."""
    rows = [samples.take([i] * len(samples)).distances(others) for i in range(len(samples))]
    return np.stack(rows).astype(np.float64) if rows else np.empty((0, 0))


def _norms(vectors: Floats, others: Floats) -> Floats:
    """(i, j): the distance of vector i from the j-th of the others."""
    norms: Floats = np.linalg.norm(vectors[:, None] - others[None], axis=2)
    return norms


def _mean(values: Floats) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else None


# The trial of a run. Its requests are chunks like all others: counted, priced, limited, and never repeated.


PHASE = "degree"
"""Its phases are degree/parents and, with the degree in place of 0.4, degree/0.4."""


def check_parents(recipe: Recipe, plan: Plan, dispatcher: Dispatcher, embedding: Embedding) -> None:
    """Try once if variations are of their own parents; nothing if that is not called for, or S_1 is there.

    Guarantee: it reads no private record, and its requests follow from public seeds.
    """
    run, step = dispatcher.run, trial_step(plan)
    if step is None or not Trial.of(recipe, plan, dispatcher.api) or run.journal.files(f"{population_place(1)}/"):
        return
    if not (run.folder / DEGREE).is_file():
        run.write(DEGREE, json.dumps(_try(dispatcher, embedding, step), ensure_ascii=False) + "\n")
    dispatcher.forget(f"{PHASE}/{step.degree:g}")
    result, name = read_json_file(run.folder / DEGREE), type(dispatcher.api).__name__
    follows = result.get("follows", result.get("degree") not in ("ignored", "mixed up"))  # as versions before wrote it
    if follows is None:
        dispatcher.progress.warn(f"Whether {name} varies the parents it is handed is not known: {result['told']}.")
    elif not follows:
        raise APIError(
            f"{name} does not vary the parents it is handed: {result['told']}; `pe probe --ladder` shows it. Change "
            f"`api`, or the server, and begin a new run; `{dispatcher.command('evolution.measure_degree')}` with "
            "`never` goes on all the same."
        )


def _try(dispatcher: Dispatcher, embedding: Embedding, step: Step) -> dict[str, Any]:
    """Return the content of DEGREE."""
    alike = dispatcher.api.capabilities.shares != "nothing"  # so that they come in one request, if they ever do
    labels = np.zeros(PARENTS, np.int32)
    parents = dispatcher.draw(f"{PHASE}/parents", f"{CONFIDENTIAL}/{PHASE}", labels, "trying the parents", alike)
    phase, description = f"{PHASE}/{step.degree:g}", f"trying the degree: {step.degree:g}"
    with closing(dispatcher.vary_each(phase, parents, step.degree, step.t, description)) as answers:
        rung = measure(step.degree, parents.samples, answers, embedding)
    enough = len(rung.parents) >= FEWEST
    reason = rung.describe() if enough else f"{len(rung.parents)} of {PARENTS} parents have a variation, not {FEWEST}"
    return {"follows": rung.follows if enough else None, "degree": step.degree, "told": reason}
