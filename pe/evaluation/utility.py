"""Utility: train on synthetic samples, test on real ones."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.data.images import Images
from pe.data.samples import generator
from pe.errors import RecipeError
from pe.evaluation.classifiers import LINEAR_PROBE, Classifier
from pe.evaluation.features import KEPT, Seen
from pe.evaluation.labelled import (
    Labelled,
    Labels,
    at_once,
    hold_out,
    on_one_thread,
    pixels_in_unit_interval,
    side_by_side,
)
from pe.evaluation.sets import Request, Sets
from pe.progress import Progress, tell_left

HELD_OUT = 0.1
"""Share of a training set on which the classifier and its stopping point are chosen."""

_MEASURED = 2  # rounds, of which the last is timed: the first one loads libraries

CLASSIFIERS = ("logistic_regression", "mlp")


def accuracies(train: Images, train_labels: Labels, test: Images, test_labels: Labels, seed: int) -> dict[str, float]:
    """Classifier (CLASSIFIERS) → its `accuracy`, which says more."""
    return {name: accuracy(name, train, train_labels, test, test_labels, seed) for name in CLASSIFIERS}


def accuracy(
    classifier: str, train: Images, train_labels: Labels, test: Images, test_labels: Labels, seed: int
) -> float:
    """Share of test images, in [0, 1], that scikit-learn's classifier, trained on `train`, labels rightly.

    The settings are scikit-learn's defaults but max_iter. Nothing is chosen by the test set.

    Args:
        classifier: one of CLASSIFIERS.
        train: n training images.
        train_labels: int32 (n,), at least two different ones.
        test: m test images of the same size.
        test_labels: int32 (m,).
        seed: of the classifier's own randomness.

    Guarantee: none. With a private test set the number is confidential.

    Raises:
        MissingDependency: scikit-learn is not installed.
        RecipeError: the training images have fewer than two labels.
    """
    if len(np.unique(train_labels)) < 2:
        raise RecipeError("The training images have fewer than two labels: a classifier has nothing to learn.")
    x, y = pixels_in_unit_interval(train), pixels_in_unit_interval(test)
    with on_one_thread("demo"):
        from sklearn.linear_model import LogisticRegression
        from sklearn.neural_network import MLPClassifier

        model = (
            MLPClassifier(max_iter=25, random_state=seed) if classifier == "mlp" else LogisticRegression(max_iter=100)
        )
        return float(np.mean(model.fit(x, train_labels).predict(y) == test_labels))


@dataclass(frozen=True, eq=False)
class Utility:
    """One classifier, trained on one set with several seeds and tested on real samples.

    Attributes:
        images: samples of the training set, the held-out part included.
        right: which test samples are labelled rightly, bool (seeds, m).
        macro_f1: mean over the classes of the test set of 2·precision·recall/(precision + recall), float64 (seeds,).
        validation: share of the training set's held-out part that is labelled rightly, float64 (seeds,).
        confusion: int64 (classes, classes), summed over the seeds; rows are true classes.
    """

    images: int
    right: npt.NDArray[np.bool_]
    macro_f1: npt.NDArray[np.float64]
    validation: npt.NDArray[np.float64]
    confusion: npt.NDArray[np.int64]

    @property
    def accuracy(self) -> npt.NDArray[np.float64]:
        """Share of test samples labelled rightly, float64 (seeds,)."""
        accuracy: npt.NDArray[np.float64] = self.right.mean(axis=1)
        return accuracy

    def to_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """As docs/evaluation.md has it, with the class `names`."""
        tested, right = self.confusion.sum(axis=1), np.diag(self.confusion)
        return {
            "images": self.images,
            "accuracy": _spread(self.accuracy),
            "macro_f1": _spread(self.macro_f1),
            "validation": _spread(self.validation),
            "per_class": {name: float(right[i] / tested[i]) if tested[i] else None for i, name in enumerate(names)},
            "confusion": self.confusion.tolist(),
        }


@dataclass(frozen=True, eq=False)
class Trial:
    """A classifier, and the sets as it sees them.

    Attributes:
        name: of its results.
        classifier: what to train.
        training_sets: name → at least two samples of at least two classes.
        test: real samples.
    """

    name: str
    classifier: Classifier
    training_sets: Mapping[str, Labelled]
    test: Labelled


def utility(
    classifiers: Sequence[Classifier],
    training_sets: Mapping[str, Labelled],
    test: Labelled,
    classes: int,
    seeds: Sequence[int],
    progress: Progress,
) -> dict[str, dict[str, Utility]]:
    """Train every classifier on every training set and test it on `test`: `try_out` with the same sets for all."""
    trials = [Trial(classifier.name, classifier, training_sets, test) for classifier in classifiers]
    return try_out(trials, classes=classes, seeds=seeds, progress=progress)


def try_out(
    trials: Sequence[Trial], classes: int, seeds: Sequence[int], progress: Progress
) -> dict[str, dict[str, Utility]]:
    """Train every trial's classifier on every of its training sets and test it on its test set.

    For each seed a tenth of the training set is held out; there, and never on the test set, stopping points are
    chosen. Training sets are as large as they are: what one holds more than another is part of what it is worth.
    All classifiers are trained on one set after the other, so that the time that is left can be told early.

    Guarantee: none. With a private test or training set the numbers are confidential.

    Args:
        trials: of different names, with training sets of the same names.
        classes: their number.
        seeds: one training each.
        progress: told of every training, and of the time that is left.

    Returns:
        trial's name → training set's name → result.

    Raises:
        MissingDependency: a classifier's library is not installed.
    """
    scores: dict[tuple[str, str], list[_Score]] = {(each.name, to): [] for each in trials for to in each.training_sets}
    rounds = [(seed, name) for seed in seeds for name in trials[0].training_sets]
    jobs = [_Job(trial, name, classes, seed) for seed, name in rounds for trial in trials]
    threads = (
        at_once(len(jobs), max(map(_Job.features, jobs))) if all(each.classifier.shallow for each in trials) else 1
    )
    with (
        progress.task("training classifiers", len(jobs)) as task,
        side_by_side(_Job.train_and_test, jobs, threads) as results,
    ):
        seconds: list[float] = []
        for job, (score, spent) in zip(jobs, results, strict=True):
            scores[job.trial.name, job.name].append(score)
            seconds.append(spent)
            task.advance(1)
            if len(seconds) == _MEASURED * len(trials):
                rest = [name for _, name in rounds[_MEASURED:]]
                left = seconds_left(trials, seconds[-len(trials) :], job.name, rest)
                tell_left(progress, "training classifiers", left / threads)
    found: dict[str, dict[str, Utility]] = {trial.name: {} for trial in trials}
    for trial in trials:
        for name, training in trial.training_sets.items():
            found[trial.name][name] = _together(training, scores[trial.name, name])
    return found


def seconds_left(trials: Sequence[Trial], seconds: Sequence[float], name: str, left: Sequence[str]) -> float:
    """How long the trainings on the sets that are `left` take, if time goes with the images.

    Args:
        trials: all of them.
        seconds: of each trial's training on the set `name`.
        name: a training set.
        left: training sets, one for each training of each trial that is still to come.
    """
    each = [{to: len(whole) for to, whole in trial.training_sets.items()} for trial in trials]
    return sum(one * sum(sizes[to] for to in left) / sizes[name] for one, sizes in zip(seconds, each, strict=True))


def choose_classifiers(results: Mapping[str, Mapping[str, Utility]]) -> dict[str, str]:
    """Training set → the classifier that is best on its held-out parts; ties to the first."""
    names = next(iter(results.values())).keys()
    return {name: max(results, key=lambda each: float(results[each][name].validation.mean())) for name in names}


_Score = tuple[npt.NDArray[np.bool_], float, npt.NDArray[np.int64]]
"""Which test samples are labelled rightly, validation accuracy, confusion matrix."""


@dataclass(frozen=True, eq=False)
class _Job:
    """One training: a trial's classifier, on the training set `name`."""

    trial: Trial
    name: str
    classes: int
    seed: int

    def features(self) -> int:
        """Numbers that it trains on."""
        training = self.trial.training_sets[self.name]
        return training.samples.array.size if training.vectors is None else training.vectors.size

    def train_and_test(self) -> tuple[_Score, float]:
        """The score, and the seconds that it took."""
        started, test, classes = time.perf_counter(), self.trial.test, self.classes
        rest, held = hold_out(self.trial.training_sets[self.name], HELD_OUT, self.seed)
        predict = self.trial.classifier.fit(rest, held, classes, self.seed)
        predicted = predict(test).argmax(axis=1)
        confusion = np.bincount(test.labels * classes + predicted, minlength=classes**2).reshape(classes, classes)
        validation = float(np.mean(predict(held).argmax(axis=1) == held.labels))
        return (predicted == test.labels, validation, confusion), time.perf_counter() - started


