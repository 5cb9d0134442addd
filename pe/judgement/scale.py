"""The scale from 0 to 10: 0 is a guess, 10 is what the private records give.

Both ends are the same for every generator, so two sets that were tested on the same records can be
compared. Controls are points on the scale and never move it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pe.data.arrays import BoolArray, Float64Array, Int64Array
from pe.data.samples import generator
from pe.judgement.labelled import Labels, Logits

BEST = 10.0
LEVEL = 0.8
"""Share of intervals that hold the true value."""
RESAMPLES = 400
MOST_BETWEEN_RUNS = 0.5
"""Largest standard deviation between runs of one recipe, times the number of labels."""


@dataclass(frozen=True)
class Place:
    """A set's place on the scale. Confidential."""

    value: float  # of the measure
    score: float  # in [0, BEST]
    low: float  # lower end of the score's interval at LEVEL
    high: float  # upper end
    learner: str  # the names of the learners that were chosen


@dataclass(frozen=True)
class Gain:
    """The difference of two sets' scores, on the same test records. Confidential."""

    score: float
    low: float  # lower end of the interval at LEVEL
    high: float  # upper end


def mean_recall(logits: Logits, labels: Labels, weights: Float64Array) -> Float64Array:
    """Return the mean share of each class's records that are recognised, for each draw.

    Args:
        logits: float64 (n, classes), as `Predict` returns them.
        labels: int32 (n,).
        weights: float64 (draws, n), how often each record counts.
    """
    is_class = (labels[:, None] == np.arange(logits.shape[1])).astype(np.float64)
    is_right = (logits.argmax(axis=1) == labels)[:, None]
    counts = weights @ is_class
    hits = weights @ (is_class * is_right)
    recalls = np.divide(hits, counts, out=np.zeros_like(hits), where=counts > 0)
    return np.asarray(recalls.sum(axis=1) / np.maximum((counts > 0).sum(axis=1), 1))


def area(logits: Logits, labels: Labels, weights: Float64Array) -> Float64Array:
    """Return the area under the ROC curve of two classes, for each draw. Ties count half.

    The arguments are those of `mean_recall`.
    """
    sizes = logits[:, 1] - logits[:, 0]
    order = np.argsort(sizes, kind="stable")
    _, starts = np.unique(sizes[order], return_index=True)
    positive, negative = (
        np.add.reduceat((weights * (labels == one))[:, order], starts, axis=1) for one in (1, 0)
    )
    below = np.cumsum(negative, axis=1) - negative / 2
    pairs = positive.sum(axis=1) * negative.sum(axis=1)
    sums = (positive * below).sum(axis=1)
    return np.asarray(np.divide(sums, pairs, out=np.full_like(pairs, 0.5), where=pairs > 0))


@dataclass(frozen=True)
class Measure:
    """What is measured on test records, and its value for a guess."""

    name: str
    floor: float

    def of(self, logits: Logits, labels: Labels, weights: Float64Array) -> Float64Array:
        """Return the measure, in [0, 1], for each draw: see `mean_recall`."""
        return (area if self.name == "AUC" else mean_recall)(logits, labels, weights)


def measure_for(classes: int) -> Measure:
    """Return the area under the ROC curve for two classes, the mean recall for more."""
    return Measure("AUC", 0.5) if classes == 2 else Measure("mean recall", 1 / classes)


Guesses = Mapping[str, Sequence[Logits]]
"""Learner → its predictions for all test records, one for each seed."""


@dataclass(frozen=True, eq=False)
class Scale:
    """The scale of one test set. Confidential."""

    measure: Measure
    labels: Labels  # of the test records
    draws: Float64Array  # float64 (1 + RESAMPLES, n): how often each test record counts
    halves: Int64Array  # int64 (n,): 0 or 1
    ceiling: Float64Array  # float64 (1 + RESAMPLES,): the measure after the private records

    @classmethod
    def of(cls, classes: int, labels: Labels, private: Guesses, seed: int) -> Scale:
        """Return the scale on which `private`, the guesses after the private records, is BEST."""
        rng = generator(seed, "judgement/scale")
        count = len(labels)
        resampled = rng.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
        draws = np.concatenate([np.ones((1, count)), resampled])
        order = rng.permutation(count)
        halves = np.zeros(count, np.int64)
        halves[order[np.argsort(labels[order], kind="stable")][1::2]] = 1  # half of each class
        bare = cls(measure_for(classes), labels, draws, halves, np.zeros(0))
        return cls(bare.measure, labels, draws, halves, bare.values(private)[0])

    def values(self, guesses: Guesses) -> tuple[Float64Array, str]:
        """Return the measure for each draw, float64 (1 + RESAMPLES,), and the learners' names.

        For each half of the test records the learner is chosen on the other half, so the choice
        does not make a set look better.
        """
        values = np.zeros(len(self.draws))
        chosen = []
        for half in (0, 1):
            rows = self.halves == half
            best = max(
                guesses, key=lambda name: self._mean(guesses[name], ~rows, self.draws[:1])[0]
            )
            chosen.append(best)
            values += self._mean(guesses[best], rows, self.draws) / 2
        return values, " and ".join(dict.fromkeys(chosen))

    def _mean(
        self, guesses: Sequence[Logits], rows: BoolArray, draws: Float64Array
    ) -> Float64Array:
        """Return the measure on some records for each draw, the mean over the seeds."""
        labels = self.labels[rows]
        measures = [self.measure.of(one[rows], labels, draws[:, rows]) for one in guesses]
        return np.asarray(np.mean(measures, axis=0))

    def place(self, guesses: Guesses, between_runs: float = 0.0) -> tuple[Place, Float64Array]:
        """Return a set's place, and its score for each draw.

        Args:
            guesses: the predictions after learning from the set.
            between_runs: standard deviation of the measure between runs of one recipe.
        """
        values, learner = self.values(guesses)
        noise = generator(0, "judgement/between").normal(0, between_runs, len(values))
        noise[0] = 0.0
        scores = self.score(values + noise)
        low, high = np.quantile(scores[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return Place(float(values[0]), float(scores[0]), float(low), float(high), learner), scores

    def score(self, values: Float64Array) -> Float64Array:
        """Return the scores of measures, in [0, BEST], draw by draw."""
        span = np.maximum(self.ceiling - self.measure.floor, 1e-9)
        return BEST * np.clip((values - self.measure.floor) / span, 0, 1)


def gain(scores: Float64Array, others: Float64Array) -> Gain:
    """Return how much better one set's scores are than another's, draw by draw."""
    differences = scores - others
    low, high = np.quantile(differences[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Gain(float(differences[0]), float(low), float(high))


def between_runs(records: int, labels: int, epsilon: float) -> float:
    """Return the standard deviation of the measure between runs of one recipe.

    It is in [0, MOST_BETWEEN_RUNS / labels].

    A curve over records · ε / labels, drawn through what was measured (docs/evaluation.md,
    benchmarks/between_runs.py); 0 if ε is 0 (no votes) or infinite (no noise).
    """
    if not 0 < records * epsilon < math.inf:
        return 0.0
    # Of many labels the mean recall averages as many errors.
    curve = 0.85 * math.sqrt(2 / labels) * math.pow(records * epsilon / labels, -2 / 3)
    return min(MOST_BETWEEN_RUNS / labels, curve)
