"""scikit-learn's classifiers: logistic regression and a multi-layer perceptron on pixels, a linear probe on vectors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.data.images import Images
from pe.evaluation.labelled import Labelled
from pe.evaluation.threads import on_one_thread

Logits = npt.NDArray[np.float64]
Predict = Callable[[Labelled], Logits]
"""Samples → logits, float64 (n, classes): log-probabilities, up to a constant per sample. Their labels do not count."""

LONGEST = 32
"""Longer side, in pixels, of the images that are classified by their pixels here; larger ones are shrunk to it before.

Their time goes with the number of pixels."""

Features = npt.NDArray[np.floating]

_PASSES, _PATIENCE = 50, 10
_STEPS_OF_PROBE = 200
_STEPS, _SMALLEST, _LARGEST = 32, 16, 200  # of a pass, where there are images enough; images of a batch
_LEAST = 1e-12  # of a probability whose logarithm is taken


def fit_logistic_regression(train: Labelled, validation: Labelled, classes: int, seed: int) -> Predict:
    """scikit-learn's defaults, with at most 100 steps: nothing is chosen, so nothing is validated.

    Raises:
        MissingDependency: scikit-learn is not installed.
    """
    with on_one_thread():
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(max_iter=100).fit(pixels_in_unit_interval(train.images), train.labels)
    return lambda given: log_probabilities(model, pixels_in_unit_interval(given.images), classes)


def fit_linear_probe(train: Labelled, validation: Labelled, classes: int, seed: int) -> Predict:
    """Logistic regression on the samples' vectors; its one setting is fixed, so nothing is chosen or validated.

    All dimensions are centred and divided by one number, the root mean square of the training part's deviations times
    √(d/10), so that the penalty ‖w‖²/2 (scikit-learn's default, C = 1) means the same for any embedding. With a number
    for each dimension, one that hardly varies in the training part would outweigh all others in a real image.

    Raises:
        MissingDependency: scikit-learn is not installed.
    """
    assert train.vectors is not None
    mean = train.vectors.mean(axis=0, dtype=np.float64)
    apart = float(np.sqrt(train.vectors.var(axis=0, dtype=np.float64).mean()))
    scale = (apart or 1.0) * np.sqrt(len(mean) / 10)

    def scaled(given: Labelled) -> Features:
        assert given.vectors is not None
        features: Features = (given.vectors - mean) / scale
        return features

    with on_one_thread():
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(max_iter=_STEPS_OF_PROBE).fit(scaled(train), train.labels)
    return lambda given: log_probabilities(model, scaled(given), classes)


def fit_mlp(train: Labelled, validation: Labelled, classes: int, seed: int) -> Predict:
    """scikit-learn's defaults (100 hidden units, Adam, batches of 200), stopped where validation is best.

    Small training sets have smaller batches, so that a pass has steps.

    Raises:
        MissingDependency: scikit-learn is not installed.
    """
    with on_one_thread():
        from sklearn.neural_network import MLPClassifier

        batch = min(max(len(train) // _STEPS, _SMALLEST), _LARGEST, len(train))
        model = MLPClassifier(random_state=seed, batch_size=batch)
        x, y = pixels_in_unit_interval(train.images), pixels_in_unit_interval(validation.images)
        best, chosen, waited = -1.0, model, 0
        for _ in range(_PASSES):
            model.partial_fit(x, train.labels, classes=np.arange(classes))
            score = float(np.mean(model.predict(y) == validation.labels))
            waited += 1
            if score > best:
                best, chosen, waited = score, copy.deepcopy(model), 0
            if waited == _PATIENCE:
                break
    return lambda given: log_probabilities(chosen, pixels_in_unit_interval(given.images), classes)


def pixels_in_unit_interval(images: Images) -> npt.NDArray[np.float32]:
    """Pixels in [0, 1], float32 (n, h·w·c)."""
    return images.pixels.reshape(len(images), -1).astype(np.float32) / np.float32(255)


def log_probabilities(model: Any, features: Any, classes: int) -> Logits:
    """Of all classes; one that training has never seen has the least."""
    found = np.full((features.shape[0], classes), _LEAST)
    with on_one_thread():
        found[:, model.classes_] = model.predict_proba(features)
    logits: Logits = np.log(np.maximum(found, _LEAST))
    return logits
