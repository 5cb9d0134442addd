"""The same parents varied at several degrees with equal seeds: whether a generator heeds degree and parent."""

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
SPACES = ("samples", "embedding")
"""Where distances are measured: between samples, as their modality does, and between their vectors."""


@dataclass(frozen=True, eq=False)
class Rung:
    """The variations of one degree. NaN in `apart` and `nearer` has no vector.

    Attributes:
        degree: in [0, 1].
        parents: int64 (m,), the parents of those variations that were made, ascending.
        samples: the m variations.
        apart: for each of SPACES, float64 (m,): the distance of each from its parent.
        nearer: likewise (≤ m,): of each that came in one answer with others: how much nearer its parent is than theirs,
            on average.
        strayed: likewise, how many of these lie nearer to another's parent than half way from there to their own.
    """

    degree: float
    parents: Items
    samples: Samples
    apart: dict[str, Floats]
    nearer: dict[str, Floats]
    strayed: dict[str, int]

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
    at = embed(embedding, founders).astype(np.float64)
    parents: list[Items] = [np.empty(0, np.int64)]
    samples = [founders.take(slice(0)).array]
    tables: dict[str, list[Floats]] = {space: [] for space in SPACES}
    strayed = dict.fromkeys(SPACES, 0)
    for members, made in answers:
        own, vectors = founders.take(members), embed(embedding, made).astype(np.float64)
        found = {
            "samples": (_table(made, own), _table(own, own)),
            "embedding": (_norms(vectors, at[members]), _norms(at[members], at[members])),
        }
        for space, (table, between) in found.items():
            tables[space].append(table)
            strayed[space] += int((table < between / 2).any(axis=1).sum())
        parents.append(members)
        samples.append(made.array)
    order = np.argsort(whole := np.concatenate(parents))
    return Rung(
        degree=degree,
        parents=whole[order],
        samples=type(founders)(np.concatenate(samples)[order]),
        apart={space: _joined(map(np.diagonal, tables[space]))[order] for space in SPACES},
        nearer={space: _joined(map(_nearer, tables[space])) for space in SPACES},
        strayed=strayed,
    )


def judge(low: Rung, high: Rung, unit: str) -> Verdict:
    """Whether variations of a low degree know their parent, and those of a high one go farther.

    Either is taken for shown if, between samples or in the embedding, the differences are more than chance makes of
    their signs (CHANCE), for degrees by GROWTH, too. Of 8 parents, honest variations whose differences scatter by two
    thirds of their mean fail once in 300 times; those that do not depend on the degree pass once in ten times, and
    never if equal seeds make them equal. Parents are called mixed up only if variations lie with others', besides, and
    neither samples nor vectors deny it.

    Args:
        low: of the lower degree, above 0.
        high: of the higher degree.
        unit: of distances between samples.
    """
    _, mine, its = np.intersect1d(low.parents, high.parents, return_indices=True)
    count, least, most = len(mine), f"{low.degree:g}", f"{high.degree:g}"
    if count < FEWEST:
        return Verdict("unknown", f"{count} parents, not {FEWEST}, have variations of the degrees {least} and {most}")
    if (strayed := _mixed_up(low)) is not None:
        return Verdict(
            "mixed up",
            f"of {len(low.parents)} variations of degree {least}, {strayed} belong to the parent of another one in the "
            "same answer, and all together lie no nearer to their own parents than to the others'",
        )
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


def _mixed_up(low: Rung) -> int | None:
    """How many variations lie with another's parent; None where they are not many, or one of SPACES denies it."""
    many = {space: low.strayed[space] >= STRAYED * len(low.parents) for space in SPACES}
    own = {space: chance(low.nearer[space]) <= CHANCE for space in SPACES}
    if any(own[space] and not many[space] for space in SPACES):
        return None
    return max((low.strayed[space] for space in SPACES if many[space] and not own[space]), default=None)


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


def _nearer(table: Floats) -> Floats:
    """Of a table of distances, (i, j) that of variation i from j's parent: the others' mean less one's own."""
    count = len(table)
    own = np.diagonal(table)
    return (table.sum(axis=1) - own) / (count - 1) - own if count > 1 else np.empty(0)


def _table(samples: Samples, others: Samples) -> Floats:
    """(i, j): how far sample i is from the j-th of the others, which are as many."""
    return np.stack([samples.take([i] * len(samples)).distances(others) for i in range(len(samples))])


def _norms(vectors: Floats, others: Floats) -> Floats:
    """(i, j): how far vector i is from the j-th of the others."""
    found: Floats = np.linalg.norm(vectors[:, None] - others[None], axis=2)
    return found


def _joined(parts: Iterable[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *parts])


def _mean(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None
