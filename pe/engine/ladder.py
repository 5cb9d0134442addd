"""Vary the same parents at one degree or several, to see if a generator heeds its parents and the degree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Literal

import numpy as np
import numpy.typing as npt

from pe.data.samples import Samples
from pe.lookahead import embed
from pe.plugins.protocols import Embedding

Items = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Heeded = Literal["heeded", "ignored", "mixed up", "unknown"]

CHANCE = 1 / 16
"""Something is taken for shown if chance shows it so clearly at most so often."""
GROWTH = 1.1
"""How many times as far as those of the lower degree variations of the higher one lie, at the least."""
FEWEST = 5
"""Parents, at the fewest, by which anything is judged."""
STRAYED = 1 / 4
"""Share of variations, at the least, that lie with another parent where parents are mixed up."""
NEAREST = 1 / 2
"""Share of variations, at the least, whose nearest parent is their own where they are heeded; chance makes 1 of 8."""
SPACES = ("samples", "embedding")
"""Where distances are measured: between samples, as their modality does, and between their vectors."""


@dataclass(frozen=True, eq=False)
class Rung:
    """The variations of one degree. NaN in `apart` has no vector.

    Attributes:
        degree: in [0, 1].
        parents: int64 (m,), the parents of those variations that were made, ascending.
        samples: the m variations.
        apart: for each of SPACES, float64 (m,): the distance of each from its parent.
        nearest: for each of SPACES, how many lie no nearer to another of the parents than to their own.
        strayed: likewise, how many lie nearer to another parent than half way from there to their own.
    """

    degree: float
    parents: Items
    samples: Samples
    apart: dict[str, Floats]
    nearest: dict[str, int]
    strayed: dict[str, int]

    @property
    def follows(self) -> bool:
        """True if these are variations of their own parents, as either space shows."""
        least = NEAREST * len(self.parents)
        return any(least <= self.nearest[space] > self.strayed[space] for space in SPACES)

    @property
    def mixed_up(self) -> bool:
        """True if these are variations of others' parents instead."""
        return not self.follows and any(map(self._strays, SPACES))

    def _strays(self, space: str) -> bool:
        return self.strayed[space] >= STRAYED * len(self.parents)

    def means(self) -> dict[str, float | None]:
        """The mean distance from the parent in each of SPACES; None where there is none."""
        return {space: _mean(self.apart[space]) for space in SPACES}


@dataclass(frozen=True)
class Verdict:
    """What a ladder shows.

    Attributes:
        degree: whether the degree is heeded or ignored; whether parents come back mixed up; or that it is not known.
        told: in a clause.
    """

    degree: Heeded
    told: str


def measure(degree: float, founders: Samples, answers: Iterable[tuple[Items, Samples]], embedding: Embedding) -> Rung:
    """How far variations of `founders` are from their parents.

    Args:
        degree: of all of them.
        founders: the parents.
        answers: request by request: (the parents of those that were made, one variation of each).
        embedding: maps samples to vectors.
    """
    answered = [(np.empty(0, np.int64), founders.take(slice(0))), *answers]
    whole = np.concatenate([items for items, _ in answered])
    order = np.argsort(whole)
    made = type(founders)(np.concatenate([samples.array for _, samples in answered])[order])
    parents, at = founders.take(whole[order]), embed(embedding, founders).astype(np.float64)[whole[order]]
    vectors = embed(embedding, made).astype(np.float64) if len(made) else at
    tables = {"samples": _table(made, parents), "embedding": _norms(vectors, at)}
    between = {"samples": _table(parents, parents), "embedding": _norms(at, at)}
    return Rung(
        degree=degree,
        parents=whole[order],
        samples=made,
        apart={space: np.diagonal(table) for space, table in tables.items()},
        nearest={
            space: int((np.diagonal(one) <= one.min(axis=1, initial=np.inf)).sum()) for space, one in tables.items()
        },
        strayed={space: int((tables[space] < between[space] / 2).any(axis=1).sum()) for space in SPACES},
    )


