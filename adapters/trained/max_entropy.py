"""Rows weighted so that they agree with noisy counts of the private rows: of values, of pairs, of nearest rows.

A pool of made-up rows of each label gets the weights of largest entropy that agree, as far as noise tells, with the
noisy counts (Jaynes 1957; McKenna et al. 2019). Values and pairs are counted as marginals are. Nearest rows are counted
as Private Evolution votes, for candidates that are drawn from the pool by the weights so far; the votes of all rounds
stay in use, since each row of the pool would vote as a record does.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from adapters.tables import MakesRows
from adapters.trained.fit import BELOW_ONE, Draws, Fit, FittedMethod, label_numbers, not_fitted, reading
from pe.data.columns import Codes, Column, Columns
from pe.data.rows import Rows
from pe.data.samples import Seeds, generator, uniforms
from pe.fit.trainer import FIT, FitTerms, PrivateRecords
from pe.plugins.protocols import Answer, PluginInfo, RandomRequest
from pe.privacy.calibration import calibrate
from pe.privacy.noise import Noise
from pe.privacy.release import Relation, Release

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Cells = Callable[[Codes, Integers], tuple[Integers, Integers]]
"""(codes, labels) → (rows, cells): the cells to which each row adds 1, int64, as pairs of equal length."""

GRID = 2**22
"""Grid steps to which the vector of one record is cut, whose L2 norm is then at most 1."""

BINS, GROUPS, LEVELS = 32, 8, 3
"""Ranges into which a number is cut, where there is much at most LEVELS times; groups of a value in pairs."""
POOL, CANDIDATES, ROUNDS, RENEWALS, KEPT = 20_000, 200, 8, 3, 0.3
"""Of a label: rows of the pool, candidates in a round, rounds, renewals of the pool before; share that then stays."""
STEPS, REDRAWN = (0.25, 0.03), 0.2
"""Step of a mutation, as a share of a number's range, in the first and last round; rate at which a value is redrawn."""
PENALTY, ITERATIONS = 0.25, 60
"""Weight of the entropy, chosen on other tables (benchmarks/results/tables.md); iterations of L-BFGS."""
_UNIT, _CATEGORY = 1023, 341  # a number's range and a category's one-hot part, as whole numbers: distances are exact
_MODEL = "pool.npz"


@dataclass(frozen=True)
class Shares:
    """Shares of the budget, in 1/σ²; those of draws that are not made fall to the values."""

    labels: float = 0.01
    values: float = 0.1
    pairs: float = 0.3
    votes: float = 0.59


@dataclass(frozen=True, eq=False)
class Bins:
    """Ranges of codes in each column: bin b of column j holds edges[j][b] ≤ code < edges[j][b + 1]."""

    edges: list[Integers]

    @classmethod
    def of(cls, columns: Columns) -> Bins:
        """Return a bin for each category, and at most BINS for an ordered column; missing values, if any, have one."""
        edges = []
        for one in columns.values():
            ends = _cut(0, one.size, BINS) if one.is_ordered else np.arange(one.size + 1)
            edges.append(np.append(ends, one.size + 1) if one.missing else ends)
        return cls(edges)

    @cached_property
    def starts(self) -> Integers:
        """The first cell of each column, and the number of cells, int64 (d + 1,)."""
        return np.concatenate([[0], np.cumsum([len(one) - 1 for one in self.edges])])

    def places(self, codes: Codes) -> Integers:
        """Return the bin of each value, int64 (n, d)."""
        places = [np.searchsorted(one[1:-1], codes[:, j], "right") for j, one in enumerate(self.edges)]
        return np.stack(places, axis=1)

    def cells(self, columns: Sequence[int]) -> Cells:
        """Return the cells label × bins of some columns."""

        def cells(codes: Codes, labels: Integers) -> tuple[Integers, Integers]:
            places = (labels[:, None] * self.starts[-1] + self.starts[:-1] + self.places(codes))[:, list(columns)]
            return np.repeat(np.arange(len(codes)), len(columns)), places.ravel()

        return cells

    def draw(self, shares: list[Floats], numbers: Floats, within: Floats) -> Codes:
        """Return codes, int64 (n, d): a bin by `shares` (of each column, (bins,)), and a value within it evenly."""
        codes = np.empty(numbers.shape, np.int64)
        for j, edges in enumerate(self.edges):
            ends = np.cumsum(shares[j])
            bins = np.minimum(np.searchsorted(ends, numbers[:, j] * ends[-1], "right"), len(ends) - 1)
            codes[:, j] = edges[bins] + (within[:, j] * np.diff(edges)[bins]).astype(np.int64)
        return codes


