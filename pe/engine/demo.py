"""Private Evolution on MNIST digits, and classifiers trained on the result.

The generator ships with the toolkit.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pe.data.arrays import Int32Array
from pe.data.images import Images
from pe.data.population import NO_PARENT, Population
from pe.data.samples import Conditions
from pe.engine.execution import RunContext, run_recipe, summary
from pe.engine.health import DISTRIBUTION
from pe.evaluation.controls import make_unevolved, one_vote_run
from pe.evaluation.sets import ONE_VOTE, REAL, SYNTHETIC_DATA, UNEVOLVED
from pe.fit.trainer import load_model
from pe.judgement.classifiers import CLASSIFIERS, accuracy, side_by_side
from pe.planning.parts import build_embedding, build_generator
from pe.planning.releases import plan_of
from pe.plugins.registry import require_extras
from pe.private.npz import DIGITS, MnistSample
from pe.recipe.schema import Recipe
from pe.report.pictures import contact_sheet
from pe.store.run import Run

Digits = tuple[Images, Int32Array]
"""Images and their labels."""

RECIPES = {
    name: Path(__file__).parent / "recipes" / f"{name}.yaml" for name in ("glyphs", "diffusion")
}
"""The demo's recipes by their generator: drawn text (glyphs), or a small diffusion model."""

QUICK = ("glyphs",)
"""The generators with which the demo also makes the control by one vote, because that takes only
seconds."""


def run_demo(
    api: str = "glyphs",
    *,
    epsilon: float | None = None,
    seed: int | None = None,
    out: Path | None = None,
    context: RunContext,
) -> dict[str, Any]:
    """Run the demo's recipe and measure what its data is good for.

    Args:
        api: one of RECIPES.
        epsilon: target ε; None: the recipe's.
        seed: of everything but the noise; None: the recipe's.
        out: the run's directory; must not exist. Default: a new one below `runs/`.
        context: progress, and the signal to stop.

    Returns:
        The values of `summary`, with accuracy (by classifier, then by training set), seconds, and
        the path of the picture that has a row of digits for each training set. The picture shows
        private digits, so it lies in confidential/.

    Raises:
        MissingDependency: a library that any step of the demo needs is not installed; nothing is
            written.
    """
    # Checked first: a library that only the last step needs would else be missed after minutes.
    require_extras(DISTRIBUTION, ["demo"], "The demo")
    start = time.monotonic()
    changes = {"privacy.epsilon": epsilon, "seed": seed}
    recipe = Recipe.load(
        RECIPES[api],
        tuple(f"{key}={value}" for key, value in changes.items() if value is not None),
    )
    run = run_recipe(recipe, out, context)
    training_sets = _training_sets(run, recipe, one_vote=api in QUICK, context=context)
    picture = run.confidential / "demo.png"
    picture.write_bytes(_picture(training_sets))
    accuracy = _accuracy(training_sets, recipe.seed, context)
    seconds = round(time.monotonic() - start, 1)
    return summary(run) | {"accuracy": accuracy, "seconds": seconds, "picture": str(picture)}


def _training_sets(
    run: Run,
    recipe: Recipe,
    one_vote: bool,
    context: RunContext,
) -> dict[str, Digits]:
    """Return the synthetic digits, their controls and the private digits, by the set's name."""
    synthetic = run.synthetic
    assert isinstance(synthetic.samples, Images)
    api = build_generator(recipe)
    load_model(api, run.folder)
    training_sets = {
        SYNTHETIC_DATA: (synthetic.samples, synthetic.labels),
        UNEVOLVED: (
            make_unevolved(api, synthetic.labels, DIGITS, recipe.seed).images,
            synthetic.labels,
        ),
    }
    # This control embeds and searches anew for each iteration, too slowly for a diffusion model.
    if one_vote:
        plan = plan_of(run, recipe)
        dataset = recipe.private.open()
        embedding = build_embedding(recipe)
        control = one_vote_run(run, recipe, plan, api, run.populations(), dataset, embedding)
        vote = control.result(context.progress, context.stop)
        assert isinstance(vote.samples, Images)
        training_sets[ONE_VOTE] = vote.samples, vote.labels
    return training_sets | {REAL: _digits("private")}


def _picture(sets: dict[str, Digits]) -> bytes:
    """Return a PNG file with a row for each kind of digits and a column for each label."""
    rows = {"private": REAL, "un-evolved": UNEVOLVED, "evolved": SYNTHETIC_DATA}
    populations = [
        Population(images, labels, Conditions(), np.full(len(labels), NO_PARENT))
        for images, labels in (sets[name] for name in rows.values())
    ]
    return contact_sheet(populations, DIGITS, list(rows))


def _accuracy(
    sets: dict[str, Digits],
    seed: int,
    context: RunContext,
) -> dict[str, dict[str, float]]:
    """Return the accuracy on held-out real digits, by classifier, then by training set."""
    test, test_labels = _digits("test")
    scores: dict[str, dict[str, float]] = {name: {} for name in CLASSIFIERS}
    jobs = [(classifier, name) for name in sets for classifier in CLASSIFIERS]

    def train(job: tuple[str, str]) -> float:
        return accuracy(job[0], *sets[job[1]], test, test_labels, seed)

    with (
        context.progress.task("training classifiers", len(jobs)) as task,
        side_by_side(train, jobs, "demo") as results,
    ):
        for (classifier, name), score in zip(jobs, results, strict=True):
            scores[classifier][name] = round(score, 4)
            task.advance(1)
    return scores


def _digits(split: Literal["private", "test"]) -> Digits:
    """Return all images of a split, in one block, and their labels. Public."""
    dataset = MnistSample(split=split).open()
    images, _ = next(dataset.blocks(len(dataset)))
    assert isinstance(images, Images)
    return images, dataset.labels
