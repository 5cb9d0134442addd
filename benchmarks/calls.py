"""The frontier of accuracy against API images: the demo's digits at ε = 1, with fewer and more images.

    python benchmarks/calls.py [--runs N]

Private digits, ε = 1, δ = 1e-5, the demo's recipe but for what a cell names; each run has fresh noise and its own seed.
Beside each frontier stands what one vote makes of as many images, taken as they are, and what the planner's own choice
makes of a limit. Cells that were measured are kept
in results/calls.jsonl. Writes results/calls.md and docs/images/calls.png.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
from record import RESULTS, keep, where

from pe.data.images import Images
from pe.engine.demo.digits import RECIPES
from pe.engine.execution import Surroundings, run_recipe
from pe.evaluation.controls import one_vote_run
from pe.evaluation.utility import accuracies
from pe.planning.build import build_embedding, build_generator
from pe.planning.layout import plan_of
from pe.private.npz import MnistSample
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.store.writer import read_journal

KEPT = RESULTS / "calls.jsonl"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "calls.png"
CLASSIFIERS = {"logistic_regression": "logistic regression", "mlp": "MLP"}

NONE, WINNERS, ONCE = "nothing is kept (the paper's rule)", "winners are kept", "one vote, nothing varied"
AUTO, LIMITS = "`evolution: auto` under a limit", (1000, 2500, 5000)
DEMO = [4000, 4000, 4000, 4000, 10000]
FRONTIER: dict[str, list[list[int]]] = {
    NONE: [[500, 500, 500, 1000], [1000, 1000, 1000, 2000], [1500, 1500, 1500, 3500], [2500, 2500, 3000, 7000], DEMO],
    WINNERS: [
        [500, 750, 1000, 2000],
        [1000, 1500, 2000, 4000],
        [1600, 2400, 3200, 6400],
        [2700, 3300, 3900, 4500, 9000],
        [4500, 5500, 6500, 7500, 15000],
    ],
}
"""S_0 … S_T of each point. The proportions, and the thresholds of 1.5σ and, for winners, 1σ, were chosen on drawn
digits (results/choice.md)."""

LOOKAHEAD = {
    "k = 4, plain": {"lookahead": 4},
    "k = 4, reused": {"lookahead": 4, "reuse_lookahead": True},
    "k = 1 → 4, reused": {"lookahead": [1, 2, 3, 4], "reuse_lookahead": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    cells: list[tuple[str, dict[str, Any]]]
    cells = [(rule, {"population": sizes}) for rule, points in FRONTIER.items() for sizes in points]
    cells += [(name, {"population": DEMO} | changes) for name, changes in LOOKAHEAD.items()]
    cells += [(AUTO, {"max_images": limit}) for limit in LIMITS]
    for seed in range(arguments.runs):
        for rule, evolution in cells:
            measure(rule, evolution, seed)
    keep("calls.md", page())
    plot()


def measure(rule: str, evolution: dict[str, Any], seed: int) -> None:
    """One run of a cell, unless it was measured; and for NONE its control."""
    if any((row["rule"], row["evolution"], row["seed"]) == (rule, evolution, seed) for row in rows()):
        return
    changes = given(rule, evolution) if rule != AUTO else auto(evolution["max_images"])
    recipe = Recipe.load(RECIPES["glyphs"], (*changes, f"seed={seed}"))
    with tempfile.TemporaryDirectory() as folder:
        run = run_recipe(recipe, Path(folder) / "run", Surroundings())
        with read_journal(run) as journal:
            spent = int(journal.totals().usage.images)
        note(rule, evolution, seed, spent, run.synthetic)
        if rule == NONE:
            api, dataset, embedding = build_generator(recipe), recipe.private.open(), build_embedding(recipe)
            control = one_vote_run(run, recipe, plan_of(run, recipe), api, run.populations(), dataset, embedding)
            note(ONCE, evolution, seed, control.images, control.result(Progress(), Event()))


def given(rule: str, evolution: dict[str, Any]) -> list[str]:
    """The changes to the demo's recipe that make it a cell's."""
    iterations = len(evolution["population"]) - 1
    whole = evolution | {
        "iterations": iterations,
        "degree": [0.5, 0.45, 0.4, 0.4][:iterations],
        "keep": "winners" if rule == WINNERS else "none",
        "threshold_sigmas": 1.0 if rule == WINNERS else 1.5,
    }
    changes = [f"evolution.{key}={json.dumps(value)}" for key, value in whole.items()]
    return [*changes, f"privacy.schedule={json.dumps([1.5**t for t in range(iterations)])}"]


def auto(limit: int) -> list[str]:
    """The changes that leave the evolution, and the budget's shares, to the planner, under a limit on images."""
    return ["evolution=auto", "privacy.schedule=null", f"limits.max_images={limit}"]


