"""Made-up rows, weighted until they agree with noisy counts of the private rows.

A pool of made-up rows of each label gets the weights of largest entropy that agree, as far as noise
tells, with the noisy counts (Jaynes 1957; McKenna et al. 2019). Values and pairs are counted as
marginals are. Nearest rows are counted as Private Evolution votes, for candidates that are drawn
from the pool by the weights so far; the votes of all rounds stay in use, since each row of the pool
would vote as a record does.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from adapters.tables import MakesRows
from adapters.trained.counts import GRID, Groups, label_cells, nearest_cells, noisy_counts
from adapters.trained.fit import Fit, FittedMethod, label_numbers, not_fitted, reading
from adapters.trained.ranges import BINS, Bins, Cells, Draw, Floats, Integers, count_values, narrow
from pe.data.columns import Codes, Column, Columns
from pe.data.constraints import Constraints, Declared
from pe.data.samples import Conditions, Seeds, generator, uniforms
from pe.fit.trainer import FIT, DryRun, FitTerms, PrivateRecords
from pe.plugins.devices import check_memory
from pe.plugins.protocols import Answer, PluginInfo, RandomRequest
from pe.plugins.specs import plugin
from pe.privacy.calibration import calibrate
from pe.privacy.noise import Noise
from pe.privacy.release import Relation, Release

# The most times that a number's ranges are counted, each time in finer ones where there is much.
LEVELS = 3

# A label's rows in the pool.
POOL = 20_000

# A label's candidates in a round of votes.
CANDIDATES = 200

# Rounds of votes where most columns are ordered.
ROUNDS = 8

# Renewals of the pool before the votes.
RENEWALS = 3

# Share of the pool that a renewal leaves.
STAYING = 0.3

# Step of a mutation in the first and last round, as a share of a number's range.
STEPS = (0.25, 0.03)

# Rate at which a mutation draws a value anew.
REDRAWN = 0.2

# Weight of the entropy, chosen on other tables (benchmarks/results/tables.md).
PENALTY = 0.25

# Iterations of L-BFGS.
ITERATIONS = 60

# Shares of the budget, in 1/σ²; OF_PAIRS_ALONE where there are no votes. Values get what is left.
OF_LABELS = 0.01
OF_VOTES = 0.59
OF_PAIRS = 0.3
OF_PAIRS_ALONE = 0.69

_MODEL = "pool.npz"

# Condition of a new sample: the place of its row among those of its label, as a share of their
# weights.
_ROW = "row"


def max_entropy(
    matrix: Any,
    values: Floats,
    variances: Floats,
    total: float,
) -> Floats:
    """Return weights w ≥ 0 of pool rows, float64 (n,), which sum to `total`.

    They minimise ½ Σ (values − matrix·w)²/variances + PENALTY · KL(w ‖ even), by the dual, with
    L-BFGS. `matrix` is sparse, cells × n.
    """
    from scipy.optimize import minimize

    scale = np.sqrt(variances)
    columns = matrix.T.tocsr()
    count = matrix.shape[1]

    def weights(dual: Floats) -> tuple[Floats, float]:
        # The largest exponent is taken out, so that no exponential overflows.
        exponents = columns @ (dual / scale)
        most = exponents.max()
        parts = np.exp(exponents - most)
        return total * parts / parts.sum(), float(np.log(parts.sum() / count) + most)

    def loss(dual: Floats) -> tuple[float, Floats]:
        w, log_sum = weights(dual)
        value = total * log_sum + PENALTY / 2 * (dual @ dual) - dual @ (values / scale)
        return float(value), (matrix @ w) / scale + PENALTY * dual - values / scale

    start = np.zeros(matrix.shape[0])
    return weights(
        minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS}).x
    )[0]


def systematic(weights: Floats, count: int, rng: np.random.Generator) -> Integers:
    """Return `count` places, each as often as its weight says (Kitagawa 1996).

    Fractions are rounded up or down at random.
    """
    order = rng.permutation(len(weights))
    ends = np.cumsum(weights[order])
    marks = (np.arange(count) + rng.random()) / max(count, 1) * ends[-1]
    return np.asarray(
        order[np.minimum(np.searchsorted(ends, marks, "right"), len(order) - 1)],
        np.int64,
    )


@dataclass(eq=False)
class _Pool:
    """A label's made-up rows, their weights, and the label's noisy counts."""

    size: float  # the label's noisy number of records: the sum of the weights
    shares: list[Floats]  # of the records in the bins of each column, (bins,)
    rng: np.random.Generator
    codes: Codes
    weights: Floats
    # (cells, to which a row of the pool adds as a record does; noisy counts; standard deviation of
    # their noise)
    counted: list[tuple[Cells, Floats, float]] = field(default_factory=list)

    def weigh(self) -> None:
        """Give the rows the weights that agree with all noisy counts."""
        from scipy.sparse import csr_array, vstack

        count = len(self.codes)
        label = np.zeros(count, np.int64)
        blocks = []
        deviations = []
        for cells, values, noise in self.counted:
            rows, places = cells(self.codes, label)
            ones = np.ones(len(places))
            blocks.append(csr_array((ones, (places, rows)), shape=(len(values), count)))
            deviations.append(np.full(len(values), noise))
        values = np.concatenate([values for _, values, _ in self.counted])
        variances = np.maximum(np.concatenate(deviations) ** 2, 1e-6)
        self.weights = max_entropy(vstack(blocks).tocsr(), values, variances, self.size)

    def draw(self, count: int, rng: np.random.Generator) -> Codes:
        """Return `count` rows, by their weights."""
        return self.codes[systematic(self.weights, count, rng)]


@plugin
class MaxEntropy(FittedMethod, MakesRows):
    """The first to try for a table: rows that agree with noisy counts of the private rows.

    It releases, by label: how many records there are, the counts of each column's values (numbers
    in ranges, finer where there is much), the counts of pairs of values, and in each of `rounds`
    rounds the votes of the records for the nearest of 200 candidates. Rows are drawn by the weights
    that agree with all of these. A variation of degree d moves numbers by up to d of their range
    and draws other values anew, at the rate d, from the label's rows.

    Args:
        columns: each column's kind and values; by default the private table's.
        constraints: what all rows obey; by default the private table's.
        pairs: whether pairs of values are counted.
        rounds: rounds of votes; auto: 8 if most columns are ordered, since a nearest row tells
            little of categories; else 0.
    """

    starter: ClassVar[str] = ""
    info = PluginInfo(modality="table", hosts=(), by_label=True, degrees=())

    columns: dict[str, Column]
    constraints: tuple[Declared, ...] = ()
    pairs: bool = True
    rounds: Literal["auto"] | Annotated[int, Field(ge=0, le=100)] = "auto"

    def __post_init__(self) -> None:
        self._declare(self.columns, self.constraints)
        self._model: tuple[Codes, Floats] | None = None
        self._classes: tuple[str, ...] = ()

    # The releases.

    @cached_property
    def _declared(self) -> Columns:
        """The columns as declared, by which a fit is planned.

        Those of a fitted model may be narrower.
        """
        return Columns(self.columns)

    @property
    def _rounds(self) -> int:
        if self.rounds != "auto":
            return self.rounds
        ordered = sum(column.is_ordered for column in self._declared.values())
        return ROUNDS if 2 * ordered > len(self._declared) else 0

    @property
    def _levels(self) -> list[list[int]]:
        """The columns whose values are counted at each level, the coarsest first."""
        sizes = [one.size if one.is_ordered else 1 for one in self._declared.values()]
        levels = [
            [j for j, size in enumerate(sizes) if level == 0 or size > BINS**level]
            for level in range(LEVELS)
        ]
        return [one for one in levels if one]

    def _parts(self) -> dict[str, tuple[float, float]]:
        """Return each release's share of 1/σ², and the L2 norm of what a record adds."""
        levels = self._levels
        d = len(self._declared)
        rounds = self._rounds
        votes = OF_VOTES if rounds else 0.0
        pairs = (OF_PAIRS if rounds else OF_PAIRS_ALONE) if self.pairs and d > 1 else 0.0
        values = 1 - OF_LABELS - pairs - votes
        all_levels = sum(map(len, levels))
        parts = {"labels": (OF_LABELS, 1.0)}
        for level, some in enumerate(levels, 1):
            parts[f"values/{level}"] = values * len(some) / all_levels, len(some) ** 0.5
        if pairs:
            parts["pairs"] = pairs, (d * (d - 1) / 2) ** 0.5
        return parts | {f"votes/{i}": (votes / rounds, 1.0) for i in range(1, rounds + 1)}

    def _releases(self, terms: FitTerms) -> dict[str, Release]:
        """Return the releases by name, with the least noise that meets the budget together."""
        sensitivity = 2**0.5 if terms.relation == Relation.REPLACE_ONE else 1.0

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

        return dict(zip(self._parts(), releases(calibrate(releases, terms.budget)), strict=True))

    def dry_run(self, terms: FitTerms, measured: bool = True) -> Sequence[DryRun]:
        """Forecast memory and time from the numbers of columns, values and labels.

        See `Rehearsing`.
        """
        columns = self._declared.values()
        labels = len(terms.classes)
        pairs = self.pairs * len(columns) * (len(columns) - 1) // 2
        size = sum(2 if one.is_ordered else one.size + 1 for one in columns)  # of a row's vector
        row = 64 * pairs + 17 * size * (self._rounds > 0) + 24 * (labels + 4) * len(columns)
        memory = POOL * row + labels * (3072 * pairs + 48 * size)
        what = f"The fit of {len(columns):,} columns ({pairs:,} pairs; labels: {labels:,})"
        remedy = (
            "declare fewer columns, values or labels, or set `api.pairs: false` and `api.rounds: 0`"
        )
        check_memory(memory, what, remedy)
        seconds = 0.1 + POOL * (1.5e-7 * pairs + 2e-8 * size * self._rounds)
        return [DryRun("weighing rows", labels * (4 + self._rounds), seconds, POOL, memory)]

    # The fit.

    def _fit(self, fit: Fit) -> None:
        releases = self._releases(fit.terms)
        fit.declare(*releases.values())
        fit.begin()
        self._declare(self.columns, self.constraints)
        self.dry_run(fit.terms)  # refuses if memory does not suffice
        draw = partial(self._draw, fit, releases)
        keep = partial(_keep, fit)
        sizes = np.maximum(draw("labels", label_cells, 1)[0], 1.0)
        bins, shares = count_values(self._columns, self._levels, sizes, draw, keep)
        self._bins, shares, ends = narrow(
            self._columns, bins, shares, self._constraints.places, keep
        )
        # From here on the columns are those that hold records, by the counts.
        self._restrict(*ends.T)
        pools = []
        for k, (size,) in enumerate(sizes.tolist()):
            rng = generator(fit.terms.seed, f"max_entropy/{k}")
            of_label = [share[k] for share in shares]
            rows = self._new_rows(of_label, POOL, rng)
            pools.append(_Pool(size, of_label, rng, rows, np.ones(POOL)))
        if "pairs" in releases:
            self._count_pairs(pools, [share.sum(axis=0) for share in shares], draw)
        for i in range(1, self._rounds + 1):
            fit.check_stop()
            rng = generator(fit.terms.seed, f"max_entropy/candidates/{i}")
            candidates = keep(f"candidates-{i}", [pool.draw(CANDIDATES, rng) for pool in pools])
            self._count_votes(i, pools, candidates, draw)
        edges: dict[str, Any] = {f"edges/{j}": one for j, one in enumerate(self._bins.edges)}
        np.savez_compressed(
            fit.folder / _MODEL,
            classes=np.array(fit.terms.classes),
            codes=np.stack([pool.codes for pool in pools]).astype(np.int32),
            weights=np.stack([pool.weights for pool in pools]).astype(np.float32),
            ends=ends,
            **edges,
        )

    def _draw(
        self,
        fit: Fit,
        releases: dict[str, Release],
        name: str,
        cells: Cells,
        number: int,
    ) -> tuple[Floats, float]:
        """Return noisy counts, float64 (labels, number), and their noise's deviation."""
        release = releases[name]
        _, norm = self._parts()[name]
        labels = len(fit.terms.classes)

        def count(records: PrivateRecords, noise: Noise) -> Integers:
            columns = self._columns
            return noisy_counts(columns, records, cells, labels * number, norm, release, noise)

        noisy = fit.release(release, count)
        counts = np.asarray(noisy * (norm / release.grid), np.float64).reshape(labels, number)
        return counts, release.noise_multiplier * release.sensitivity * norm

    def _count_pairs(
        self,
        pools: list[_Pool],
        shares: list[Floats],
        draw: Draw,
    ) -> None:
        """Weigh the rows by the counts of pairs, and renew them, so that more rows agree.

        `shares`: of all labels.
        """
        groups = Groups.of(self._columns, self._bins, shares)
        counts, deviation = draw("pairs", groups.cells, groups.number)
        for own, pool in zip(counts, pools, strict=True):
            pool.counted.append((groups.cells, own, deviation))
            pool.weigh()
            for _ in range(RENEWALS):
                self._renew(pool, 0.0, REDRAWN)
                pool.weigh()

    def _count_votes(
        self,
        i: int,
        pools: list[_Pool],
        candidates: list[Codes],
        draw: Draw,
    ) -> None:
        """Weigh the rows by the votes of round `i`, too, after renewing them in smaller steps."""
        votes, deviation = draw(f"votes/{i}", nearest_cells(self._columns, candidates), CANDIDATES)
        step = STEPS[0] * (STEPS[1] / STEPS[0]) ** ((i - 1) / max(self._rounds - 1, 1))
        for pool, some, own in zip(pools, candidates, votes, strict=True):
            pool.counted.append((nearest_cells(self._columns, [some]), own, deviation))
            # The first round votes on the rows that the other counts have chosen.
            if i > 1:
                self._renew(pool, step, REDRAWN * step / STEPS[0])
            pool.weigh()

    def _new_rows(
        self,
        shares: list[Floats],
        count: int,
        rng: np.random.Generator,
    ) -> Codes:
        """Return rows that obey the constraints, drawn by `Bins.draw`."""
        spare = self._spare(rng.random(count))
        return self._obeying(lambda _: self._bins.draw(shares, count, rng), spare)

    def _restrict(self, first: Integers, last: Integers) -> None:
        """Restrict the numbers and dates to declared codes from `first` to `last`, int64 (d,)."""
        ends = zip(Columns(self.columns).items(), first.tolist(), last.tolist(), strict=True)
        self._columns = Columns({name: column.narrowed(*of) for (name, column), *of in ends})
        self._constraints = Constraints(self._columns, self.constraints)

    def _renew(self, pool: _Pool, step: float, redrawn: float) -> None:
        """Replace the pool's rows: some stay, by weight.

        The others are mutated, and draw values anew at the rate `redrawn`.
        """
        rng = pool.rng
        anew = self._new_rows(pool.shares, POOL - int(STAYING * POOL), rng)
        parents = pool.draw(len(anew), rng)

        def mutate(_: int) -> Codes:
            moved = self._moved(parents, rng.random(parents.shape), step)
            return np.where(rng.random(parents.shape) < redrawn, anew, moved)

        mutated = self._obeying(mutate, parents)
        pool.codes = np.concatenate([pool.draw(len(pool.codes) - len(anew), rng), mutated])

    # The answers.

    def load(self, folder: Path) -> None:
        """Answer from the model in `folder`.

        Raise RecipeError if there is none, or it is damaged.
        """
        with reading(folder, "weighted rows"), np.load(folder / _MODEL, allow_pickle=False) as file:
            self._classes = tuple(file["classes"].tolist())
            codes = file["codes"].astype(np.int64)
            weights = file["weights"].astype(np.float64)
            if codes.shape != (len(self._classes), weights.shape[1], len(self._columns)):
                raise ValueError("arrays of other shapes")
            self._restrict(*file["ends"].T)
            self._bins = Bins([file[f"edges/{j}"] for j in range(len(self._columns))])
            self._model = codes, np.cumsum(weights, axis=1)

    def _places(
        self,
        labels: Sequence[str],
        numbers: Floats,
    ) -> tuple[Codes, Integers, Integers]:
        """Return the model's codes, and each label's index and a place in its pool.

        Places follow from `numbers` in [0, 1).
        """
        if self._model is None:
            raise not_fitted()
        codes, ends = self._model
        of = label_numbers(labels, self._classes)
        places: Integers = np.empty(len(numbers), np.int64)
        for k in np.unique(of):
            above = np.searchsorted(ends[k], numbers[of == k] * ends[k][-1], "right")
            places[of == k] = np.minimum(above, ends.shape[1] - 1)
        return codes, of, places

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """Spread the samples of each label evenly over its weighted rows.

        Of n rows that are drawn by chance among m, about n²/2m would be copies.
        """
        _, of, counts = np.unique(labels, return_inverse=True, return_counts=True)
        ranks = (
            np.argsort(np.lexsort((seeds, of))) - (np.cumsum(counts) - counts)[of]
        )  # within the label, at random
        return Conditions({_ROW: (ranks + uniforms(seeds, _ROW)) / counts[of]})

    def random_api(self, request: RandomRequest) -> Answer:
        """Draw rows of the labels' pools by their weights, and numbers anew within their ranges."""
        numbers = request.conditions.get(_ROW, uniforms(request.seeds, _ROW))
        codes, of, places = self._places(request.labels, numbers)
        rows = codes[of, places]
        anew = self._bins.codes(self._bins.places(rows), self._numbers(request.seeds, "within"))
        return Answer(self._rows(self._constraints.obey(anew, rows)))

    def _new(self, labels: Sequence[str], seeds: Seeds, purpose: str) -> Codes:
        """Draw each value for itself from the rows of the label."""
        columns = []
        for j in range(len(self._columns)):
            codes, of, places = self._places(labels, uniforms(seeds, f"{purpose}/{j}"))
            columns.append(codes[of, places, j])
        return np.stack(columns, axis=1)


def _keep(fit: Fit, name: str, arrays: list[Integers]) -> list[Integers]:
    """Return the arrays, or those that an interrupted fit kept.

    Stored counts are of the kept ones.
    """
    file = io.BytesIO()
    np.savez(file, *arrays)
    content = fit.kept(f"{name}.npz", file.getvalue)
    with np.load(io.BytesIO(content), allow_pickle=False) as kept:
        return [*kept.values()]


@plugin
class Independent(MaxEntropy):
    """The baseline for tables: each column by itself, by label, from noisy counts of its values.

    Args:
        columns: each column's kind and values; by default the private table's.
        constraints: what all rows obey; by default the private table's.
    """

    pairs: bool = field(default=False, init=False)
    rounds: Literal["auto"] | int = field(default=0, init=False)
