"""Utility: train on synthetic samples, test on real ones."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.data.images import Images
from pe.errors import MissingDependency
from pe.evaluation.classifiers import Classifier
from pe.evaluation.labelled import Labelled, Labels, hold_out
from pe.evaluation.shallow import pixels_in_unit_interval
from pe.progress import Progress

HELD_OUT = 0.1
"""Share of a training set on which the classifier and its stopping point are chosen."""

CLASSIFIERS = ("logistic_regression", "mlp")


def accuracies(train: Images, train_labels: Labels, test: Images, test_labels: Labels, seed: int) -> dict[str, float]:
    """Share of test images that scikit-learn's classifiers, trained on `train`, label rightly.

    Args:
        train: n training images.
        train_labels: int32 (n,), at least two different ones.
        test: m test images of the same size.
        test_labels: int32 (m,).
        seed: of the classifiers' own randomness.

    Returns:
        classifier (CLASSIFIERS) → accuracy in [0, 1]. The settings are scikit-learn's defaults but
        max_iter. Nothing is chosen by the test set.

    Guarantee: none. With a private test set the numbers are confidential.

    Raises:
        MissingDependency: scikit-learn is not installed.
    """
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
        from sklearn.neural_network import MLPClassifier
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        raise MissingDependency.of("scikit-learn", "demo", "Measuring accuracy") from error
    classifiers = {
        "logistic_regression": LogisticRegression(max_iter=100),
        "mlp": MLPClassifier(max_iter=25, random_state=seed),
    }
    x, y = pixels_in_unit_interval(train), pixels_in_unit_interval(test)
    scores = {}
    with warnings.catch_warnings(), threadpool_limits(1):  # products this small are slower on more threads
        warnings.simplefilter("ignore", ConvergenceWarning)  # max_iter is the stopping rule
        for name, classifier in classifiers.items():
            scores[name] = float(np.mean(classifier.fit(x, train_labels).predict(y) == test_labels))
    return scores


@dataclass(frozen=True, eq=False)
class Utility:
    """One classifier, trained on one set with several seeds and tested on real images.

    Attributes:
        images: of the training set, the held-out part included.
        accuracy: share of test images labelled rightly, float64 (seeds,).
        validation: the same of the training set's held-out part.
        confusion: int64 (classes, classes), summed over the seeds; rows are true classes.
    """

    images: int
    accuracy: npt.NDArray[np.float64]
    validation: npt.NDArray[np.float64]
    confusion: npt.NDArray[np.int64]

    def to_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """As docs/evaluation.md has it, with the class `names`."""
        tested, right = self.confusion.sum(axis=1), np.diag(self.confusion)
        return {
            "images": self.images,
            "accuracy": _spread(self.accuracy),
            "validation": _spread(self.validation),
            "per_class": {name: float(right[i] / tested[i]) if tested[i] else None for i, name in enumerate(names)},
            "confusion": self.confusion.tolist(),
        }


def utility(
    classifiers: Sequence[Classifier],
    training_sets: Mapping[str, Labelled],
    test: Labelled,
    classes: int,
    seeds: Sequence[int],
    progress: Progress,
) -> dict[str, dict[str, Utility]]:
    """Train every classifier on every training set and test it on `test`.

    For each seed a tenth of the training set is held out; there, and never on the test set, stopping points are
    chosen. Training sets are as large as they are: what one holds more than another is part of what it is worth.

    Guarantee: none. With a private test or training set the numbers are confidential.

    Args:
        classifiers: what to train.
        training_sets: name → at least two images of at least two classes.
        test: real images.
        classes: their number.
        seeds: one training each.
        progress: told of every training.

    Returns:
        classifier's name → training set's name → result.

    Raises:
        MissingDependency: a classifier's library is not installed.
    """
    found: dict[str, dict[str, Utility]] = {}
    trainings = sum(classifier.members for classifier in classifiers) * len(training_sets) * len(seeds)
    with progress.task("training classifiers", trainings) as task:
        for classifier in classifiers:
            found[classifier.name] = {}
            for name, training in training_sets.items():
                scores = []
                for seed in seeds:
                    scores.append(_train_and_test(classifier, training, test, classes, seed))
                    task.advance(classifier.members)
                accuracy, validation, confusion = zip(*scores, strict=True)
                found[classifier.name][name] = Utility(
                    len(training), np.array(accuracy), np.array(validation), np.sum(confusion, axis=0)
                )
    return found


def choose_classifiers(results: Mapping[str, Mapping[str, Utility]]) -> dict[str, str]:
    """Training set → the classifier that is best on its held-out parts; ties to the first."""
    names = next(iter(results.values())).keys()
    return {name: max(results, key=lambda each: float(results[each][name].validation.mean())) for name in names}


def _train_and_test(
    classifier: Classifier, training: Labelled, test: Labelled, classes: int, seed: int
) -> tuple[float, float, npt.NDArray[np.int64]]:
    """Accuracy, validation accuracy and confusion matrix."""
    rest, held = hold_out(training, HELD_OUT, seed)
    predict = classifier.fit(rest, held, classes, seed)
    predicted = predict(test.images).argmax(axis=1)
    confusion = np.bincount(test.labels * classes + predicted, minlength=classes**2).reshape(classes, classes)
    validation = np.mean(predict(held.images).argmax(axis=1) == held.labels)
    return float(np.mean(predicted == test.labels)), float(validation), confusion


def _spread(values: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Mean and standard deviation (divisor n − 1; null for one value)."""
    deviation = float(values.std(ddof=1)) if len(values) > 1 else None
    return {"mean": float(values.mean()), "std": deviation, "values": values.tolist()}
