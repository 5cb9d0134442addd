"""Words of texts, and the classifier on them: TF-IDF of the training set, and logistic regression."""

from __future__ import annotations

import re
from itertools import chain

import numpy as np
import numpy.typing as npt

from pe.data.texts import Texts
from pe.evaluation.labelled import Labelled
from pe.evaluation.shallow import Predict, log_probabilities
from pe.evaluation.threads import on_one_thread

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
