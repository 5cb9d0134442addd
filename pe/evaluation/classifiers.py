"""Words of texts, and the classifier on them: TF-IDF of the training set, and logistic regression."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from pe.data.texts import Texts
from pe.errors import MissingDependency, RecipeError, nearest_name
from pe.evaluation.labelled import (
    Labelled,
    Predict,
    fit_linear_probe,
    fit_logistic_regression,
    fit_mlp,
    log_probabilities,
    on_one_thread,
)

_ALONE = (
    "\u1000-\u109f\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Letters of scripts that are written without spaces: Burmese, Thai, Lao, Khmer, Japanese, Chinese."""
_WORD = re.compile(rf"[{_ALONE}]|[^\W{_ALONE}]+")
_MIXED = np.uint64(0x9E3779B97F4A7C15)
_STEPS = 100

Hashes = npt.NDArray[np.uint64]


def words(text: str) -> list[str]:
    """The text's words in small letters; a letter is one where a script knows no spaces."""
    return _WORD.findall(text.casefold())


def runs(tokens: list[list[str]], length: int) -> list[Hashes]:
    """For each text the hashes of all runs of `length` words of it, uint64; none where it is shorter."""
    known: dict[str, int] = {}
    flat = np.fromiter((known.setdefault(word, len(known)) for word in chain(*tokens)), np.uint64)
    with np.errstate(over="ignore"):
        codes = np.array([hash_of(word) for word in known], np.uint64)[flat.astype(np.int64)]
        found = np.zeros(max(len(codes) - length + 1, 0), np.uint64)
        for i in range(length):
            found = (found ^ codes[i : len(codes) - length + 1 + i]) * _MIXED
            found ^= found >> np.uint64(29)
    ends = np.cumsum([len(each) for each in tokens])
    starts = ends - [len(each) for each in tokens]
    return [found[start : max(end - length + 1, start)] for start, end in zip(starts, ends, strict=True)]


def hash_of(word: str) -> int:
    """64 bits of a word, the same in every process."""
    from hashlib import blake2b

    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")


def fit_tfidf_regression(train: Labelled, validation: Labelled, classes: int, seed: int) -> Predict:
    """Logistic regression on TF-IDF, both of the training part alone; nothing is chosen, so nothing is validated.

    scikit-learn's defaults, but for the words (`words`), sublinear counts and at most 100 steps.

    Raises:
        MissingDependency: scikit-learn is not installed.
    """
    with on_one_thread():
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression

        features = TfidfVectorizer(analyzer=_words_or_none, sublinear_tf=True)
        model = LogisticRegression(max_iter=_STEPS).fit(features.fit_transform(strings_of(train)), train.labels)
    return lambda given: log_probabilities(model, features.transform(strings_of(given)), classes)


def _words_or_none(text: str) -> list[str]:
    """The words; the empty one for a text without any, so that every set of texts has a vocabulary."""
    return words(text) or [""]


def strings_of(of: Labelled) -> list[str]:
    """The texts."""
    assert isinstance(of.samples, Texts)
    return of.samples.strings


# The classifiers by name.


LINEAR_PROBE = "linear_probe"
ON_PIXELS = {"logistic_regression": fit_logistic_regression, "mlp": fit_mlp}
ON_WORDS = {"tfidf_regression": fit_tfidf_regression}
SHALLOW = {LINEAR_PROBE: fit_linear_probe} | ON_PIXELS | ON_WORDS
KNOWN = (*SHALLOW, "resnet9")


@dataclass(frozen=True)
class NetworkSettings:
    """Settings of ResNet-9's training.

    Attributes:
        epochs: passes over the training part, ≥ 1.
        flip: mirror half of the images; wrong for digits and text.
        device: of torch; None: the GPU if there is one.
    """

    epochs: int = 20
    flip: bool = False
    device: str | None = None


@dataclass(frozen=True)
class Classifier:
    """A classifier by its name, one of KNOWN.

    Raises:
        RecipeError: no such classifier.
    """

    name: str
    settings: NetworkSettings = NetworkSettings()

    def __post_init__(self) -> None:
        if self.name not in KNOWN:
            raise RecipeError(f"Unknown classifier '{self.name}': {nearest_name(self.name, KNOWN)}")

    @property
    def shallow(self) -> bool:
        """Whether it is one of scikit-learn's, which may be trained side by side."""
        return self.name in SHALLOW

    @property
    def kind(self) -> str | None:
        """The modality that it can be trained on; None: any, by what an embedding makes of it."""
        if self.name == LINEAR_PROBE:
            return None
        return "texts" if self.name in ON_WORDS else "images"

    def fit(self, train: Labelled, validation: Labelled, classes: int, seed: int) -> Predict:
        """Train it; the stopping point is chosen on `validation`.

        Args:
            train: what it learns from.
            validation: held out of the same training set.
            classes: their number.
            seed: of all randomness.

        Raises:
            MissingDependency: scikit-learn or torch is not installed.
        """
        if self.shallow:
            return SHALLOW[self.name](train, validation, classes, seed)
        try:
            from pe.evaluation.training import Training, fit_network
        except ImportError as error:
            raise MissingDependency.of("torch", "evaluation", f"The classifier '{self.name}'") from error
        settings = Training(self.settings.epochs, self.settings.flip, device=self.settings.device)
        return fit_network(train, validation, classes, seed, settings)


# Whether a thing is more frequent among generated samples than chance brings it.


LEVEL = 0.01
"""How often the answer would be yes, if generated samples were as held-out ones are."""


def beyond_chance(made_with: int, made: int, unseen_with: int, unseen: int) -> bool:
    """Whether a larger share of the generated than of the held-out samples has it, by Fisher's exact test, one-sided.

    Args:
        made_with: generated samples that have it.
        made: generated samples.
        unseen_with: held-out samples that have it.
        unseen: held-out samples.
    """
    from scipy.stats import hypergeom

    tail = hypergeom.sf(made_with - 1, made + unseen, made_with + unseen_with, made)
    return made_with > 0 and bool(tail < LEVEL)
