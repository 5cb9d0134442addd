"""A set in the forms in which learners and measures see it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pe.data.arrays import Float64Array, ImageShape
from pe.data.columns import Codes, Columns
from pe.data.decoding import Channels, decode_image
from pe.data.images import Images
from pe.data.rows import Rows
from pe.data.samples import Samples, generator
from pe.data.texts import Texts
from pe.judgement import features
from pe.judgement.labelled import Labelled, few
from pe.judgement.learners import Lesson
from pe.plugins.protocols import Vectors

DIRECTIONS = 20
"""Principal directions of the embedding that `show` looks at, beside the named features."""


@dataclass(frozen=True, eq=False)
class Viewed:
    """A set in every view. Confidential, if its samples are private."""

    lesson: Lesson
    names: list[str]  # of the features
    features: Float64Array  # float64 (n, features): what people know of a sample
    vectors: Vectors  # float32 (n, d): nearness under the embedding
    codes: Codes | None = field(default=None)  # of a table's rows

    def __len__(self) -> int:
        return len(self.lesson)


LONGEST = 24
"""Longer side, in pixels, to which images are shrunk for classifiers on pixels: training time grows
with the pixels."""
MOST_DIMENSIONS = 1280
"""Most dimensions of vectors, those of a usual network. Vectors of more are projected."""
ONE_HOT = 64
"""Most dimensions of a category. If it has more values, neighbouring values share a dimension."""

Embed = Callable[[Samples], Vectors]


def views_of(whole: Labelled, embed: Embed, like: Labelled, columns: Columns | None) -> Viewed:
    """Return a set in the views of its modality.

    Args:
        whole: the set, of which at most KEPT samples are taken.
        embed: returns the vectors of samples.
        like: the test set, in whose shape images are seen.
        columns: of a table.
    """
    whole = few(whole, 0)
    vectors = _projected(embed(whole.samples))
    views: dict[str, Any] = {"vectors": vectors}
    codes = None
    names = [f"direction {i + 1}" for i in range(vectors.shape[1])]
    found = vectors.astype(np.float64)
    if isinstance(whole.samples, Images):
        small = in_shape(whole, shrink(like.images.shape))
        views["pixels"] = small.images.pixels
        views["flat"] = small.images.pixels.reshape(len(small), -1) / np.float32(255)
        names, found = features.of_images(in_shape(whole, like.images.shape).images)
    elif isinstance(whole.samples, Rows) and columns is not None:
        codes = columns.codes(whole.samples)
        views["cells"] = columns.vectors(codes, 1.0, 1.0, ONE_HOT).astype(np.float32)
        views["codes"] = codes.astype(np.float32)
        names, found = [*columns], codes.astype(np.float64)
    elif isinstance(whole.samples, Texts):
        views["strings"] = np.array(whole.samples.strings, dtype=object)
        names, found = features.of_texts(whole.samples)
    soft = None if whole.soft is None else whole.soft.astype(np.float64)
    return Viewed(Lesson(views, whole.labels, soft), names, found, vectors, codes)


def _projected(vectors: Vectors) -> Vectors:
    """Return vectors of MOST_DIMENSIONS at most, by a random projection that keeps distances.

    Learners on the pixels of large images would take minutes. The projection is the same for every
    set.
    """
    dimensions = vectors.shape[1]
    if dimensions <= MOST_DIMENSIONS:
        return vectors
    rng = generator(0, "judgement/projection")
    directions = rng.standard_normal((dimensions, MOST_DIMENSIONS), np.float32)
    return vectors @ directions / np.float32(math.sqrt(MOST_DIMENSIONS))


def shrink(shape: ImageShape) -> ImageShape:
    """Return height, width and channels with a longer side of at most LONGEST.

    The proportions stay about the same.
    """
    height, width, channels = shape
    factor = min(1.0, LONGEST / max(height, width))
    return max(1, round(height * factor)), max(1, round(width * factor)), channels


def in_shape(whole: Labelled, shape: ImageShape) -> Labelled:
    """Stretch images (antialiased) to height and width, and make them grey or coloured."""
    if whole.images.shape == shape:
        return whole
    height, width, channels = shape
    shades: Channels = 1 if channels == 1 else 3
    pixels = [
        decode_image(each, size=(height, width), resize="stretch", channels=shades, name="A sample")
        for each in whole.images.pixels
    ]
    return replace(whole, samples=Images(np.stack(pixels)))