@dataclass(frozen=True, eq=False)
class Groups:
    """Pairs of columns, each value in one of GROUPS groups of its column, with about the same number of records."""

    bins: Bins
    group: list[Integers]  # of each bin of each column

    @classmethod
    def of(cls, columns: Columns, bins: Bins, shares: list[Floats]) -> Groups:
        """Group neighbouring bins of numbers; of categories the rarest are one group. `shares`: of all labels."""
        group = []
        for column, share in zip(columns.values(), shares, strict=True):
            middle = (np.cumsum(share) - share / 2) / share.sum()
            rank = np.argsort(np.argsort(-share, kind="stable"), kind="stable")
            one = np.minimum((GROUPS * middle).astype(np.int64) if column.is_ordered else rank, GROUPS - 1)
            group.append(np.unique(one, return_inverse=True)[1].astype(np.int64))
        return cls(bins, group)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of columns."""
        return list(combinations(range(len(self.group)), 2))

    @property
    def number(self) -> int:
        """The number of cells of a label."""
        return len(self.pairs) * GROUPS**2

    def cells(self, codes: Codes, labels: Integers) -> tuple[Integers, Integers]:
        """Return the cells label × pair × groups, see `Cells`."""
        places = self.bins.places(codes)
        groups = np.stack([one[places[:, j]] for j, one in enumerate(self.group)], axis=1)
        cells = [i * GROUPS**2 + groups[:, a] * GROUPS + groups[:, b] for i, (a, b) in enumerate(self.pairs)]
        whole = labels[:, None] * self.number + np.stack(cells, axis=1)
        return np.repeat(np.arange(len(codes)), len(cells)), whole.ravel()


def noisy_counts(
    codes: Codes,
    records: PrivateRecords,
    cells: Cells,
    number: int,
    norm: float,
    release: Release,
    noise: Noise,
) -> Integers:
    """Return noisy counts of cells, int64 (number,), to each of which a record adds 1 if `cells` names it.

    A count of 1 is grid / norm steps. `codes` are the records'.

    Guarantee: the release's. Each record adds to at most norm² cells, which follow from it and from public values; a
    unit's n records weigh 1/n each, rounded toward zero on the grid. So adding or removing a unit changes the sum, over
    the grid times norm, by at most 1 in L2 norm; replacing one by at most √2, as no number of either vector is below 0.
    """
    _, unit, of_unit = np.unique(records.units, return_inverse=True, return_counts=True)
    weights = np.trunc(release.grid * BELOW_ONE / norm / of_unit[unit]).astype(np.int64)
    rows, places = cells(codes, records.labels.astype(np.int64))
    total = np.zeros(number, np.int64)
    np.add.at(total, places, weights[rows])
    return total + noise.discrete_gaussian(total.shape, release.scale)


def embed(columns: Columns, codes: Codes) -> Floats:
    """Return vectors of whole numbers, as `mixed` has them but for a factor, float64 (n, D): products are exact."""
    parts = []
    for j, column in enumerate(columns.values()):
        is_missing = codes[:, j] == column.size
        if column.is_ordered:
            places = np.rint(codes[:, j] * (_UNIT / max(column.size - 1, 1)))
            parts += [np.where(is_missing, _UNIT // 2, places)[:, None], _CATEGORY * is_missing[:, None]]
        else:
            parts.append(_CATEGORY * (codes[:, j, None] == np.arange(column.size + 1)))
    return np.concatenate(parts, axis=1).astype(np.float64)


def nearest(vectors: Floats, candidates: Floats) -> Integers:
    """Return the nearest candidate of each vector of whole numbers, the first of equals, int64 (n,); exact."""
    squares = np.square(candidates).sum(axis=1)
    blocks = (vectors[start : start + 4096] for start in range(0, len(vectors), 4096))
    places = [np.argmin(squares - 2 * (block @ candidates.T), axis=1) for block in blocks]
    return np.concatenate([*places, np.zeros(0, np.int64)]).astype(np.int64)


def max_entropy(matrix: Any, values: Floats, variances: Floats, total: float) -> Floats:
    """Return weights w ≥ 0 of pool rows, float64 (n,), which sum to `total`.

    They minimise ½ Σ (values − matrix·w)²/variances + PENALTY · KL(w ‖ even), by the dual, with L-BFGS.
    `matrix` is sparse, cells × n.
    """
    from scipy.optimize import minimize

    scale, columns, count = np.sqrt(variances), matrix.T.tocsr(), matrix.shape[1]

    def weights(dual: Floats) -> tuple[Floats, float]:
        exponents = columns @ (dual / scale)
        most = exponents.max()
        parts = np.exp(exponents - most)
        return total * parts / parts.sum(), float(np.log(parts.sum() / count) + most)

    def loss(dual: Floats) -> tuple[float, Floats]:
        w, log_sum = weights(dual)
        value = total * log_sum + PENALTY / 2 * (dual @ dual) - dual @ (values / scale)
        return float(value), (matrix @ w) / scale + PENALTY * dual - values / scale

    start = np.zeros(matrix.shape[0])
    return weights(minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS}).x)[0]


def systematic(weights: Floats, count: int, rng: np.random.Generator) -> Integers:
    """Return `count` places, each as often as its weight says, rounded up or down at random (Kitagawa 1996)."""
    order = rng.permutation(len(weights))
    ends = np.cumsum(weights[order])
    marks = (np.arange(count) + rng.random()) / max(count, 1) * ends[-1]
    return np.asarray(order[np.minimum(np.searchsorted(ends, marks, "right"), len(order) - 1)], np.int64)


def split(noisy: Floats, totals: Floats, deviation: float) -> Floats:
    """Return each label's total split by its noisy counts, float64 (labels, bins), none below 0.

    A label's split is drawn to that of all labels together, the more the less it differs beyond the noise (empirical
    Bayes), then to the nearest one without numbers below 0.
    """
    pooled = _on_simplex(noisy.sum(axis=0), float(totals.sum())) / totals.sum()
    prior = totals[:, None] * pooled
    rest = noisy - prior
    beyond = np.maximum(np.square(rest).mean(axis=1) - deviation**2, 0)
    trust = beyond / (beyond + deviation**2) if deviation else np.ones(len(noisy))
    parts = [_on_simplex(one, n) for one, n in zip(prior + trust[:, None] * rest, totals.tolist(), strict=True)]
    return np.stack(parts) + 1e-9


def _on_simplex(values: Floats, total: float) -> Floats:
    """Return the nearest numbers, none below 0, of this sum."""
    if total <= 0:
        return np.zeros_like(values)
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, len(values) + 1)
    last = np.flatnonzero(ordered > excess)[-1]
    return np.asarray(np.maximum(values - excess[last], 0), np.float64)


def _cut(first: int, end: int, parts: int) -> Integers:
    """Return the edges of at most `parts` ranges of nearly equal length from `first` to `end`."""
    return np.unique(np.linspace(first, end, min(parts, end - first) + 1).astype(np.int64))


@dataclass(eq=False)
class _Pool:
    """A label's rows and weights, and what the label's noisy counts are, as rows of the pool would add to them."""

    codes: Codes
    weights: Floats
    candidates: list[Codes] = field(default_factory=list)  # of each round
    votes: list[Floats] = field(default_factory=list)


@dataclass(kw_only=True, eq=False, repr=False)
class MaxEntropy(FittedMethod, MakesRows):
    """The fit to try first for a table: rows that agree with noisy counts of values, of pairs and of nearest rows.

    It releases, by label: how many records there are, the counts of each column's values (numbers in ranges, finer
    where there is much), the counts of pairs of values, and in each of `rounds` rounds the votes of the records for the
    nearest of 200 candidates. Rows are drawn by the weights that agree with all of these. A variation of degree d moves
    numbers by up to d of their range and draws other values anew, at the rate d, from the label's rows.

    Args:
        columns: each column's kind and values; by default the private table's.
        pairs: whether pairs of values are counted.
        rounds: rounds of votes; auto: 8 if most columns are ordered, since a nearest row tells little of categories;
            else 0.
    """

    needs_torch: ClassVar[bool] = False
    starter: ClassVar[str] = ""
    info = PluginInfo(modality="table", hosts=(), by_label=True, degrees=())

    columns: dict[str, Column]
    pairs: bool = True
    rounds: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        self._declare(self.columns)
        self._model: tuple[Codes, Floats] | None = None
        self._classes: tuple[str, ...] = ()

    # The releases.

    @property
    def _rounds(self) -> int:
        ordered = sum(column.is_ordered for column in self._columns.values())
        return (ROUNDS if 2 * ordered > len(self._columns) else 0) if self.rounds == "auto" else self.rounds

    @property
    def _levels(self) -> list[list[int]]:
        """The columns whose values are counted at each level, the coarsest first."""
        sizes = [one.size if one.is_ordered else 1 for one in self._columns.values()]
        levels = [[j for j, size in enumerate(sizes) if level == 0 or size > BINS**level] for level in range(LEVELS)]
        return [one for one in levels if one]

    def _parts(self) -> dict[str, tuple[float, float]]:
        """Return for each release its share of 1/σ², and the L2 norm of what a record adds to its counts."""
        levels, d, shares = self._levels, len(self._columns), Shares()
        pairs = shares.pairs if self.pairs and d > 1 else 0.0
        votes = shares.votes if self._rounds else 0.0
        if pairs and not votes:
            pairs = 0.69
        values, all_levels = 1 - shares.labels - pairs - votes, sum(map(len, levels))
        parts = {"labels": (shares.labels, 1.0)}
        for level, some in enumerate(levels, 1):
            parts[f"values/{level}"] = values * len(some) / all_levels, len(some) ** 0.5
        if pairs:
            parts["pairs"] = pairs, (d * (d - 1) / 2) ** 0.5
        return parts | {f"votes/{i}": (votes / self._rounds, 1.0) for i in range(1, self._rounds + 1)}

    def _draws(self, terms: FitTerms) -> Draws:
        """Return the releases with the least noise that meet the budget together."""
        sensitivity = 2**0.5 if Relation(terms.relation) is Relation.REPLACE_ONE else 1.0

        def releases(z: float) -> list[Release]:
            return [
                Release(
                    name=f"{FIT}{name}",
                    mechanism="discrete_gaussian",
                    sensitivity=sensitivity,
                    noise_multiplier=z / share**0.5,
                    relation=terms.relation,
                    unit=terms.unit,
                    grid=GRID,
                )
                for name, (share, _) in self._parts().items()
            ]

        return releases(calibrate(releases, terms.budget))

    # The fit.

    def _fit(self, fit: Fit) -> None:
        labels, parts = len(fit.terms.classes), self._parts()

        def draw(name: str, cells: Cells, number: int) -> tuple[Floats, float]:
            norm = parts[name][1]

            def counts(records: PrivateRecords, release: Release, noise: Noise) -> Integers:
                codes = self._columns.codes(Rows(records.samples))
                return noisy_counts(codes, records, cells, number, norm, release, noise)

            release = fit.release_of(name)
            deviation = release.noise_multiplier * release.sensitivity * norm
            return np.asarray(fit.release(name, counts) * (norm / release.grid), np.float64), deviation

        sizes, _ = draw("labels", lambda codes, of: (np.arange(len(codes)), of), labels)
        sizes = np.maximum(sizes, 1.0)
        bins, shares = self._count_values(draw, sizes)
        pools = [_Pool(self._from(bins, shares, k, str(fit.terms.seed), POOL), np.ones(POOL)) for k in range(labels)]
        groups = Groups.of(self._columns, bins, [share.sum(axis=0) for share in shares])
        pairs, of_pairs = draw("pairs", groups.cells, labels * groups.number) if "pairs" in parts else (None, 0.0)

        def weigh(k: int, pool: _Pool, deviation: float) -> None:
            counted = [] if pairs is None else [(pairs.reshape(labels, -1)[k], of_pairs, groups)]
            pool.weights = self._weigh(pool, counted, deviation, float(sizes[k]))

        def renew(k: int, pool: _Pool, step: float, redrawn: float, name: str) -> None:
            rng = generator(fit.terms.seed, f"max_entropy/{name}/{k}")
            kept = int(KEPT * POOL)
            parents = pool.codes[systematic(pool.weights, POOL - kept, rng)]
            anew = self._from(bins, shares, k, f"{fit.terms.seed}/{name}", POOL - kept)
            mutated = self._step(parents, anew, step, redrawn, rng)
            pool.codes = np.concatenate([pool.codes[systematic(pool.weights, kept, rng)], mutated])

        if pairs is not None:
            for k, pool in enumerate(pools):
                weigh(k, pool, 1.0)
                for i in range(RENEWALS):
                    renew(k, pool, 0.0, REDRAWN, f"free/{i}")
                    weigh(k, pool, 1.0)
        for i in range(1, self._rounds + 1):
            fit.check_stop()
            step = STEPS[0] * (STEPS[1] / STEPS[0]) ** ((i - 1) / max(self._rounds - 1, 1))
            candidates = self._candidates(fit, pools, i)
            votes, deviation = draw(f"votes/{i}", self._nearest(candidates), labels * CANDIDATES)
            for k, pool in enumerate(pools):
                pool.candidates.append(candidates[k])
                pool.votes.append(votes.reshape(labels, -1)[k])
                if i > 1:
                    renew(k, pool, step, REDRAWN * step / STEPS[0], f"votes/{i}")
                weigh(k, pool, deviation)
        np.savez_compressed(
            fit.fitting.folder / _MODEL,
            classes=np.array(fit.terms.classes),
            codes=np.stack([pool.codes for pool in pools]).astype(np.int32),
            weights=np.stack([pool.weights for pool in pools]).astype(np.float32),
        )

    def _count_values(self, draw: Callable[..., tuple[Floats, float]], sizes: Floats) -> tuple[Bins, list[Floats]]:
        """Return the ranges of each column, and each label's records there, float64 (labels, bins) for each column."""
        edges = list(Bins.of(self._columns).edges)
        parents = [np.zeros(len(one) - 1, np.int64) for one in edges]
        shares = [sizes[:, None] for _ in edges]
        for level, some in enumerate(self._levels, 1):
            bins = Bins(edges)
            counts, deviation = draw(f"values/{level}", bins.cells(some), len(sizes) * int(bins.starts[-1]))
            edges = list(edges)
            for j in some:
                noisy = counts.reshape(len(sizes), -1)[:, bins.starts[j] : bins.starts[j + 1]]
                totals = np.maximum(noisy.sum(axis=1), deviation)[:, None] if level == 1 else shares[j]
                parts = [
                    split(noisy[:, parents[j] == parent], totals[:, parent], deviation)
                    if (parents[j] == parent).sum() > 1
                    else totals[:, parent : parent + 1]
                    for parent in range(totals.shape[1])
                ]
                shares[j] = np.concatenate(parts, axis=1)
                if level < len(self._levels) and j in self._levels[level]:
                    is_large = shares[j].sum(axis=0) > BINS * deviation
                    edges[j], parents[j] = _finer(edges[j], is_large)
        return Bins(edges), shares

    def _from(self, bins: Bins, shares: list[Floats], label: int, seed: str, count: int) -> Codes:
        """Return made-up rows of a label, int64 (count, d), each value drawn for itself by the label's counts."""
        rng = generator(0, f"max_entropy/{seed}/{label}")
        numbers, within = rng.random((2, count, len(self._columns)))
        return bins.draw([share[label] for share in shares], numbers, within)

    def _step(self, parents: Codes, anew: Codes, step: float, redrawn: float, rng: np.random.Generator) -> Codes:
        """Return mutated rows: numbers move by up to `step` of their range; each value is drawn anew at a rate."""
        sizes = self._columns.sizes
        moves = np.rint(rng.uniform(-step, step, parents.shape) * (sizes - 1)).astype(np.int64)
        moves *= np.array([one.is_ordered for one in self._columns.values()]) & (parents < sizes)
        moved = np.where(parents < sizes, np.clip(parents + moves, 0, sizes - 1), parents)
        return np.where(rng.random(parents.shape) < redrawn, anew, moved)

    def _candidates(self, fit: Fit, pools: list[_Pool], i: int) -> list[Codes]:
        """Return round i's candidates of each label; kept, since votes that are stored are for these and no others."""
        name = f"candidates-{i}.npy"
        if (content := fit.fitting.cache.find(name)) is not None:
            return list(np.load(io.BytesIO(content), allow_pickle=False))
        rng, file = generator(fit.terms.seed, f"max_entropy/candidates/{i}"), io.BytesIO()
        candidates = [pool.codes[systematic(pool.weights, CANDIDATES, rng)] for pool in pools]
        np.save(file, np.stack(candidates))
        fit.fitting.cache.keep(name, file.getvalue())
        return candidates

    def _nearest(self, candidates: list[Codes]) -> Cells:
        """Return the cells label × candidate: the nearest candidate of a row's label."""
        vectors = [embed(self._columns, one) for one in candidates]

        def cells(codes: Codes, labels: Integers) -> tuple[Integers, Integers]:
            places, rows = np.empty(len(codes), np.int64), embed(self._columns, codes)
            for k, one in enumerate(vectors):
                places[labels == k] = k * CANDIDATES + nearest(rows[labels == k], one)
            return np.arange(len(codes)), places

        return cells

    def _weigh(
        self, pool: _Pool, counted: list[tuple[Floats, float, Groups]], deviation: float, total: float
    ) -> Floats:
        """Return the weights of a label's pool that agree with its noisy counts of pairs and with all its votes."""
        from scipy.sparse import csr_array, vstack

        none, count = np.zeros(len(pool.codes), np.int64), len(pool.codes)
        parts = [(groups.cells(pool.codes, none), values, noise) for values, noise, groups in counted]
        rows = embed(self._columns, pool.codes) if pool.votes else np.zeros((0, 0))
        for candidates, votes in zip(pool.candidates, pool.votes, strict=True):
            places = nearest(rows, embed(self._columns, candidates))
            parts.append(((np.arange(count), places), votes, deviation))
        blocks = [
            csr_array((np.ones(len(places)), (places, rows)), shape=(len(values), count))
            for (rows, places), values, _ in parts
        ]
        values = np.concatenate([values for _, values, _ in parts])
        variances = np.concatenate([np.full(len(values), noise**2) for _, values, noise in parts])
        return max_entropy(vstack(blocks).tocsr(), values, np.maximum(variances, 1e-6), total)

    # The answers.

    def load(self, folder: Path) -> None:
        """Answer from the model in `folder`; raise RecipeError if there is none, or it is damaged."""
        with reading(folder, "weighted rows"), np.load(folder / _MODEL, allow_pickle=False) as file:
            self._classes = tuple(file["classes"].tolist())
            codes, weights = file["codes"].astype(np.int64), file["weights"].astype(np.float64)
            if codes.shape != (len(self._classes), weights.shape[1], len(self._columns)):
                raise ValueError("arrays of other shapes")
            self._model = codes, np.cumsum(weights, axis=1)

    def _places(self, labels: Sequence[str], numbers: Floats) -> tuple[Codes, Integers, Integers]:
        """Return the model's codes; for each label, and number in [0, 1), the label's index and a place in its pool."""
        if self._model is None:
            raise not_fitted("This generator")
        codes, ends = self._model
        of = label_numbers(labels, self._classes)
        places: Integers = np.empty(len(numbers), np.int64)
        for k in np.unique(of):
            above = np.searchsorted(ends[k], numbers[of == k] * ends[k][-1], "right")
            places[of == k] = np.minimum(above, ends.shape[1] - 1)
        return codes, of, places

    def random_api(self, request: RandomRequest) -> Answer:
        """Draw rows of the labels' pools by their weights."""
        codes, of, places = self._places(request.labels, uniforms(request.seeds, "row"))
        return Answer(self._rows(codes[of, places]))

    def _new(self, labels: Sequence[str], seeds: Seeds, purpose: str) -> Codes:
        """Draw each value for itself from the rows of the label."""
        columns = []
        for j in range(len(self._columns)):
            codes, of, places = self._places(labels, uniforms(seeds, f"{purpose}/{j}"))
            columns.append(codes[of, places, j])
        return np.stack(columns, axis=1)


class Independent(MaxEntropy):
    """The baseline of all fits of tables: each column by itself, by label, from noisy counts of its values.

    Args:
        columns: each column's kind and values; by default the private table's.
    """

    def __init__(self, *, columns: dict[str, Column]) -> None:
        super().__init__(columns=columns, pairs=False, rounds=0)


def _finer(edges: Integers, is_large: npt.NDArray[np.bool_]) -> tuple[Integers, Integers]:
    """Return the edges with each large bin cut into at most BINS, and for each new bin the bin that it was part of."""
    parts = [
        _cut(int(a), int(b), BINS)[:-1] if large and b - a > 1 else np.array([a])
        for a, b, large in zip(edges, edges[1:], is_large, strict=False)
    ]
    parents = np.repeat(np.arange(len(parts)), [len(one) for one in parts])
    return np.append(np.concatenate(parts), edges[-1]), parents
