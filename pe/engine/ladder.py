"""Vary the same parents at several degrees, to see if a generator heeds them.

`pe probe --ladder` shows it; a run tries it once, at one degree, before its first samples.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

from pe.data.arrays import Float64Array, Int64Array
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

Items = Int64Array
Floats = Float64Array
Heeded = Literal["heeded", "ignored", "mixed up", "unknown"]

CHANCE = 1 / 16
"""A difference counts if the probability that chance makes one as clear (`chance`) is at
most this."""
GROWTH = 1.1
"""Distances count as farther at the higher degree if their sum is at least this many times the sum
at the lower."""
FEWEST = 5
"""Fewest parents from which anything is judged."""
STRAYED = 1 / 4
"""Least share of variations that are `astray` with which parents count as mixed up."""
NEAREST = 1 / 2
"""Parents count as heeded only if at least this share of variations lie nearest to their own. By
chance 1 of 8 do."""
SPACES = ("samples", "embedding")
"""The spaces of distances: between samples, as their modality measures them, and between their
vectors."""


@dataclass(frozen=True, eq=False)
class DegreeVariations:
    """The variations of one degree.

    A variation without a finite vector has the distance NaN in the embedding.
    """

    degree: float  # in [0, 1]
    parents: Items  # int64 (m,), the parent of each variation that was made, ascending
    samples: Samples  # the m variations
    # for each of SPACES, float64 (m,): the distance of each from its parent
    apart: dict[str, Floats]
    # for each of SPACES, the number of variations that lie no nearer to another parent than to
    # their own
    nearest: dict[str, int]
    # for each of SPACES, the number nearer to another parent than half that parent's distance from
    # their own
    astray: dict[str, int]

    @property
    def follows(self) -> bool:
        """True if these are variations of their own parents, as either space shows."""
        least = NEAREST * len(self.parents)
        return any(least <= self.nearest[space] > self.astray[space] for space in SPACES)

    @property
    def mixed_up(self) -> bool:
        """True if these do not follow their own parents, and a share STRAYED lies with another."""
        return not self.follows and any(
            self.astray[space] >= STRAYED * len(self.parents) for space in SPACES
        )

    def means(self) -> dict[str, float | None]:
        """Return the mean distance from the parent in each of SPACES.

        A mean is None if no distance is finite.
        """
        return {space: _mean(self.apart[space]) for space in SPACES}

    def describe(self) -> str:
        """Say in a clause how near the variations lie to their own parents."""
        nearest = max(self.nearest.values())
        astray = max(self.astray.values())
        return (
            f"of {len(self.parents)} variations of degree {self.degree:g}, {nearest} lie nearest "
            f"to their own parents, and {astray} lie with another's"
        )

    def count_equal(self, other: DegreeVariations) -> int:
        """Return the number of parents whose variations on both rungs are equal."""
        _, mine, theirs = np.intersect1d(self.parents, other.parents, return_indices=True)
        return int((self.samples.take(mine).distances(other.samples.take(theirs)) == 0).sum())


@dataclass(frozen=True)
class DegreeVerdict:
    """The verdict on a ladder."""

    # `heeded` or `ignored`; `mixed up` if variations lie with others' parents; `unknown` if too few
    degree: Heeded
    why: str  # the reason, a clause


def measure(
    degree: float,
    founders: Samples,
    answers: Iterable[tuple[Items, Samples]],
    embedding: Embedding | None,
) -> DegreeVariations:
    """Measure how far variations of `founders`, all of one degree, are from their parents.

    `answers` hold, for each request, the parents of the variations that were made, and these
    variations, one each. Without an embedding nothing is measured.
    """
    parts = [(np.empty(0, np.int64), founders.take(slice(0))), *answers]
    whole = np.concatenate([items for items, _ in parts])
    # Requests may be answered in any order, and parents must ascend.
    order = np.argsort(whole)
    variations = type(founders)(np.concatenate([samples.array for _, samples in parts])[order])
    if embedding is None:
        return DegreeVariations(degree, whole[order], variations, {}, {}, {})
    parents = founders.take(whole[order])
    at = embed(embedding, founders).astype(np.float64)[whole[order]]
    vectors = embed(embedding, variations).astype(np.float64) if len(variations) else at
    tables = {"samples": _table(variations, parents), "embedding": _norms(vectors, at)}
    between = {"samples": _table(parents, parents), "embedding": _norms(at, at)}
    return DegreeVariations(
        degree=degree,
        parents=whole[order],
        samples=variations,
        apart={space: np.diagonal(table) for space, table in tables.items()},
        nearest={
            space: int((np.diagonal(one) <= one.min(axis=1, initial=np.inf)).sum())
            for space, one in tables.items()
        },
        astray={
            space: int((tables[space] < between[space] / 2).any(axis=1).sum()) for space in SPACES
        },
    )


def judge(low: DegreeVariations, high: DegreeVariations, unit: str) -> DegreeVerdict:
    """Judge whether variations follow their parents, and lie farther at the higher degree.

    They lie farther if, between samples (in the `unit`) or in the embedding, distances grow by more
    than random signs of the differences explain (CHANCE), and at least by GROWTH. Of 8 parents,
    honest variations whose differences scatter by two thirds of their mean fail once in 300 times;
    variations that do not depend on the degree pass once in ten times, and never if equal seeds
    make them equal.
    """
    # Either degree may lack variations, so only parents that have both are compared.
    _, mine, theirs = np.intersect1d(low.parents, high.parents, return_indices=True)
    count = len(mine)
    least = f"{low.degree:g}"
    most = f"{high.degree:g}"
    if count < FEWEST:
        return DegreeVerdict(
            "unknown",
            f"{count} parents, not {FEWEST}, have variations of the degrees {least} and {most}",
        )
    if low.mixed_up:
        return DegreeVerdict("mixed up", low.describe())
    farther = any(_grows(low.apart[space][mine], high.apart[space][theirs]) for space in SPACES)
    near, far = (
        " and ".join(f"{_mean(one.apart[space][rows]) or 0:.3g}" for space in SPACES)
        for one, rows in ((low, mine), (high, theirs))
    )
    lie = "farther" if farther else "no farther"
    return DegreeVerdict(
        "heeded" if farther else "ignored",
        f"variations of degree {most} lie {lie} from their {count} parents than those of degree "
        f"{least}: {far} against {near} ({unit}; in the embedding)",
    )


def _grows(near: Floats, far: Floats) -> bool:
    """Return True if distances from parents grow by more than chance, and at least by GROWTH."""
    finite = np.isfinite(near) & np.isfinite(far)
    return chance(far - near) <= CHANCE and bool(far[finite].sum() >= GROWTH * near[finite].sum())


def chance(differences: Floats) -> float:
    """Return how often random signs give as large a sum (Fisher's exact test of pairs).

    NaN are left out. Below FEWEST differences the result is 1.
    """
    finite = differences[np.isfinite(differences)]
    if len(finite) < FEWEST:
        return 1.0
    sums = np.array(list(product((-1.0, 1.0), repeat=len(finite)))) @ finite
    return float(np.mean(sums >= finite.sum() - 1e-9 * np.abs(finite).sum()))


def rises(rungs: Sequence[DegreeVariations]) -> dict[str, bool]:
    """Return for each of SPACES True if the mean distance grows from each degree to the next."""
    means = [rung.means() for rung in rungs]
    return {
        # A mean of no distances becomes NaN, which is not above any other.
        space: bool((np.diff(np.array([one[space] for one in means], np.float64)) > 0).all())
        for space in SPACES
    }


def _table(samples: Samples, others: Samples) -> Floats:
    """Return a matrix: (i, j) is the distance of sample i from sample j of as many `others`."""
    rows = [samples.take([i] * len(samples)).distances(others) for i in range(len(samples))]
    return np.stack(rows).astype(np.float64) if rows else np.empty((0, 0))


def _norms(vectors: Floats, others: Floats) -> Floats:
    """Return a matrix: (i, j) is the distance of vector i from vector j of `others`."""
    norms: Floats = np.linalg.norm(vectors[:, None] - others[None], axis=2)
    return norms


def _mean(values: Floats) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else None


# The trial of a run. Its requests are chunks like all others: counted, priced, limited, and never
# repeated.


PHASE = "degree"
"""The trial's phases in the journal are degree/parents and, at the degree 0.4 for example,
degree/0.4."""


def check_parents(recipe: Recipe, plan: Plan, dispatcher: Dispatcher, embedding: Embedding) -> None:
    """Try once whether the generator varies the parents it is handed.

    Nothing is tried if the plan needs no trial, or if S_1 is there.

    Guarantee: it reads no private record, and its requests follow from public seeds.
    """
    run = dispatcher.run
    step = trial_step(plan)
    if (
        step is None
        or not Trial.of(recipe, plan, dispatcher.api)
        or run.journal.files(f"{population_place(1)}/")
    ):
        return
    if not (run.folder / DEGREE).is_file():
        run.write(DEGREE, json.dumps(_try(dispatcher, embedding, step), ensure_ascii=False) + "\n")
    dispatcher.forget(f"{PHASE}/{step.degree:g}")
    result = read_json_file(run.folder / DEGREE)
    name = type(dispatcher.api).__name__
    # Earlier versions wrote the degree's verdict instead.
    follows = result.get("follows", result.get("degree") not in ("ignored", "mixed up"))
    if follows is None:
        dispatcher.progress.warn(
            f"Whether {name} varies the parents it is handed is not known: {result['told']}."
        )
    elif not follows:
        raise APIError(
            f"{name} does not vary the parents it is handed: {result['told']}; `pe probe --ladder` "
            "shows it. Change `api`, or the server, and begin a new run; "
            f"`{dispatcher.command('evolution.measure_degree')}` with `never` goes on all the same."
        )


def _try(dispatcher: Dispatcher, embedding: Embedding, step: Step) -> dict[str, Any]:
    """Make the trial, and return its result: the content of the file DEGREE."""
    # With one condition they come in one request, if they ever do.
    alike = dispatcher.api.capabilities.shares != "nothing"
    labels = np.zeros(PARENTS, np.int32)
    parents = dispatcher.draw(
        f"{PHASE}/parents",
        f"{CONFIDENTIAL}/{PHASE}",
        labels,
        "trying the parents",
        alike,
    )
    phase = f"{PHASE}/{step.degree:g}"
    description = f"trying the degree: {step.degree:g}"
    with closing(dispatcher.vary_each(phase, parents, step.degree, step.t, description)) as answers:
        rung = measure(step.degree, parents.samples, answers, embedding)
    enough = len(rung.parents) >= FEWEST
    reason = (
        rung.describe()
        if enough
        else f"{len(rung.parents)} of {PARENTS} parents have a variation, not {FEWEST}"
    )
    return {"follows": rung.follows if enough else None, "degree": step.degree, "told": reason}
