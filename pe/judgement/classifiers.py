"""Threads, probabilities and words of classifiers, and the two classifiers of `pe demo`."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from pe.data.arrays import Float32Array
from pe.data.images import Images
from pe.data.samples import Samples
from pe.data.texts import Texts
from pe.errors import MissingDependency, RecipeError
from pe.judgement.labelled import Labels, Logits

MOST_THREADS = 4
"""Most classifiers that are trained at the same time."""

_LEAST = 1e-12  # probability whose logarithm is taken

_SPACELESS = (  # scripts without spaces between words: Burmese, Thai, Lao, Khmer, Japanese, Chinese
    "\u1000-\u109f\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_SPACELESS}]|[^\W{_SPACELESS}]+")

Job = TypeVar("Job")
Result = TypeVar("Result")


@lru_cache(maxsize=1)
def _libraries(_modules: int) -> Any:
    """Return a controller of all libraries' threads.

    Finding them is slow, so it is done again only after imports.
    """
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def on_one_thread(extra: str = "evaluation") -> Iterator[None]:
    """Run scikit-learn on one thread, where products this small are fastest.

    Its ConvergenceWarning is off.

    Several threads may enter it at once only while the thread that began them is in it, and so
    restores settings last.

    Raises:
        MissingDependency: scikit-learn is not installed; `extra` brings it.
    """
    try:
        from sklearn.exceptions import ConvergenceWarning

        libraries = _libraries(len(sys.modules))
    except ImportError as error:
        raise MissingDependency.of("scikit-learn", extra, "Measuring accuracy") from error
    with warnings.catch_warnings(), libraries.limit(limits=1):
        warnings.simplefilter("ignore", ConvergenceWarning)  # max_iter is a stopping rule, no fault
        yield


@contextmanager
def side_by_side(
    train: Callable[[Job], Result], jobs: Sequence[Job], extra: str = "evaluation"
) -> Iterator[Iterator[Result]]:
    """Yield an iterator over all results, in the order of `jobs`, of which some run in parallel.

    Jobs not begun when the block ends are dropped.
    """
    # more at once would hold more features in memory
    threads = min(MOST_THREADS, os.cpu_count() or 1)
    with on_one_thread(extra), ThreadPoolExecutor(threads) as pool:
        results = [pool.submit(train, job) for job in jobs]
        try:
            yield (each.result() for each in results)
        finally:
            pool.shutdown(cancel_futures=True)


def pixels_in_unit_interval(images: Images) -> Float32Array:
    """Return the pixels in [0, 1], float32 (n, h·w·c)."""
    return images.pixels.reshape(len(images), -1).astype(np.float32) / np.float32(255)


def log_probabilities(model: Any, features: Any, classes: int) -> Logits:
    """Return the model's log-probabilities of all classes. None is below log(_LEAST)."""
    probabilities = np.full((features.shape[0], classes), _LEAST)
    with on_one_thread():
        probabilities[:, model.classes_] = model.predict_proba(features)
    return np.log(np.maximum(probabilities, _LEAST))


def words(text: str) -> list[str]:
    """Return the text's words, case-folded. In scripts without spaces each letter is a word."""
    return _WORD.findall(text.casefold())


def strings_of(samples: Samples) -> list[str]:
    """Return the samples, which must be texts, as strings."""
    assert isinstance(samples, Texts)
    return samples.strings


CLASSIFIERS = ("logistic_regression", "mlp")


def accuracy(
    classifier: str,
    train: Images,
    train_labels: Labels,
    test: Images,
    test_labels: Labels,
    seed: int,
) -> float:
    """Return the accuracy on test images, in [0, 1], of one of CLASSIFIERS.

    It is trained on n images of the same size.

    The settings are scikit-learn's defaults but max_iter. Nothing is chosen by the test set. Labels
    are int32 (n,).

    Guarantee: none. With a private test set the number is confidential.

    Raises:
        MissingDependency: scikit-learn is not installed.
        RecipeError: the training images have fewer than two labels.
    """
    if len(np.unique(train_labels)) < 2:
        raise RecipeError(
            "The training images have fewer than two labels: a classifier has nothing to learn."
        )
    x = pixels_in_unit_interval(train)
    y = pixels_in_unit_interval(test)
    with on_one_thread("demo"):
        from sklearn.linear_model import LogisticRegression
        from sklearn.neural_network import MLPClassifier

        mlp = classifier == "mlp"
        model = (
            MLPClassifier(max_iter=25, random_state=seed)
            if mlp
            else LogisticRegression(max_iter=100)
        )
        return float(np.mean(model.fit(x, train_labels).predict(y) == test_labels))
