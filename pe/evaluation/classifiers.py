"""The classifiers: scikit-learn's, several side by side on one thread each, and ResNet-9."""

from __future__ import annotations

import copy
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from pe.data.arrays import Float32Array
from pe.data.images import Images
from pe.data.samples import Samples
from pe.data.texts import Texts
from pe.errors import MissingDependency, RecipeError, nearest_name
from pe.evaluation.labelled import Labelled, Logits, NetworkSettings, Predict, few
from pe.plugins.devices import require_torch
from pe.plugins.protocols import Vectors

MEMORY = 2**31
"""Most bytes of features that parallel trainings hold together."""

STRENGTHS = (0.01, 0.1, 1.0)
"""Values of C that the linear probe tries, the strongest penalty first. The last is scikit-learn's
default."""

LEAST_DEVIATION = 0.1
"""Least deviation by which a row's value, in [0, 1], is divided: one that is nearly constant tells
little."""

_LEAST = 1e-12  # probability whose logarithm is taken
_PASSES = 50
_PATIENCE = 10
# steps of a pass, where there are images enough; images of a batch
_STEPS = 32
_SMALLEST = 16
_LARGEST = 200

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


def at_once(jobs: int, features: int) -> int:
    """Return how many of `jobs` trainings to run in parallel, ≥ 1.

    They are as many as BLAS has threads, within MEMORY.

    `features` is the number of float64 values that the largest training holds.
    """
    pools = _libraries(len(sys.modules)).info()
    threads = max((pool["num_threads"] for pool in pools if pool["user_api"] == "blas"), default=1)
    return max(1, min(threads, jobs, MEMORY // max(8 * features, 1)))


@contextmanager
def side_by_side(
    train: Callable[[Job], Result], jobs: Sequence[Job], threads: int, extra: str = "evaluation"
) -> Iterator[Iterator[Result]]:
    """Yield an iterator over all results, in the order of `jobs`.

    Jobs not begun when the block ends are dropped.
    """
    if threads == 1:
        yield map(train, jobs)
        return
    with on_one_thread(extra), ThreadPoolExecutor(threads) as pool:
        results = [pool.submit(train, job) for job in jobs]
        try:
            yield (each.result() for each in results)
        finally:
            pool.shutdown(cancel_futures=True)


def fit_logistic_regression(
    train: Labelled, validation: Labelled, classes: int, seed: int
) -> Predict:
    """Fit logistic regression on pixels, or on a `few` rows' vectors.

    It has scikit-learn's defaults, and at most 100 steps.

    Vectors are centred and divided by the training part's deviations, none below LEAST_DEVIATION;
    `validation` is not used.
    """
    if train.vectors is None:
        return _fit_regression(
            train, lambda samples: pixels_in_unit_interval(samples.images), classes, steps=100
        )
    train = few(train, seed)
    mean = _vectors(train).mean(axis=0)
    scale = np.maximum(_vectors(train).std(axis=0), LEAST_DEVIATION)
    return _fit_regression(
        train, lambda samples: (_vectors(samples) - mean) / scale, classes, steps=100
    )


def fit_random_forest(train: Labelled, validation: Labelled, classes: int, seed: int) -> Predict:
    """Fit a random forest on a `few` rows' vectors, with scikit-learn's defaults.

    `validation` is not used.
    """
    with on_one_thread():
        from sklearn.ensemble import RandomForestClassifier

        return _fit(RandomForestClassifier(random_state=seed), few(train, seed), _vectors, classes)


def fit_boosted_trees(train: Labelled, validation: Labelled, classes: int, seed: int) -> Predict:
    """Fit boosted trees on rows' vectors, with scikit-learn's defaults for histograms.

    `validation` is not used.
    """
    with on_one_thread():
        from sklearn.ensemble import HistGradientBoostingClassifier

        return _fit(HistGradientBoostingClassifier(random_state=seed), train, _vectors, classes)


def _fit(model: Any, train: Labelled, features: Callable[[Labelled], Any], classes: int) -> Predict:
    model.fit(features(train), train.labels)
    return lambda samples: log_probabilities(model, features(samples), classes)


def _vectors(samples: Labelled) -> Vectors:
    assert samples.vectors is not None
    return samples.vectors


@dataclass(frozen=True)
class LinearProbe:
    """A linear probe that was fitted. It predicts as any other classifier."""

    strength: float  # C, the inverse of the penalty's weight, one of STRENGTHS
    predict: Predict

    def __call__(self, samples: Labelled) -> Logits:
        """Return log-probabilities as `Predict` does."""
        return self.predict(samples)


def fit_linear_probe(train: Labelled, validation: Labelled, classes: int, seed: int) -> LinearProbe:
    """Fit logistic regression on vectors, with the one of STRENGTHS that is best on `validation`.

    Best is the least mean cross-entropy; ties go to the stronger penalty. All dimensions are
    centred and divided by one number, the root mean square of the training part's deviations times
    √(d/10), so that the penalty ‖w‖²/(2C) means the same for any embedding. With a number for each
    dimension, a dimension that hardly varies in the training part would outweigh all others in a
    real image.
    """
    mean = _vectors(train).mean(axis=0, dtype=np.float64)
    deviation = float(np.sqrt(_vectors(train).var(axis=0, dtype=np.float64).mean()))
    scale = (deviation or 1.0) * np.sqrt(len(mean) / 10)

    def scale_vectors(samples: Labelled) -> Any:
        return (_vectors(samples) - mean) / scale

    rows = np.arange(len(validation))
    probes = []
    losses = []
    for strength in STRENGTHS:
        predict = _fit_regression(train, scale_vectors, classes, steps=200, strength=strength)
        probes.append(LinearProbe(strength, predict))
        losses.append(-float(predict(validation)[rows, validation.labels].mean()))
    return probes[int(np.argmin(losses))]


def fit_tfidf_regression(train: Labelled, validation: Labelled, classes: int, seed: int) -> Predict:
    """Fit logistic regression on TF-IDF, both from the training part alone.

    `validation` is not used.

    Settings are scikit-learn's defaults, except that `words` finds the words, counts are sublinear,
    steps at most 100.
    """
    with on_one_thread():
        from sklearn.feature_extraction.text import TfidfVectorizer

        # the empty word, so that every set of texts has a vocabulary
        tfidf = TfidfVectorizer(analyzer=lambda text: words(text) or [""], sublinear_tf=True)
        tfidf.fit(strings_of(train.samples))
    return _fit_regression(
        train, lambda samples: tfidf.transform(strings_of(samples.samples)), classes, steps=100
    )


def _fit_regression(
    train: Labelled,
    features: Callable[[Labelled], Any],
    classes: int,
    steps: int,
    strength: float = 1.0,
) -> Predict:
    with on_one_thread():
        from sklearn.linear_model import LogisticRegression

        return _fit(LogisticRegression(C=strength, max_iter=steps), train, features, classes)


def fit_mlp(train: Labelled, validation: Labelled, classes: int, seed: int) -> Predict:
    """Fit an MLP on pixels with scikit-learn's defaults (100 hidden units, Adam).

    Keep the pass best on `validation`.

    Batches have 200 images, fewer for small training sets, so that a pass has several steps.
    """
    with on_one_thread():
        from sklearn.neural_network import MLPClassifier

        batch = min(max(len(train) // _STEPS, _SMALLEST), _LARGEST, len(train))
        model = MLPClassifier(random_state=seed, batch_size=batch)
        x = pixels_in_unit_interval(train.images)
        y = pixels_in_unit_interval(validation.images)
        best = -1.0
        best_model = model
        passes_since = 0
        for _ in range(_PASSES):
            model.partial_fit(x, train.labels, classes=np.arange(classes))
            score = float(np.mean(model.predict(y) == validation.labels))
            passes_since += 1
            if score > best:
                best = score
                # the model goes on learning, so the best pass is kept as a copy
                best_model = copy.deepcopy(model)
                passes_since = 0
            if passes_since == _PATIENCE:
                break
    return lambda samples: log_probabilities(
        best_model, pixels_in_unit_interval(samples.images), classes
    )


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


LINEAR_PROBE = "linear_probe"
ON_PIXELS = {"logistic_regression": fit_logistic_regression, "mlp": fit_mlp}
ON_WORDS = {"tfidf_regression": fit_tfidf_regression}
ON_ROWS = {
    "logistic_regression": fit_logistic_regression,
    "random_forest": fit_random_forest,
    "boosted_trees": fit_boosted_trees,
}
SHALLOW = {LINEAR_PROBE: fit_linear_probe} | ON_PIXELS | ON_WORDS | ON_ROWS
KNOWN = (*SHALLOW, "resnet9")


@dataclass(frozen=True)
class Classifier:
    """A classifier by its name, one of KNOWN.

    Raises:
        RecipeError: no such classifier.
    """

    name: str
    settings: NetworkSettings = field(default_factory=NetworkSettings)

    def __post_init__(self) -> None:
        if self.name not in KNOWN:
            raise RecipeError(f"Unknown classifier '{self.name}': {nearest_name(self.name, KNOWN)}")

    @property
    def shallow(self) -> bool:
        """True for scikit-learn's classifiers, which may be trained side by side."""
        return self.name in SHALLOW

    @property
    def modalities(self) -> list[str]:
        """The kinds of samples that it can be trained on. None: any, through an embedding."""
        kinds = {"images": (*ON_PIXELS, "resnet9"), "texts": ON_WORDS, "table": ON_ROWS}
        return [kind for kind, names in kinds.items() if self.name in names]

    def fit(self, train: Labelled, validation: Labelled, classes: int, seed: int) -> Predict:
        """Train the classifier on `train`.

        Its stopping point is chosen on `validation`, held out of the training set.

        Raises:
            MissingDependency: scikit-learn or torch is not installed.
        """
        if self.shallow:
            return SHALLOW[self.name](train, validation, classes, seed)
        require_torch("evaluation", f"The classifier '{self.name}'")
        from pe.evaluation.resnet9 import fit_network

        return fit_network(train, validation, classes, seed, self.settings)
