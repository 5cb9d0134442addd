"""What fewer API images cost in accuracy: the demo with and without reused lookahead, and with schedules.

    python benchmarks/calls.py [--seeds N]

Private digits, ε = 1, δ = 1e-5, the demo's recipe but for what a row names. Each seed is a run with fresh noise.
Writes results/calls.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
from record import keep, where

from pe.engine.demo.digits import RECIPES
from pe.engine.execution import Surroundings
from pe.engine.start import run_recipe
from pe.evaluation.utility import accuracies
from pe.private.mnist import MnistSample
from pe.recipe.schema import Recipe
from pe.store.writer import read_journal

WHOLE = "evolution.population=[4000, 4000, 4000, 4000, 10000]"
SMALL = "evolution.population=[1000, 2000, 4000, 4000, 10000]"
REUSE = "evolution.reuse_lookahead=true"
VARIANTS: dict[str, tuple[str, ...]] = {
    "k = 0, the demo as it is": (WHOLE,),
    "k = 4, plain": (WHOLE, "evolution.lookahead=4"),
    "k = 4, reused": (WHOLE, "evolution.lookahead=4", REUSE),
    "k = 4 → 1, plain": (WHOLE, "evolution.lookahead=[4, 3, 2, 1]"),
    "k = 4 → 1, reused": (WHOLE, "evolution.lookahead=[4, 3, 2, 1]", REUSE),
    "k = 1 → 4, reused": (WHOLE, "evolution.lookahead=[1, 2, 3, 4]", REUSE),
    "growing population, k = 4, plain": (SMALL, "evolution.lookahead=4"),
    "growing population, k = 4, reused": (SMALL, "evolution.lookahead=4", REUSE),
    "growing population, k = 0": (SMALL,),
}


def measure(changes: tuple[str, ...], seed: int) -> dict[str, float]:
    """Images asked for, and accuracy on 1,000 held-out digits, of one run."""
    recipe = Recipe.load(RECIPES["glyphs"], (*changes, f"seed={seed}"))
    test = MnistSample(split="test").open()
    images, _ = next(test.blocks(len(test)))
    with tempfile.TemporaryDirectory() as folder:
        run = run_recipe(recipe, Path(folder) / "run", Surroundings())
        synthetic = run.synthetic
        with read_journal(run) as journal:
            spent = float(journal.totals().usage.images)
        scores = accuracies(synthetic.samples, np.asarray(synthetic.labels), images, test.labels, seed)
    return {"images": spent} | scores


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def row(name: str, results: list[dict[str, float]]) -> str:
    images = statistics.mean(result["images"] for result in results)
    cells = [spread([result[key] for result in results]) for key in ("logistic_regression", "mlp")]
    return f"| {name} | {images:,.0f} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    rows = []
    for name, changes in VARIANTS.items():
        rows.append(row(name, [measure(changes, seed) for seed in range(arguments.seeds)]))
        print(rows[-1], flush=True)
    keep(
        "calls.md",
        "\n".join(
            [
                "# Accuracy of the demo against API images spent",
                "",
                f"{where()}. ε = 1, δ = 1e-5; mean ± standard deviation of {arguments.seeds} seeds. "
                "`python benchmarks/calls.py`",
                "",
                "| evolution | API images | logistic regression | MLP |",
                "| --- | ---: | ---: | ---: |",
                *rows,
            ]
        ),
    )


if __name__ == "__main__":
    main()
