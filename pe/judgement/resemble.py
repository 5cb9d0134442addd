"""Measures of how far a set is from the real records, by dependencies and by appearance.

Nothing here needs labels. All of it is confidential.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from pe.data.arrays import BoolArray, Float64Array
from pe.data.columns import Codes
from pe.data.samples import generator, slices
from pe.judgement.classifiers import on_one_thread
from pe.judgement.scale import BEST, area

FALSE_ALARMS = 0.05
"""Chance that a set of fresh records loses anything at all."""
TELLING = 0.05
"""Least share of a column that another one must explain in the real records to count as a pair."""
CELLS = 24
"""Groups into which a column's values fall when another one is predicted from it."""
MOST_ROWS = 5000
FOLDS = 5
SURE = 0.9
"""Share of cases in which a classifier tells two sets apart, in `noticed_after`."""


@dataclass(frozen=True)
class Kept:
    """What a set keeps of a dependency: how much of a column others explain.

    A share of 0 is what the column's mean tells, 1 the value itself, and −1 a random guess.
    """

    column: str
    source: str  # the column that it is predicted from; empty: all others
    share: float  # explained on real records, by what was learned from the set
    real: float  # by what was learned from the private records
    error: float  # standard error of their difference
    score: float  # in [0, BEST]

    def __str__(self) -> str:
        """Return the words for it."""
        source = self.source or "all others"
        values = f"R² {self.share:.2f}, not {self.real:.2f} (± {self.error:.2f})"
        return f"{self.column} from {source} {values}"


@dataclass(frozen=True, eq=False)
class Coded:
    """The codes of a table's rows, int64 (n, d), and what its columns are."""

    names: Sequence[str]
    ordered: Sequence[bool]
    sizes: Sequence[int]  # of each column without the missing value, whose code is the size


def _targets(table: Coded, column: int, codes: Codes, real: Codes) -> Float64Array:
    """Return a column as (n, k) numbers: its ranks among the real values, or its values one-hot."""
    own = codes[:, column]
    if not table.ordered[column]:
        values = np.unique(real[:, column])
        return np.asarray(own[:, None] == values, np.float64)
    size = table.sizes[column]
    counts = np.bincount(real[:, column], minlength=size + 1).astype(np.float64)
    present = counts[:size]
    ranks = (np.cumsum(present) - present / 2) / max(present.sum(), 1)
    is_missing = own == size
    known = np.where(is_missing, 0.5, ranks[np.minimum(own, size - 1)])
    return np.asarray(np.stack([known, np.where(is_missing, 0.5, 0.0)], axis=1))


def _explained(guess: Float64Array, truth: Float64Array, mean: Float64Array) -> Float64Array:
    """Return for each record the error of a guess, over the mean error of the column's mean."""
    usual = np.square(truth - mean).sum(axis=1).mean()
    errors: Float64Array = np.square(truth - guess).sum(axis=1) / max(usual, 1e-12)
    return errors


def _by_cells(
    train: Codes, targets: Float64Array, test: Codes, edges: Float64Array
) -> Float64Array:
    """Return for each test value the mean target among training values of its group."""
    groups = np.searchsorted(edges, train, side="right")
    asked = np.searchsorted(edges, test, side="right")
    counts = np.bincount(groups, minlength=len(edges) + 1)
    whole = targets.mean(axis=0)
    # A group of few rows leans on the whole column: its own mean would be noise.
    sums = np.stack(
        [np.bincount(groups, one, minlength=len(edges) + 1) for one in targets.T], axis=1
    )
    means = (sums + 2 * whole) / (counts + 2)[:, None]
    return np.asarray(means[asked])


def _kept(
    column: str,
    source: str,
    errors: tuple[Float64Array, Float64Array],
    comparisons: int,
) -> Kept:
    """Return what is kept, from the records' errors after the set and after the real records.

    The loss counts as far as chance does not explain it, so fresh records lose nothing.
    """
    ours, real = errors
    difference = ours - real
    error = float(difference.std(ddof=1) / math.sqrt(len(difference)))
    certain = NormalDist().inv_cdf(1 - FALSE_ALARMS / comparisons)
    loss = max(0.0, float(difference.mean()) - certain * error)
    told = 1 - float(real.mean())
    # From all others the scale ends at a random guess, from one column at its own mean.
    span = max(told, TELLING) if source else 1 + max(told, 0.0)
    score = BEST * max(0.0, 1 - loss / span)
    return Kept(column, source, 1 - float(ours.mean()), told, error, score)


def pairs(table: Coded, ours: Codes, private: Codes, test: Codes) -> list[Kept]:
    """Return what a set keeps of each pair of columns that tell of each other, the worst first."""
    count = len(table.names)
    found = []
    for target in range(count):
        truth = _targets(table, target, test, private)
        learned = [_targets(table, target, codes, private) for codes in (ours, private)]
        mean = learned[1].mean(axis=0)
        for source in range(count):
            if source == target:
                continue
            edges = np.unique(
                np.quantile(private[:, source], np.linspace(0, 1, CELLS + 1)[1:], method="lower")
            )
            errors = [
                _explained(_by_cells(codes[:, source], each, test[:, source], edges), truth, mean)
                for codes, each in zip((ours, private), learned, strict=True)
            ]
            told = 1 - errors[1]
            if told.mean() < max(TELLING, 3 * told.std() / math.sqrt(len(told))):
                continue
            found.append(
                _kept(
                    table.names[target],
                    table.names[source],
                    (errors[0], errors[1]),
                    count * (count - 1),
                )
            )
    return sorted(found, key=lambda one: one.score)