def note(rule: str, evolution: dict[str, Any], seed: int, spent: int, made: Any) -> None:
    """Keep images asked for, and accuracy on 1,000 held-out digits."""
    test = MnistSample(split="test").open()
    images, _ = next(test.blocks(len(test)))
    assert isinstance(made.samples, Images)
    scores = accuracies(made.samples, np.asarray(made.labels), images, test.labels, seed)
    row = {"rule": rule, "evolution": evolution, "seed": seed, "images": spent, "final": len(made), **scores}
    row["where"] = where()
    print(json.dumps(row, ensure_ascii=False), flush=True)
    with KEPT.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()] if KEPT.exists() else []


def cells() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The runs of each cell, by rule and evolution, in the order of their images."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in sorted(rows(), key=lambda row: row["images"]):
        found.setdefault((row["rule"], json.dumps(row["evolution"])), []).append(row)
    return found


def page() -> str:
    lines = [
        "# Accuracy of the demo against API images spent",
        "",
        f"{rows()[-1]['where']}. ε = 1, δ = 1e-5, 4,000 private digits, 1,000 test digits; mean ± standard deviation",
        f"of {max(map(len, cells().values()))} runs. `python benchmarks/calls.py`",
        "",
        "![Accuracy against API images](../../docs/images/calls.png)",
    ]
    lookahead = [rule for rule, _ in cells() if rule in LOOKAHEAD]
    for title, rules in (("Frontier", (NONE, WINNERS, ONCE, AUTO)), ("Lookahead, the demo's populations", lookahead)):
        lines += ["", f"## {title}", "", "| rule | S_0 … S_T | API images | in the end | LR | MLP |"]
        lines += ["| --- | --- | --: | --: | --- | --- |"]
        for (rule, evolution), runs in sorted(cells().items(), key=lambda item: item[0][0]):
            if rule in rules:
                settings = json.loads(evolution)
                sizes = f"max_images: {settings['max_images']:,}" if rule == AUTO else settings["population"]
                sizes = "one vote" if rule == ONCE else sizes
                figures = [spread([run[name] for run in runs]) for name in CLASSIFIERS]
                counts = [f"{statistics.mean(run[name] for run in runs):,.0f}" for name in ("images", "final")]
                lines.append(f"| {rule} | {sizes} | {' | '.join([*counts, *figures])} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values) if len(values) > 1 else 0:.3f}"


def plot() -> None:
    """A panel for each classifier, a line for each rule."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 3.2), dpi=150, layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, 2), CLASSIFIERS.items(), strict=True):
        for rule in (WINNERS, NONE, ONCE, AUTO):
            runs = [found for (of, _), found in cells().items() if of == rule]
            images = [statistics.mean(run["images"] for run in found) for found in runs]
            means = [statistics.mean(run[name] for run in found) for found in runs]
            ends = [
                [mean - min(run[name] for run in found) for mean, found in zip(means, runs, strict=True)],
                [max(run[name] for run in found) - mean for mean, found in zip(means, runs, strict=True)],
            ]
            axes.errorbar(images, means, yerr=ends, marker="o", markersize=4, capsize=2, linewidth=1, label=rule)
        axes.set(title=title, xscale="log", xlabel="API images", ylabel="accuracy on real digits")
        axes.set_xticks([2500, 5000, 10000, 26000], ["2,500", "5,000", "10,000", "26,000"], minor=False)
        axes.minorticks_off()
        axes.grid(color="0.93")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    FigureCanvasAgg(figure).print_figure(PICTURE)


if __name__ == "__main__":
    main()
