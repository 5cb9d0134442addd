"""The public sets and recipes of examples/, and the judgement of sets of samples."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pe.evaluation.features import CachedEmbedding
from pe.judgement.judge import Compared, Judgement, judge
from pe.judgement.labelled import Labelled
from pe.judgement.views import Viewed, views_of
from pe.plugins.protocols import Embedding
from pe.progress import Progress
from pe.recipe.reading import read_yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from examples import emoji, newswire
from examples.emoji import CLASSES, SIDE, make_picture_set
from examples.newswire import TOPICS, make_newswire, read_table

__all__ = [
    "CLASSES",
    "SIDE",
    "TOPICS",
    "make_newswire",
    "make_picture_set",
    "newswire",
    "read_table",
]


def judged(
    generated: Mapping[str, Labelled],
    private: Labelled,
    test: Labelled,
    embedding: Embedding,
    classes: Sequence[str],
    seed: int = 0,
) -> Judgement:
    """Judge images or texts as `pe evaluate` does, each learner trained once.

    Args:
        generated: SYNTHETIC, the set that is judged, then its controls by name.
        private: the private records.
        test: real records that no run has seen.
        embedding: what the linear learners and the measures of nearness see.
        classes: the label names.
        seed: of the learners.
    """
    cached = CachedEmbedding(type(embedding).__name__, embedding)

    def seen(whole: Labelled) -> Viewed:
        return views_of(whole, cached.vectors, test, None)

    sets = Compared(
        modality=test.samples.kind,
        noun=test.samples.noun,
        classes=classes,
        generated={name: seen(one) for name, one in generated.items()},
        private=seen(private),
        test=seen(test),
        seeds=(seed,),
    )
    return judge(sets, Progress())


def macro_f1(confusion: Sequence[Sequence[int]]) -> float:
    """Return the mean F1 of all classes. Rows of the matrix are true classes."""
    matrix = np.array(confusion)
    both = matrix.sum(axis=0) + matrix.sum(axis=1)
    return float(np.mean(2 * np.diag(matrix) / np.maximum(both, 1)))


def pictures_recipe(folder: Path) -> dict[str, Any]:
    """Return the recipe of examples/emoji.py for a folder like its own."""
    content: dict[str, Any] = read_yaml(emoji.RECIPE)
    content["private"]["path"] = str(folder / "private")
    content["api"]["path"] = str(folder / "public")
    return content


def texts_recipe(folder: Path, embedding: str = "wordllama") -> dict[str, Any]:
    """Return the recipe of examples/newswire.py for a folder like its own.

    The labels are those of its private.csv.
    """
    content: dict[str, Any] = read_yaml(newswire.RECIPE)
    labels = [label for _, label in read_texts(folder / "private.csv")]
    classes, public = sorted(set(labels)), str(folder / "public.csv")
    content["private"] |= {"path": str(folder / "private.csv"), "classes": classes}
    content["private"]["declared_size"] = round(len(labels), -2)
    content["api"]["path"] = public
    content["embedding"] = {"kind": embedding, "public": public} | (
        {"projection": "svd"} if embedding == "tfidf" else {}
    )
    of_one = [size // len(TOPICS) for size in content["evolution"]["population"]]
    content["evolution"]["population"] = [size * len(classes) for size in of_one]
    return content


def read_texts(path: Path) -> list[tuple[str, str]]:
    """Return the texts of a CSV file with their labels; "" for a file without labels."""
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["text"], row.get("label", "")) for row in csv.DictReader(file)]
