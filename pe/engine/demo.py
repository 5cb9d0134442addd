"""Private Evolution on MNIST digits with a generator that ships with us, and classifiers trained on the result."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pe.data.images import Images
from pe.engine.execution import Surroundings, run_recipe, summary
from pe.engine.health import DISTRIBUTION
from pe.evaluation.classifiers import at_once, side_by_side
from pe.evaluation.controls import make_unevolved, one_vote_run
from pe.evaluation.sets import ONE_VOTE, REAL, SYNTHETIC_DATA, UNEVOLVED
from pe.evaluation.utility import CLASSIFIERS, accuracy
from pe.fit.trainer import load_model
from pe.planning.parts import build_embedding, build_generator
from pe.planning.releases import plan_of
from pe.plugins.registry import require_extras
from pe.private.npz import DIGITS, MnistSample
from pe.recipe.schema import Recipe
from pe.store.run import Run

RECIPES = {name: Path(__file__).parent / "recipes" / f"{name}.yaml" for name in ("glyphs", "diffusion")}
"""The demo's recipes by their generator: drawn text (glyphs), or a small diffusion model."""

QUICK = ("glyphs",)
"""The generators with which the demo also makes the control by one vote, because that takes only seconds."""


def run_demo(
    api: str = "glyphs",
    *,
    epsilon: float | None = None,
    seed: int | None = None,
    out: Path | None = None,
    surroundings: Surroundings,
) -> dict[str, Any]:
    """Run the demo's recipe and measure what its data is good for.

    Args:
        api: one of RECIPES.
        epsilon: target ε; None: the recipe's.
        seed: of everything but the noise; None: the recipe's.
        out: the run's directory; must not exist. Default: a new one below `runs/`.
        surroundings: progress, and the signal to stop.

    Returns:
        The values of `summary`, with accuracy (by classifier, then by training set) and seconds.

    Raises:
        MissingDependency: a library that any step of the demo needs is not installed; nothing is written.
    """
    require_extras(DISTRIBUTION, ["demo"], "The demo")
    start = time.monotonic()
    changes = {"privacy.epsilon": epsilon, "seed": seed}
    recipe = Recipe.load(RECIPES[api], tuple(f"{key}={value}" for key, value in changes.items() if value is not None))
    run = run_recipe(recipe, out, surroundings)
    accuracy = _accuracy(run, recipe, one_vote=api in QUICK, surroundings=surroundings)
    return summary(run) | {"accuracy": accuracy, "seconds": round(time.monotonic() - start, 1)}


def _accuracy(run: Run, recipe: Recipe, one_vote: bool, surroundings: Surroundings) -> dict[str, dict[str, float]]:
    """Return the accuracy on held-out real digits, by classifier, then by training set."""
    synthetic, progress = run.synthetic, surroundings.progress
    assert isinstance(synthetic.samples, Images)
    test, test_labels = _digits("test")
    api = build_generator(recipe)
    load_model(api, run.folder)
    training_sets = {
        SYNTHETIC_DATA: (synthetic.samples, synthetic.labels),
        UNEVOLVED: (make_unevolved(api, synthetic.labels, DIGITS, recipe.seed).images, synthetic.labels),
    }
    if one_vote:
        plan, dataset, embedding = plan_of(run, recipe), recipe.private.open(), build_embedding(recipe)
        control = one_vote_run(run, recipe, plan, api, run.populations(), dataset, embedding)
        vote = control.result(progress, surroundings.stop)
        assert isinstance(vote.samples, Images)
        training_sets[ONE_VOTE] = vote.samples, vote.labels
    training_sets[REAL] = _digits("private")
    scores: dict[str, dict[str, float]] = {name: {} for name in CLASSIFIERS}
    jobs = [(classifier, name) for name in training_sets for classifier in CLASSIFIERS]
    threads = at_once(len(jobs), max(images.pixels.size for images, _ in training_sets.values()))

    def train(job: tuple[str, str]) -> float:
        return accuracy(job[0], *training_sets[job[1]], test, test_labels, recipe.seed)

    with (
        progress.task("training classifiers", len(jobs)) as task,
        side_by_side(train, jobs, threads, "demo") as results,
    ):
        for (classifier, name), score in zip(jobs, results, strict=True):
            scores[classifier][name] = round(score, 4)
            task.advance(1)
    return scores


def _digits(split: Literal["private", "test"]) -> tuple[Images, npt.NDArray[np.int32]]:
    """Return all images of a split, in one block, and their labels. Public."""
    dataset = MnistSample(split=split).open()
    images, _ = next(dataset.blocks(len(dataset)))
    assert isinstance(images, Images)
    return images, dataset.labels
