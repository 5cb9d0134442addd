"""Features that people know: what gives a set away to somebody who looks at it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from pe.data.arrays import Float64Array
from pe.data.images import Images
from pe.data.texts import Texts
from pe.judgement.classifiers import words

Feature = Callable[[Images], Float64Array]


def _grey(images: Images) -> Float64Array:
    return np.asarray(images.pixels.mean(axis=3, dtype=np.float32))


def _mean(values: Float64Array) -> Float64Array:
    """Return the mean of each image's values, 0 if the image is too small to have any."""
    return np.asarray(values.mean(axis=(1, 2)) if values.size else np.zeros(len(values)))


def _edges(images: Images) -> Float64Array:
    grey = _grey(images)
    down, across = (_mean(np.abs(np.diff(grey, axis=axis))) for axis in (1, 2))
    return down + across


def _saturation(images: Images) -> Float64Array:
    pixels = images.pixels
    return np.asarray((pixels.max(axis=3) - pixels.min(axis=3)).mean(axis=(1, 2)))


def _noise(images: Images) -> Float64Array:
    """Return the mean difference of a pixel from the mean of its four neighbours."""
    grey = _grey(images)
    inner = grey[:, 1:-1, 1:-1]
    around = grey[:, :-2, 1:-1] + grey[:, 2:, 1:-1] + grey[:, 1:-1, :-2] + grey[:, 1:-1, 2:]
    return _mean(np.abs(inner - around / 4))


OF_IMAGES: Mapping[str, Feature] = {
    "brightness": lambda images: _grey(images).mean(axis=(1, 2)),
    "contrast": lambda images: _grey(images).std(axis=(1, 2)),
    "darkest parts": lambda images: np.quantile(_grey(images), 0.05, axis=(1, 2)),
    "brightest parts": lambda images: np.quantile(_grey(images), 0.95, axis=(1, 2)),
    "edges": _edges,
    "noise": _noise,
    "colour": _saturation,
}


def _share(text: str, holds: Callable[[str], bool]) -> float:
    return sum(map(holds, text)) / max(len(text), 1)


OF_TEXTS: Mapping[str, Callable[[str], float]] = {
    "length": len,
    "words": lambda text: len(words(text)),
    "length of a word": lambda text: float(np.mean([len(word) for word in words(text)] or [0])),
    "repeated words": lambda text: 1 - len(set(words(text))) / max(len(words(text)), 1),
    "punctuation": lambda text: _share(text, lambda sign: not sign.isalnum() and sign > " "),
    "digits": lambda text: _share(text, str.isdigit),
    "capitals": lambda text: _share(text, str.isupper),
    "lines": lambda text: text.count("\n") + 1,
    "letters beyond ASCII": lambda text: _share(text, lambda sign: ord(sign) > 127),
}


def of_images(images: Images) -> tuple[list[str], Float64Array]:
    """Return the names of the features, and float64 (n, features)."""
    return [*OF_IMAGES], np.stack([feature(images) for feature in OF_IMAGES.values()], axis=1)


def of_texts(texts: Texts) -> tuple[list[str], Float64Array]:
    """Return the names of the features, and float64 (n, features)."""
    rows = [[float(of(text)) for of in OF_TEXTS.values()] for text in texts.strings]
    return [*OF_TEXTS], np.array(rows).reshape(len(rows), len(OF_TEXTS))