def judge(low: Rung, high: Rung, unit: str) -> Verdict:
    """True if variations of a low degree are of their own parents, and those of a high one go farther.

    The latter is taken for shown if, between samples or in the embedding, the differences are more than chance makes of
    their signs (CHANCE), and by GROWTH, too. Of 8 parents, honest variations whose differences scatter by two
    thirds of their mean fail once in 300 times; those that do not depend on the degree pass once in ten times, and
    never if equal seeds make them equal.

    Args:
        low: of the lower degree, above 0.
        high: of the higher degree.
        unit: of distances between samples.
    """
    _, mine, its = np.intersect1d(low.parents, high.parents, return_indices=True)
    count, least, most = len(mine), f"{low.degree:g}", f"{high.degree:g}"
    if count < FEWEST:
        return Verdict("unknown", f"{count} parents, not {FEWEST}, have variations of the degrees {least} and {most}")
    if low.mixed_up:
        return Verdict("mixed up", described(low))
    farther = any(_grows(low.apart[space][mine], high.apart[space][its]) for space in SPACES)
    near, far = (
        " and ".join(f"{_mean(one.apart[space][rows]) or 0:.3g}" for space in SPACES)
        for one, rows in ((low, mine), (high, its))
    )
    lie = "farther" if farther else "no farther"
    return Verdict(
        "heeded" if farther else "ignored",
        f"variations of degree {most} lie {lie} from their {count} parents than those of degree {least}: {far} against "
        f"{near} ({unit}; in the embedding)",
    )


def _grows(near: Floats, far: Floats) -> bool:
    """Whether distances from the same parents grow, by more than chance and by a share that is worth having."""
    known = np.isfinite(near) & np.isfinite(far)
    return chance(far - near) <= CHANCE and bool(far[known].sum() >= GROWTH * near[known].sum())


def described(rung: Rung) -> str:
    """Say in a clause how near variations of one degree lie to their own parents."""
    nearest, strayed = max(rung.nearest.values()), max(rung.strayed.values())
    return (
        f"of {len(rung.parents)} variations of degree {rung.degree:g}, {nearest} lie nearest to their own parents, and "
        f"{strayed} lie with another's"
    )


def chance(differences: Floats) -> float:
    """How often random signs give differences as large a sum, in (0, 1]: Fisher's exact test of pairs. NaN is left out.

    1 for fewer than FEWEST.
    """
    known = differences[np.isfinite(differences)]
    if len(known) < FEWEST:
        return 1.0
    sums = np.array(list(product((-1.0, 1.0), repeat=len(known)))) @ known
    return float(np.mean(sums >= known.sum() - 1e-9 * np.abs(known).sum()))


def rises(rungs: Sequence[Rung]) -> dict[str, bool]:
    """Whether the mean distance grows from each degree to the next, in each of SPACES."""
    means = {space: [_mean(rung.apart[space]) for rung in rungs] for space in SPACES}
    return {
        space: all(a is not None and b is not None and a < b for a, b in pairwise(of)) for space, of in means.items()
    }


def equal(rung: Rung, other: Rung) -> int:
    """How many parents have the same variation on both rungs."""
    _, mine, its = np.intersect1d(rung.parents, other.parents, return_indices=True)
    return int((rung.samples.take(mine).distances(other.samples.take(its)) == 0).sum())


def _table(samples: Samples, others: Samples) -> Floats:
    """(i, j): how far sample i is from the j-th of the others, which are as many."""
    rows = [samples.take([i] * len(samples)).distances(others) for i in range(len(samples))]
    return np.stack(rows).astype(np.float64) if rows else np.empty((0, 0))


def _norms(vectors: Floats, others: Floats) -> Floats:
    """(i, j): how far vector i is from the j-th of the others."""
    found: Floats = np.linalg.norm(vectors[:, None] - others[None], axis=2)
    return found


def _mean(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None
