"""Samples with their classes: a held-out part of them, and images in another shape."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pe.data.decoding import Channels, convert_pixels
from pe.data.images import Images
from pe.data.samples import SOFT_LABEL, Conditions, Indices, Samples, generator
from pe.errors import MissingDependency
from pe.plugins.protocols import Vectors

Labels = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Labelled:
    """n samples and the class of each.

    Attributes:
        samples: of one modality and shape.
        labels: int32 (n,), index into the class list.
        soft: float32 (n, classes): the probabilities of the classes, where a generator gives them; students are then
            taught with these, and `labels` are the most probable ones.
        vectors: float32 (n, d): what an embedding makes of the samples; None: of no matter.
    """

    samples: Samples
    labels: Labels
    soft: npt.NDArray[np.float32] | None = None
    vectors: Vectors | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def images(self) -> Images:
        """The samples, of what only images are asked for."""
        assert isinstance(self.samples, Images)
        return self.samples

    def take(self, indices: Indices) -> Labelled:
        """The samples at `indices` with their classes."""
        soft, vectors = (None if rows is None else rows[indices] for rows in (self.soft, self.vectors))
        return Labelled(self.samples.take(indices), self.labels[indices], soft, vectors)


def label_samples(samples: Samples, labels: Labels, conditions: Conditions) -> Labelled:
    """Generated samples with the labels they were made for, or with soft ones where their conditions hold such."""
    if SOFT_LABEL not in conditions:
        return Labelled(samples, labels)
    soft = np.asarray(conditions[SOFT_LABEL], dtype=np.float32)
    return Labelled(samples, soft.argmax(axis=1).astype(np.int32), soft)


def hold_out(whole: Labelled, share: float, seed: int) -> tuple[Labelled, Labelled]:
    """(the rest, `share` of each class), shuffled; of a class of two or more at least one is in each part.

    Args:
        whole: the samples.
        share: in (0, 1).
        seed: of the choice.
    """
    rng = generator(seed, "evaluation/hold-out")
    rest, held = [], []
    for label in np.unique(whole.labels):
        members = rng.permutation(np.flatnonzero(whole.labels == label))
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        held.append(members[:count])
        rest.append(members[count:])
    return whole.take(rng.permutation(np.concatenate(rest))), whole.take(rng.permutation(np.concatenate(held)))


def shrunk(shape: tuple[int, int, int], longest: int) -> tuple[int, int, int]:
    """Height, width and channels with a longer side of at most `longest` pixels, in about the same proportions."""
    height, width, channels = shape
    factor = min(1.0, longest / max(height, width))
    return max(1, round(height * factor)), max(1, round(width * factor)), channels


def in_shape(images: Images, shape: tuple[int, int, int]) -> Images:
    """The images with height, width and channels as in `shape`: stretched (antialiased), made grey or coloured."""
    if images.shape == shape:
        return images
    height, width, channels = shape
    wanted: Channels = 1 if channels == 1 else 3
    return Images(
        np.stack(
            [
                convert_pixels(each, size=(height, width), resize="stretch", channels=wanted, name="A sample")
                for each in images.pixels
            ]
        )
    )


# Trainings of scikit-learn side by side, each on one thread.


MEMORY = 2**31
"""Bytes of features that trainings hold at once."""

Job = TypeVar("Job")
Result = TypeVar("Result")


@lru_cache(maxsize=1)
def _libraries(_modules: int) -> Any:
    """The loaded libraries that have threads: looked for, among hundreds, only when more modules are loaded."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


class _Limits:
    """Limits of the whole process, from the first thread that enters to the last that leaves."""

    def __init__(self) -> None:
        self._lock, self._inside, self._stack = Lock(), 0, ExitStack()

    def enter(self, extra: str) -> None:
        """Enter, as the first one or one more."""
        try:
            from sklearn.exceptions import ConvergenceWarning

            libraries = _libraries(len(sys.modules))
        except ImportError as error:
            raise MissingDependency.of("scikit-learn", extra, "Measuring accuracy") from error
        with self._lock:
            if not self._inside:
                self._stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore", ConvergenceWarning)
                self._stack.enter_context(libraries.limit(limits=1))
            self._inside += 1

    def leave(self) -> None:
        """Leave; the last one restores what was."""
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._stack.close()


_LIMITS = _Limits()


@contextmanager
def on_one_thread(extra: str = "evaluation") -> Iterator[None]:
    """scikit-learn on one thread, since products this small are slower on more; max_iter is a stopping rule, no fault.

    Raises:
        MissingDependency: scikit-learn is not installed, which the `extra` brings.
    """
    _LIMITS.enter(extra)
    try:
        yield
    finally:
        _LIMITS.leave()


def at_once(jobs: int, features: int) -> int:
    """How many trainings go on side by side, ≥ 1: as many as BLAS would take threads, within MEMORY.

    Args:
        jobs: their number.
        features: numbers, as float64, that the largest of them trains on.
    """
    pools = _libraries(len(sys.modules)).info()
    threads = max((pool["num_threads"] for pool in pools if pool["user_api"] == "blas"), default=1)
    return max(1, min(threads, jobs, MEMORY // max(8 * features, 1)))


@contextmanager
def side_by_side(
    train: Callable[[Job], Result], jobs: Sequence[Job], threads: int, extra: str = "evaluation"
) -> Iterator[Iterator[Result]]:
    """The result of every job, in their order, from so many threads. On leaving, jobs not begun are dropped.

    Raises:
        MissingDependency: scikit-learn is not installed, which the `extra` brings.
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


# scikit-learn's classifiers: logistic regression and a multi-layer perceptron on pixels, a linear probe on vectors.


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
