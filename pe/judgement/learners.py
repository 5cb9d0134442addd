"""Learners, which are trained on a set and tested on real records.

All learners take soft labels: a sample counts for each of its likely labels, by its probability.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from pe.data.arrays import Float64Array, Int64Array
from pe.data.samples import generator
from pe.judgement.classifiers import log_probabilities, on_one_thread, side_by_side, words
from pe.judgement.labelled import Labels, Logits
from pe.progress import Progress

View = Any
"""Samples as a learner sees them: an array or a sparse matrix with a row for each."""

MOST_IMAGES = 1500
"""Most images that the network learns from, drawn at random: its time grows with them."""
LEAST_LIKELY = 0.02
"""Labels that are less probable are left out: they would multiply the rows."""


@dataclass(frozen=True, eq=False)
class Lesson:
    """A set to learn from: its samples in each view, and their labels."""

    views: Mapping[str, View]
    labels: Labels  # int32 (n,)
    soft: Float64Array | None = None  # class probabilities, (n, classes); None: `labels` are sure

    def __len__(self) -> int:
        return len(self.labels)

    def weighted(self) -> tuple[Int64Array, Int64Array, Float64Array]:
        """Return rows, the label of each, and its weight: one entry for each likely label."""
        if self.soft is None:
            return np.arange(len(self)), self.labels.astype(np.int64), np.ones(len(self))
        rows, targets = np.nonzero(self.soft >= LEAST_LIKELY)
        return rows, targets, self.soft[rows, targets].astype(np.float64)

    @property
    def teaches(self) -> bool:
        """True if two classes or more have more than one sample."""
        _, targets, _ = self.weighted()
        return bool(np.count_nonzero(np.bincount(targets) > 1) > 1)

    def log_shares(self, classes: int) -> Float64Array:
        """Return the logarithm of each class's share of the set, float64 (classes,).

        One sample is added to each class, so that none has the share 0.
        """
        _, targets, weights = self.weighted()
        counts = np.bincount(targets, weights, minlength=classes) + 1
        return np.asarray(np.log(counts / counts.sum()))


@dataclass(frozen=True)
class Learner:
    """A learner by its name, the view that it sees, and how it is made for a seed."""

    name: str
    view: str
    make: Callable[[int], Any]  # seed → an estimator of scikit-learn
    is_random: bool = False  # whether it learns something else with another seed

    def guess(self, lesson: Lesson, test: Mapping[str, View], classes: int, seed: int) -> Logits:
        """Learn from a set, and return log-probabilities for the test records, (m, classes)."""
        from sklearn.pipeline import Pipeline

        rows, targets, weights = lesson.weighted()
        with on_one_thread():
            model = self.make(seed)
            weight = "sample_weight"
            if isinstance(model, Pipeline):
                weight = f"{model.steps[-1][0]}__sample_weight"
            model.fit(lesson.views[self.view][rows], targets, **{weight: weights})
        return log_probabilities(model, test[self.view], classes)


class NetworkLearner(Learner):
    """A convolutional network on images. It takes soft labels as they are."""

    def guess(self, lesson: Lesson, test: Mapping[str, View], classes: int, seed: int) -> Logits:
        """See `Learner.guess`."""
        from pe.judgement.network import guess

        targets = np.eye(classes)[lesson.labels] if lesson.soft is None else lesson.soft
        few = generator(seed, "judgement/network").permutation(len(lesson))[:MOST_IMAGES]
        images = lesson.views[self.view][few]
        with on_one_thread():
            return guess(images, targets[few].astype(np.float32), test[self.view], seed)


def _linear(strength: float, steps: int) -> Callable[[int], Any]:
    def make(seed: int) -> Any:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        return make_pipeline(_Centre(), LogisticRegression(C=strength, max_iter=steps))

    return make


class _Centre:
    """A step that centres vectors and divides them by one number.

    A number for each dimension would let a dimension that hardly varies in the set outweigh all
    others in a real record.
    """

    def fit(self, vectors: Any, labels: Any = None) -> Any:
        self._mean = vectors.mean(axis=0, dtype=np.float64)
        deviation = float(np.sqrt(vectors.var(axis=0, dtype=np.float64).mean()))
        self._scale = (deviation or 1.0) * np.sqrt(vectors.shape[1] / 10)
        return self

    def fit_transform(self, vectors: Any, labels: Any = None) -> Any:
        return self.fit(vectors).transform(vectors)

    def transform(self, vectors: Any) -> Any:
        return (vectors - self._mean) / self._scale


def _on_words(strength: float) -> Callable[[int], Any]:
    def make(seed: int) -> Any:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        # the empty word, so that every set of texts has a vocabulary
        tfidf = TfidfVectorizer(analyzer=lambda text: words(text) or [""], sublinear_tf=True)
        return make_pipeline(tfidf, LogisticRegression(C=strength, max_iter=100))

    return make


def _forest(seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(random_state=seed, min_samples_leaf=2)


def _boosted(seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(random_state=seed, max_iter=60)


def _perceptron(seed: int) -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier(random_state=seed, early_stopping=True, max_iter=50, n_iter_no_change=5)


STRENGTHS = (0.01, 0.1, 1.0)
"""Values of C of the linear learners: the inverse of the penalty's weight."""


def panel(modality: str) -> tuple[Learner, ...]:
    """Return the learners for a modality, the cheapest first."""
    view = "cells" if modality == "table" else "vectors"
    linear = tuple(Learner(f"linear, C = {c:g}", view, _linear(c, 200)) for c in STRENGTHS)
    if modality == "images" and find_spec("torch"):
        return (*linear, NetworkLearner("network", "pixels", _perceptron, True))
    if modality == "images":
        return (*linear, Learner("perceptron", "flat", _perceptron, True))
    if modality == "texts":
        return (*linear, *(Learner(f"words, C = {c:g}", "strings", _on_words(c)) for c in (1, 10)))
    if modality == "table":
        forest = Learner("forest", "codes", _forest, True)
        return (*linear, forest, Learner("boosted trees", "codes", _boosted))
    return linear


def guesses(
    learners: Sequence[Learner],
    lessons: Mapping[str, Lesson],
    test: Mapping[str, View],
    classes: int,
    seeds: Sequence[int],
    progress: Progress,
) -> dict[str, dict[str, list[Logits]]]:
    """Return set → learner → predictions for the test records.

    There is one for each seed, or a single one of a learner without chance.

    Predictions are as if every class were as frequent in the set, since the measure counts every
    class as much: a class that is only rarer is not lost.
    """
    jobs = [
        (name, learner, seed)
        for name in lessons
        for learner in learners
        for seed in (seeds if learner.is_random else seeds[:1])
    ]
    found: dict[str, dict[str, list[Logits]]] = {
        name: {learner.name: [] for learner in learners} for name in lessons
    }

    def train(job: tuple[str, Learner, int]) -> Logits:
        name, learner, seed = job
        return learner.guess(lessons[name], test, classes, seed)

    with (
        progress.task("training classifiers", len(jobs)) as task,
        side_by_side(train, jobs) as results,
    ):
        for (name, learner, _), logits in zip(jobs, results, strict=True):
            found[name][learner.name].append(logits - lessons[name].log_shares(classes))
            task.advance(1)
    return found
