"""Utility: train on synthetic samples, test on real ones."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt

from pe.data.samples import Images
from pe.errors import MissingDependency

Labels = npt.NDArray[np.int32]

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
    x, y = _features(train), _features(test)
    scores = {}
    with warnings.catch_warnings(), threadpool_limits(1):  # products this small are slower on more threads
        warnings.simplefilter("ignore", ConvergenceWarning)  # max_iter is the stopping rule
        for name, classifier in classifiers.items():
            scores[name] = float(np.mean(classifier.fit(x, train_labels).predict(y) == test_labels))
    return scores


def _features(images: Images) -> npt.NDArray[np.float32]:
    """Pixels in [0, 1], float32 (n, h·w·c)."""
    return images.pixels.reshape(len(images), -1).astype(np.float32) / np.float32(255)