def _together(training: Labelled, scores: Sequence[_Score]) -> Utility:
    right, validation, confusion = zip(*scores, strict=True)
    return Utility(
        images=len(training),
        right=np.array(right),
        macro_f1=np.array([macro_f1(each) for each in confusion]),
        validation=np.array(validation),
        confusion=np.sum(confusion, axis=0),
    )


def macro_f1(confusion: npt.NDArray[np.int64]) -> float:
    """The mean F1 of the classes that the test set has: of each 2·right/(samples of it + samples called it).

    Args:
        confusion: (classes, classes), rows are true classes.
    """
    tested, called, right = confusion.sum(axis=1), confusion.sum(axis=0), np.diag(confusion)
    there = tested > 0
    return float((2 * right[there] / (tested + called)[there]).mean())


def _spread(values: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Mean and standard deviation (divisor n − 1; null for one value)."""
    deviation = float(values.std(ddof=1)) if len(values) > 1 else None
    return {"mean": float(values.mean()), "std": deviation, "values": values.tolist()}


# What is trained on which samples: every classifier, with the sets as it sees them.


def trials_of(sets: Sets, request: Request, seen: Sequence[Seen]) -> list[Trial]:
    """A trial for every classifier that is asked for, and for the linear probe one under every embedding.

    A probe sees the vectors of at most KEPT samples of a set, chosen at random; what others see, the modality says.

    Raises:
        RecipeError: a classifier that is asked for is of another modality.
    """
    test, training = sets.test.content, {}
    for name, whole in sets.all.items():
        if np.count_nonzero(np.bincount(whole.labels) > 1) < 2:
            by = "by its soft labels " if whole.soft is not None else ""
            few = f"it has not two {sets.modality.noun} each of two classes"
            sets.notes.add(f"No classifier is trained on '{name}': {by}{few}.")
        else:
            training[name] = whole
    classifiers = request.trained(sets.methods.classifiers)
    for each in classifiers:
        if each.kind not in (None, sets.modality.kind):
            raise RecipeError(
                f"The classifier '{each.name}' is of {each.kind}, and the run's data are {sets.modality.noun}: "
                f"take {' or '.join(sets.methods.classifiers)}."
            )
    views = sets.methods.views([each.name for each in classifiers], training, test, sets.notes.add)
    found = []
    for classifier in classifiers:
        if classifier.name == LINEAR_PROBE:
            found += [_probe(classifier, each, training, test, sets.recipe.seed) for each in seen]
        else:
            found.append(Trial(classifier.name, classifier, *views[classifier.name]))
    return found


def _probe(classifier: Classifier, seen: Seen, training: Mapping[str, Labelled], test: Labelled, seed: int) -> Trial:
    """The linear probe under an embedding, by whose name it goes."""
    vectors = {name: _with_vectors(_some(whole, seed), seen) for name, whole in training.items()}
    return Trial(f"{classifier.name} on {seen.name}", classifier, vectors, _with_vectors(test, seen))


def _some(whole: Labelled, seed: int) -> Labelled:
    """At most KEPT of the samples, the set itself where it has no more."""
    if len(whole) <= KEPT:
        return whole
    return whole.take(np.sort(generator(seed, "evaluation/probe").permutation(len(whole))[:KEPT]))


def _with_vectors(whole: Labelled, seen: Seen) -> Labelled:
    return replace(whole, vectors=seen.vectors(whole.samples))
