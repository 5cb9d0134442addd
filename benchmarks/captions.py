"""Captions that are drawn: do votes on drawings move captions to what the private images show?

    python benchmarks/captions.py [--runs N]

4,000 private digits of MNIST, ε = 1, and 810 public captions without labels, such as `a small thin "7"`, which the
glyph simulator draws. Writes results/captions.md.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported

import argparse
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from record import keep, where

from adapters.glyphs import read_quote
from pe.data.population import Population
from pe.engine.execution import Surroundings, run_recipe
from pe.evaluation.utility import accuracies
from pe.private.npz import MnistSample
from pe.recipe.schema import Recipe
from pe.store.run import Run

WAYS = (("", "small ", "large "), ("", "narrow ", "wide "), ("", "thin ", "bold "), ("", "backward ", "italic "))
POOL = [f'a {"".join(way)}"{digit}"' for digit in range(10) for way in product(*WAYS)]
EVOLUTION = {"iterations": 4, "population": 2000, "degree": [0.05, 0.05, 0.02, 0.02], "threshold_sigmas": 1.5}
SIZES = {"iterations": 0, "population": 2000}


def carry_out(api: dict[str, Any], evolution: dict[str, Any], run: int, folder: Path) -> Run:
    content = {
        "seed": run,
        "private": {"kind": "mnist", "declared_size": 4000},
        "api": api,
        "embedding": {"kind": "pixels", "blur": 0.8},
        "privacy": {"epsilon": 1, "delta": 1e-5},
        "evolution": evolution,
    }
    return run_recipe(Recipe.parse(content, "the benchmark"), folder, Surroundings())


def share(population: Population) -> float:
    """Of samples whose caption quotes their label."""
    pairs = zip(population.conditions["caption"], population.labels, strict=True)
    return float(np.mean([read_quote(str(caption)) == str(label) for caption, label in pairs]))


def scores(population: Population, run: int) -> list[float]:
    """Accuracy on 1,000 held-out digits, in percent, of two classifiers that were trained on it."""
    test = MnistSample(split="test").open()
    images, _ = next(test.blocks(len(test)))
    found = accuracies(population.samples, np.asarray(population.labels), images, test.labels, run)
    return [100 * found[name] for name in ("logistic_regression", "mlp")]


def measured(run: int, folder: Path) -> tuple[list[float], list[list[float]]]:
    """Of one run: the share in S_0 … S_T, in percent; and accuracies of S_0, of S_T and of drawings of the labels."""
    (folder / "captions.txt").write_text("\n".join(POOL) + "\n")
    captions = {"kind": "public_texts", "path": str(folder / "captions.txt")}
    api = {"kind": "caption_then_draw", "captions": captions, "draw": {"kind": "glyphs"}}
    populations = carry_out(api, EVOLUTION, run, folder / "evolved").populations()
    right = carry_out({"kind": "glyphs", "prompts": 'a "{label}"'}, SIZES, run, folder / "right").synthetic
    return [100 * share(one) for one in populations], [
        scores(one, run) for one in (*populations[:: len(populations) - 1], right)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    found = []
    for run in range(parser.parse_args().runs):
        with tempfile.TemporaryDirectory() as folder:
            found.append(measured(run, Path(folder)))
    shares, scored = np.array([each for each, _ in found]), np.array([each for _, each in found])
    names = ("captions as dealt out, S_0", "evolved by votes, S_4", "captions of the right label, un-evolved")
    lines = [
        "# Captions that are drawn",
        "",
        f"{where()}. 4,000 private digits of MNIST, ε = 1, δ = 1e-5; {len(POOL)} public captions without labels, drawn "
        f"by the glyph simulator; mean ± standard deviation of {len(found)} runs. `python benchmarks/captions.py`",
        "",
        "Share of samples whose caption quotes their label (by chance 10 %):",
        "",
        f"| {' | '.join(f'S{t}' for t in range(shares.shape[1]))} |",
        f"|{' ---: |' * shares.shape[1]}",
        f"| {' | '.join(f'{one.mean():.0f} ± {one.std(ddof=1):.0f} %' for one in shares.T)} |",
        "",
        "Accuracy on 1,000 held-out digits of classifiers that were trained on 2,000 samples:",
        "",
        "| samples | logistic regression | MLP |",
        "| --- | ---: | ---: |",
        *(
            f"| {name} | {' | '.join(f'{one.mean():.0f} ± {one.std(ddof=1):.0f} %' for one in each.T)} |"
            for name, each in zip(names, scored.transpose(1, 0, 2), strict=True)
        ),
        "",
        "The settings were chosen by a few runs over these same digits.",
    ]
    keep("captions.md", "\n".join(lines))


if __name__ == "__main__":
    main()
