"""What an evaluation asks of a modality: one value, of which images and texts have their own.

A modality without one is compared under its embeddings alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from pe.data.samples import Samples
from pe.errors import RecipeError
from pe.evaluation.classifiers import LINEAR_PROBE
from pe.evaluation.frechet import Reals
from pe.evaluation.labelled import Labelled
from pe.private.source import RECORD, PrivateSource, read_source

Mask = npt.NDArray[np.bool_]
Values = dict[str, Any]
Training = dict[str, Labelled]
Views = dict[str, tuple[Training, Labelled]]
"""Classifier → the training sets and the test set as it sees them."""


def all_show(samples: Samples) -> Mask:
    """Every sample."""
    return np.ones(len(samples), bool)


def same_to_all(names: Sequence[str], training: Training, test: Labelled, note: Callable[[str], None]) -> Views:
    """The sets themselves, for every classifier."""
    return dict.fromkeys(names, (training, test))


def pictured_pairs(generated: Samples, private: Samples, distances: Reals) -> tuple[str, bytes]:
    """A PNG with a line for each pair: what a person sees of a generated sample, left, and of a record."""
    rows = [(*each,) for each in zip(generated.pictures(), private.pictures(), strict=True)]
    width, height = rows[0][0].size
    sheet = Image.new("RGB", (2 * width, len(rows) * height), "white")
    for i, pair in enumerate(rows):
        for j, picture in enumerate(pair):
            sheet.paste(picture, (j * width, i * height))
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG", optimize=True)
    return "png", buffer.getvalue()


def source_of_the_same_kind(place: str, private: PrivateSource, labelled: bool = True) -> PrivateSource:
    """The source at `place`, of the run's kind and with its declarations.

    Args:
        place: a path.
        private: the run's own source.
        labelled: whether its labels are read, if the run has any.

    Raises:
        RecipeError: nothing is there.
    """
    path = Path(place)
    if not path.exists():
        raise RecipeError(f"{place} does not exist: name what a source of the kind '{private.kind}' reads.")
    classes = (private.class_names or ()) if labelled else ()
    return read_source(declarations(private) | {"path": path, "classes": classes}, place)


def declarations(private: PrivateSource) -> dict[str, Any]:
    """What the run's source declares of how its records are read; units and budgets do not matter in an evaluation."""
    return asdict(private) | {"privacy_unit": RECORD, "declared_size": None, "ledger_file": None}


@dataclass(frozen=True)
class Methods:
    """How samples of one modality are evaluated, where modalities differ. What it gives is confidential.

    Attributes:
        classifiers: that are trained where none is named.
        views: classifiers, training sets, test set, and who is told what was changed → the sets as each sees them.
        equality: how equal samples are equal, within a sentence.
        shows: which samples show something of a record, bool (n,): the others count as nobody's copy.
        comparable: whether a sample of the one set can equal one of the other.
        pairs: generated samples, their nearest records, distances float64 (n,) → suffix and content of a file.
        source_at: a place, the run's source, whether labels are read → what reads a test set there.
        contents: sets by name, and a reference set → what else is told of them, beside fidelity.
        traces: generated, private, held-out samples, and strings that the user planted among the private ones →
            what else is told of memorisation; `warnings` among it are told aloud.
    """

    classifiers: tuple[str, ...] = (LINEAR_PROBE,)
    views: Callable[[Sequence[str], Training, Labelled, Callable[[str], None]], Views] = same_to_all
    equality: str = "value by value"
    shows: Callable[[Samples], Mask] = all_show
    comparable: Callable[[Samples, Samples], bool] = lambda ours, theirs: ours.shape == theirs.shape
    pairs: Callable[[Samples, Samples, Reals], tuple[str, bytes]] = pictured_pairs
    source_at: Callable[[str, PrivateSource, bool], PrivateSource] = source_of_the_same_kind
    contents: Callable[[Mapping[str, Samples], Samples], Values] = lambda sets, reference: {}
    traces: Callable[[Samples, Samples, Samples, Sequence[str]], Values] = lambda *_: {}
