"""Measure what `pe evaluate` takes, and how often its interval holds the truth.

    python benchmarks/evaluation.py                           # time and memory: a few minutes
    python benchmarks/evaluation.py --coverage [--runs N]     # the interval: about ten minutes

Each writes its part of results/evaluation.md.

The first evaluates the run of `pe demo`, and runs over made-up colour images of 64×64, with all
defaults and on two threads.

The second measures the 80 % interval of `train` over several recipes. Each draw is a run of its own
with fresh noise and 1,000 test digits of its own, and the interval includes the spread between
runs. The truth is the place of the recipe: the mean of its runs, on all test digits.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from record import keep, timed, where
from repeats import DELTA, repeated

from pe.evaluation.evaluate import METRICS_FILE
from pe.judgement.judge import PRIVATE
from pe.judgement.scale import LEVEL, Guesses, Scale, between_runs

PE = Path(sys.executable).with_name("pe")
DEMO = Path(__file__).parents[1] / "pe" / "engine" / "recipes" / "glyphs.yaml"
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "2")
EMBEDDINGS = ("pixels", "efficientnet_lite")
SIDE = 64
SIZES = {"private": 1500, "test": 300, "pool": 4500}

RECIPES = tuple(
    (records, *more)
    for records in (300, 1000)
    for more in ((2, 0.5), (2, 1.0), (10, 1.0), (10, 4.0))
)
"""Records, labels and ε of each recipe. At 10 of 10 an interval would always hold the truth, so
these have less."""
TESTED = 1000


def make_images(path: Path, seed: int, count: int) -> None:
    """Write colour images of ten classes: a pattern for each class, and noise."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 10
    coarse = np.random.default_rng(99).uniform(60, 190, (10, 4, 4, 3))
    patterns = coarse.repeat(SIDE // 4, 1).repeat(SIDE // 4, 2)
    noise = rng.normal(0, 25, (count, SIDE, SIDE, 3)) + rng.normal(0, 20, (count, 1, 1, 3))
    images = np.clip(patterns[labels] + noise, 0, 255).astype(np.uint8)
    np.savez(path, images=images, labels=labels)


def colour_recipe(folder: Path, embedding: str) -> Path:
    """Write a recipe over made-up images, and return its path."""
    recipe: dict[str, Any] = {
        "private": {
            "kind": "npz",
            "path": str(folder / "private.npz"),
            "size": SIDE,
            "classes": list("0123456789"),
        },
        "api": {"kind": "public_images", "path": str(folder / "pool.npz")},
        "embedding": {"kind": embedding},
        "privacy": {"epsilon": 5, "delta": DELTA},
        "evolution": {
            "iterations": 3,
            "population": 1900,
            "degree": [0.3, 0.1, 0.03],
            "lookahead": 0,
        },
    }
    path = folder / f"{embedding}.yaml"
    path.write_text(json.dumps(recipe), encoding="utf-8")
    return path


def measure(what: str, recipe: Path, test: str, out: Path) -> tuple[str, dict[str, Any]]:
    """Run a recipe and evaluate the run: return a row of the table, and the evaluation."""
    environment = os.environ | THREADS
    timed([PE, "run", recipe, "--out", out, "--quiet"], environment)
    spent = timed([PE, "evaluate", out, "--test", test, "--quiet"], environment)
    row = (
        f"| {what} | {spent['seconds']:.0f} | {spent['cpu']:.0f} | {spent['gigabytes']:.2f} | "
        f"{os.getloadavg()[0]:.1f} |"
    )
    print(row, flush=True)
    return row, json.loads((out / METRICS_FILE).read_text(encoding="utf-8"))


def write_cost() -> None:
    """Measure time and memory."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        demo, values = measure(
            "the run of `pe demo`, 1,000 test digits", DEMO, "mnist", folder / "demo"
        )
        rows = [demo]
        for seed, (name, count) in enumerate(SIZES.items()):
            make_images(folder / f"{name}.npz", seed, count)
        for embedding in EMBEDDINGS:
            recipe = colour_recipe(folder, embedding)
            what = f"1,900 images of 64×64×3, 1,500 private, 300 test, `{embedding}`"
            rows.append(measure(what, recipe, str(folder / "test.npz"), folder / embedding)[0])
    sentences = [f"- {name}: {sentence}" for name, sentence in values["judgement"]["lines"]]
    lines = [
        "## Time and memory",
        "",
        f"`pe evaluate` with its defaults, on two threads without a GPU. {where()}. Where the load "
        "is above 2, other work shared the cores. `python benchmarks/evaluation.py`",
        "",
        "| what | seconds | CPU seconds | GB | load |",
        "|---|--:|--:|--:|--:|",
        *rows,
        "",
        "It says of the run of `pe demo` (ε = 1):",
        "",
        *sentences,
    ]
    keep("evaluation.md", "\n".join(lines))


def covered(records: int, labels: int, epsilon: float, runs: int) -> tuple[float, int, float]:
    """Return the true score of a recipe, the intervals that hold it, and their mean width."""
    found, every = repeated(records, labels, epsilon, runs)
    private = found.pop(PRIVATE)
    scale = Scale.of(labels, every, private, 0)
    mean = np.mean([scale.place(one)[0].value for one in found.values()])
    truth = float(scale.score(np.array([mean]))[0])
    rng = np.random.default_rng(0)
    deviation = between_runs(records, labels, epsilon)
    places = []
    for one in found.values():
        rows = rng.choice(len(every), TESTED)
        tested = Scale.of(labels, every[rows], on_rows(private, rows), len(places))
        places.append(tested.place(on_rows(one, rows), deviation)[0])
    held = sum(one.low <= truth <= one.high for one in places)
    return truth, held, float(np.mean([one.high - one.low for one in places]))


def on_rows(found: Guesses, rows: np.ndarray) -> Mapping[str, list[np.ndarray]]:
    """Return the predictions for some of the test records."""
    return {name: [one[rows] for one in logits] for name, logits in found.items()}


def write_coverage(runs: int) -> None:
    """Measure how often the interval of `train` holds the truth."""
    rows = []
    total = 0
    for recipe in RECIPES:
        truth, held, width = covered(*recipe, runs)
        total += held
        records, labels, epsilon = recipe
        rows.append(
            f"| {records:,} | {labels} | {epsilon:g} | {truth:.1f} | {width:.1f} | "
            f"{held} of {runs} |"
        )
        print(rows[-1], flush=True)
    draws = len(RECIPES) * runs
    lines = [
        "## The interval of train",
        "",
        f"The {100 * LEVEL:g} % interval held the truth in **{total} of {draws} draws "
        f"({100 * total / draws:.0f} %)**. Each draw is a run of its own with fresh noise and "
        f"{TESTED:,} test records of its own; the interval includes the spread between runs. The "
        "truth is the place of the recipe: the mean of its runs, on 9,925 test records. The digits "
        "are variants of scikit-learn's, of 8×8, and the generator is a pool without labels. Two "
        "labels are even and odd. The learners are the linear ones of the panel, without the "
        f"network. δ = {DELTA:g}. {where()}. `python benchmarks/evaluation.py --coverage`",
        "",
        "| records | labels | ε | true score | mean width | held |",
        "|--:|--:|--:|--:|--:|--:|",
        *rows,
    ]
    keep("evaluation.md", "\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--coverage", action="store_true", help="measure the interval, not the cost"
    )
    parser.add_argument("--runs", type=int, default=25, help="of each recipe, for --coverage")
    arguments = parser.parse_args()
    if arguments.coverage:
        write_coverage(arguments.runs)
    else:
        write_cost()


if __name__ == "__main__":
    main()