def columns_from_others(
    table: Coded, ours: Codes, private: Codes, test: Codes, seed: int
) -> list[Kept]:
    """Return what a set keeps of each column, predicted from all others, the worst first."""
    found = []
    for target, name in enumerate(table.names):
        truth = _targets(table, target, test, private)
        mean = _targets(table, target, private, private).mean(axis=0)
        others = [i for i in range(len(table.names)) if i != target]
        errors = []
        for codes in (ours, private):
            guess = _by_trees(
                codes[:, others], _targets(table, target, codes, private), test[:, others], seed
            )
            errors.append(_explained(guess, truth, mean))
        found.append(_kept(name, "", (errors[0], errors[1]), len(table.names)))
    return sorted(found, key=lambda one: one.score)


def _by_trees(train: Codes, targets: Float64Array, test: Codes, seed: int) -> Float64Array:
    """Return predictions of the targets, (m, k), by trees."""
    with on_one_thread():
        from sklearn.ensemble import ExtraTreesRegressor

        model = ExtraTreesRegressor(60, min_samples_leaf=5, random_state=seed)
        rows = generator(seed, "judgement/rows").permutation(len(train))[:MOST_ROWS]
        predicted = model.fit(train[rows], targets[rows]).predict(test)
    return np.asarray(predicted, np.float64).reshape(len(test), -1)


@dataclass(frozen=True)
class Noticed:
    """How easily the set is told from real records. Confidential."""

    area: float  # of a cross-validated test, under its ROC curve
    between_real: float  # the same for two sets of real records
    after: int | None  # records until a classifier is SURE; None: not within a thousand
    features: tuple[tuple[str, float], ...]  # what gives it away: name, area; the clearest first


def two_sample(ours: Float64Array, real: Float64Array, seed: int) -> float:
    """Return the cross-validated area of a test that tells two sets apart: ½ if they are alike."""
    rng = generator(seed, "judgement/two-sample")
    count = min(len(ours), len(real), MOST_ROWS)
    rows = np.concatenate([each[rng.permutation(len(each))[:count]] for each in (ours, real)])
    labels = np.repeat([1, 0], count)
    folds = rng.permutation(2 * count) % FOLDS
    logits = np.zeros((2 * count, 2))
    with on_one_thread():
        from sklearn.ensemble import HistGradientBoostingClassifier

        for fold in range(FOLDS):
            model = HistGradientBoostingClassifier(max_iter=60, random_state=seed)
            model.fit(rows[folds != fold], labels[folds != fold])
            logits[folds == fold, 1] = model.decision_function(rows[folds == fold])
    return float(area(logits, labels.astype(np.int32), np.ones((1, 2 * count)))[0])


def noticed_after(found: float) -> int | None:
    """Return after how many records a classifier is SURE, if one record tells with this area."""
    if found <= 0.5:
        return None
    normal = NormalDist()
    distance = math.sqrt(2) * normal.inv_cdf(min(found, 1 - 1e-9))
    count = math.ceil(2 * (normal.inv_cdf(SURE) / distance) ** 2)
    return count if count <= 1000 else None


def areas_of(rows: Float64Array, is_first: BoolArray) -> Float64Array:
    """Return for each feature the area by which it alone tells two sets apart, in [½, 1].

    A feature with the same middle that is spread otherwise is told by its distance from the middle.
    """
    from scipy.stats import rankdata

    middle = np.median(rows[~is_first], axis=0)
    both = np.concatenate([rows, np.abs(rows - middle)], axis=1)
    count = int(is_first.sum())
    sums = rankdata(both, axis=0)[is_first].sum(axis=0) - count * (count + 1) / 2
    areas = sums / (count * (len(rows) - count))
    return np.asarray(np.maximum(areas, 1 - areas).reshape(2, -1).max(axis=0))


def telling_features(
    names: Sequence[str], ours: Float64Array, real: Float64Array
) -> list[tuple[str, float]]:
    """Return each feature with the area by which it tells the sets apart, the clearest first."""
    is_first = np.arange(len(ours) + len(real)) < len(ours)
    areas = areas_of(np.concatenate([ours, real]), is_first)
    return sorted(zip(names, areas.tolist(), strict=True), key=lambda one: -one[1])


def effective_number(vectors: Float64Array, near: float) -> float:
    """Return the effective number of different samples.

    That is n² over the number of pairs nearer than `near`, each sample and itself included: n if
    all differ, k if there are k samples, equally often.
    """
    squares = np.square(vectors).sum(axis=1)
    pairs_near = 0
    for part in slices(len(vectors), 1024):
        distances = squares[part, None] + squares - 2 * vectors[part] @ vectors.T
        close: BoolArray = distances <= near**2
        pairs_near += int(close.sum())
    return len(vectors) ** 2 / max(pairs_near, len(vectors))
