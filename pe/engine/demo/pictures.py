"""Private Evolution on colour pictures from the package index, as a newcomer would run it on images of their own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pe.engine.demo.picture_set import make_picture_set
from pe.engine.execution import Surroundings, run_recipe, summary
from pe.engine.health import DISTRIBUTION
from pe.evaluation.labelled import Labelled, fit_linear_probe
from pe.evaluation.sets import Notes, Request, gather
from pe.lookahead import embed
from pe.planning.build import build_embedding
from pe.plugins.protocols import Embedding
from pe.plugins.registry import require_extras
from pe.privacy.data_set import DataSetLedger
from pe.progress import Progress
from pe.recipe.reading import read_yaml, with_change
from pe.recipe.schema import Recipe
from pe.store.places import check_absent
from pe.store.run import Run

RECIPE = Path(__file__).with_name("pictures.yaml")
CHANCE = "chance"


def run_pictures(
    folder: Path,
    *,
    epsilon: float | None = None,
    seed: int | None = None,
    out: Path | None = None,
    surroundings: Surroundings,
) -> dict[str, Any]:
    """Make the picture set, run the recipe on it, and measure what its data is good for.

    Args:
        folder: of the picture set; fetched and written if it is not there.
        epsilon: target ε; None: the recipe's.
        seed: of everything but the noise; None: the recipe's.
        out: the run's directory; must not exist. Default: a new one below `runs/`.
        surroundings: progress, and the signal to stop.

    Returns:
        epsilon, delta, images, api_calls, seconds, run, pictures (the set's folder), test (its number of test
        pictures), accuracy (by training set).

    Raises:
        MissingDependency: a library, npm or a package is not to be had.
        RunError: `folder` holds something else.
    """
    require_extras(DISTRIBUTION, ["embeddings", "evaluation"], "The demo on pictures")
    started = time.monotonic()
    if out is not None:
        check_absent(out)
    make_picture_set(folder, progress=surroundings.progress)
    content = recipe_content(folder)
    ledger = DataSetLedger.beside(folder / "private")
    content["private"]["ledger_file"] = str(ledger.path)  # named: if an earlier one is lost, its runs count no more
    for key, value in {"privacy.epsilon": epsilon, "seed": seed}.items():
        content = content if value is None else with_change(content, f"{key}={value}")
    run = run_recipe(Recipe.parse(content, str(RECIPE)), out, surroundings)
    found = measure(run, folder / "test", surroundings)
    return summary(run) | found | {"pictures": str(folder), "seconds": round(time.monotonic() - started, 1)}


def measure(run: Run, test: Path, surroundings: Surroundings) -> dict[str, Any]:
    """`accuracy` by training set (the run's data, its controls, the private pictures), and `test`, the number of tests.

    Guarantee: none. Of private pictures the numbers are confidential; the demo's are public in truth.
    """
    sets = gather(run, Request(str(test)), Notes(surroundings.progress), surroundings.stop)
    embedding, real = build_embedding(sets.recipe), sets.test.content
    return {"accuracy": probe_accuracies(sets.all, real, embedding, surroundings.progress), "test": len(real)}


def recipe_content(folder: Path) -> dict[str, Any]:
    """What RECIPE holds, over the picture set in `folder`."""
    content: dict[str, Any] = read_yaml(RECIPE)
    content["private"]["path"], content["api"]["path"] = str(folder / "private"), str(folder / "public")
    return content


def probe_accuracies(
    training_sets: Mapping[str, Labelled], test: Labelled, embedding: Embedding, progress: Progress
) -> dict[str, float]:
    """Share of test pictures that a linear probe on the embedding's features labels rightly, by training set.

    The probe is the evaluation's. Nothing is chosen by the test set. `chance` is the share of the largest class.

    Guarantee: none. Of private pictures the numbers are confidential; these are public in truth.
    """
    scores: dict[str, float] = {}
    with progress.task("training classifiers", len(training_sets)) as task:
        tested = replace(test, vectors=embed(embedding, test.images))
        for name, training in training_sets.items():
            known = replace(training, vectors=embed(embedding, training.images))
            predict = fit_linear_probe(known, known, int(max(test.labels.max(), training.labels.max())) + 1, 0)
            scores[name] = round(float(np.mean(predict(tested).argmax(axis=1) == test.labels)), 4)
            task.advance(1)
    return scores | {CHANCE: round(float(np.bincount(test.labels).max() / len(test)), 4)}
