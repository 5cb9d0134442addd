"""The public sets and recipes of examples/, and a linear probe on them."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pe.evaluation.classifiers import fit_linear_probe
from pe.evaluation.labelled import Labelled, hold_out
from pe.evaluation.utility import HELD_OUT
from pe.lookahead import embed
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


def pictures_recipe(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = read_yaml(emoji.RECIPE)
    content["private"]["path"], content["api"]["path"] = (
        str(folder / "private"),
        str(folder / "public"),
    )
    return content


def texts_recipe(folder: Path, embedding: str = "wordllama") -> dict[str, Any]:
    """The recipe of examples/newswire.py for a folder like its own, with the labels of its
    private.csv.
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


def probe_accuracies(
    training_sets: Mapping[str, Labelled], test: Labelled, embedding: Embedding, progress: Progress
) -> dict[str, float]:
    """Accuracy of the evaluation's linear probe by training set, and `chance`, the share of the
    largest class.
    """
    scores: dict[str, float] = {}
    with progress.task("training classifiers", len(training_sets)) as task:
        tested = replace(test, vectors=embed(embedding, test.images))
        for name, training in training_sets.items():
            whole = replace(training, vectors=embed(embedding, training.images))
            predict = fit_linear_probe(
                *hold_out(whole, HELD_OUT, 0),
                int(max(test.labels.max(), whole.labels.max())) + 1,
                0,
            )
            scores[name] = round(float(np.mean(predict(tested).argmax(axis=1) == test.labels)), 4)
            task.advance(1)
    return scores | {"chance": round(float(np.bincount(test.labels).max() / len(test)), 4)}


def read_texts(path: Path) -> list[tuple[str, str]]:
    """Return the texts of a CSV file with their labels; those of a pool, which has none,
    are empty.
    """
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["text"], row.get("label", "")) for row in csv.DictReader(file)]
