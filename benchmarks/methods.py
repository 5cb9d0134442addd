"""Private Evolution and every method that trains, side by side: the same private and public images,
the same (ε, δ).

    python benchmarks/methods.py [--methods NAME …] [--epsilon E …] [--runs N]
    python benchmarks/methods.py --page                     # the page of what was measured

Private: the demo's 4,000 MNIST digits at 14×14. Public: drawn characters of 62 kinds in printed
fonts. methods.yaml has the methods and their settings. Each cell is one `pe run` in a process of
its own; a cell that is in results/methods.jsonl, with the same recipe, is not run again. At ε = 1e6
there is hardly any noise: it shows what a method could be worth. Writes results/methods.md.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a cell's seconds are of one core

import argparse
import hashlib
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import yaml
from record import RESULTS, keep, where

from adapters.glyphs import Glyphs
from embeddings.pixels import Pixels
from pe.evaluation.classifiers import Classifier
from pe.evaluation.controls import make_unevolved, one_vote_run
from pe.evaluation.features import CachedEmbedding
from pe.evaluation.fidelity import features, frechet_distance
from pe.evaluation.labelled import Labelled, NetworkSettings, label_samples
from pe.evaluation.sets import read_real
from pe.evaluation.utility import ClassifierTrial, utility
from pe.planning.parts import build_embedding
from pe.planning.releases import plan_of
from pe.private.npz import MnistSample
from pe.progress import Progress, Task
from pe.recipe.schema import Recipe
from pe.store.places import FULL_RECIPE
from pe.store.run import Run

PE = Path(sys.executable).with_name("pe")
CELLS = RESULTS / "methods.jsonl"
METHODS: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)
LABELS = {
    "real": "as many of the private digits (not DP)",
    "drawn": "as many drawn digits (no private data)",
}
LABELS |= {name: method["label"] for name, method in METHODS.items()}
CLASSIFIERS = {"logistic_regression": "LR", "mlp": "MLP", "resnet9": "ResNet-9"}
DIGITS, SIDE, SAMPLES, TESTED, EPOCHS = tuple("0123456789"), 14, 2000, 1000, 5
HARDLY_ANY_NOISE = 1e6


def recipe_of(method: str, epsilon: float, run: int) -> dict[str, Any]:
    """The recipe of one cell."""
    api = METHODS[method].get("api") or METHODS[method][f"api at ε = {min(epsilon, 10):g}"]
    evolution: dict[str, Any] = {"iterations": 0, "population": SAMPLES}
    privacy: dict[str, Any] = {"epsilon": epsilon, "delta": 1e-5}
    steps = {"iterations": 4, "degree": [0.5, 0.45, 0.4, 0.4], "lookahead": 0}
    if method.endswith("+pe"):
        evolution = steps | {"population": [SAMPLES] * 5, "neighbors": 32, "threshold_sigmas": 1.5}
    elif method in ("pe", "one_vote"):
        growing, neighbors = (
            ([2750, 3300, 3850, 4400], 2) if epsilon >= 4 else ([2500, 3000, 3500, 4000], 16)
        )
        evolution = steps | {
            "population": [*growing, SAMPLES],
            "keep": "winners",
            "neighbors": neighbors,
        }
        evolution |= {"threshold_sigmas": 1.0}
        privacy |= {"schedule": [1.5**t for t in range(4)]} if epsilon < 4 else {}
    shape = {
        "size": SIDE,
        "resize": "stretch",
        "channels": 1,
        "classes": list(DIGITS),
        "declared_size": 4000,
    }
    return {
        "name": method.replace("+", "-"),
        "seed": run,
        "private": {"kind": "mnist", **shape},
        "api": api,
        "embedding": {"kind": "pixels", "size": SIDE, "blur": 0.8 * SIDE / 28},
        "privacy": privacy,
        "evolution": evolution,
    }


def run_recipe(recipe: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run `pe run`; its seconds to fit, seconds for the rest, and the process's peak memory."""
    path, run = folder / "recipe.yaml", folder / "run"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    start, peak, fit = time.time(), 0, 0.0
    process = subprocess.Popen(
        [PE, "run", path, "--out", run, "--quiet"], stdout=subprocess.DEVNULL
    )
    while process.poll() is None:
        peak = max(peak, peak_memory(process.pid))
        fit = fit or (time.time() - start if (run / "model").is_dir() else 0.0)
        time.sleep(0.2)
    if process.returncode:
        raise SystemExit(f"pe run ended with status {process.returncode} on {recipe}")
    return {
        "fit_seconds": round(fit, 1),
        "sample_seconds": round(time.time() - start - fit, 1),
        "peak_gb": round(peak / 2**20, 2),
    }


def peak_memory(pid: int) -> int:
    """The most resident memory that a process had, kB; 0 once it is over."""
    try:
        line = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(line[1]) if line else 0


def digits(split: Any) -> Labelled:
    """The private or the test digits, with their labels."""
    source = MnistSample(split=split, size=SIDE, resize="stretch", channels=1, classes=DIGITS)
    return read_real(source, split, DIGITS).content


def worth(train: Labelled, seed: int) -> dict[str, Any]:
    """A training set's accuracies on the test digits, and its Fréchet distance from the private
    ones.
    """
    private, test = digits("private"), digits("test")
    settings = NetworkSettings(epochs=EPOCHS)
    trials = [
        ClassifierTrial(name, Classifier(name, settings), {"set": train}, test)
        for name in CLASSIFIERS
    ]
    scores = utility(trials, len(DIGITS), [seed], Progress())
    pixels = CachedEmbedding("pixels", Pixels(size=SIDE, blur=0))
    one, other = (
        features(images, pixels, 0, Task()).moments for images in (train.images, private.images)
    )
    return {
        "accuracy": {
            name: round(float(scores[name]["set"].accuracy[0]), 4) for name in CLASSIFIERS
        },
        "frechet": round(frechet_distance(one, other), 3),
    }


def cell(method: str, epsilon: float, run: int) -> dict[str, Any]:
    """One method at one ε, once; `drawn` and `real` cost no ε."""
    if method == "real":
        private = digits("private")
        rows = np.random.default_rng(run).permutation(len(private.labels))[:SAMPLES]
        return worth(Labelled(private.images.take(rows), private.labels[rows]), run)
    if method == "drawn":
        labels = np.arange(SAMPLES, dtype=np.int32) % len(DIGITS)
        return worth(
            Labelled(make_unevolved(Glyphs(size=SIDE), labels, DIGITS, run).images, labels), run
        )
    with tempfile.TemporaryDirectory() as folder:
        figures = run_recipe(recipe_of(method, epsilon, run), Path(folder))
        place = Path(folder) / "run"
        synthetic = one_vote(place) if method == "one_vote" else Run.open(place).synthetic
    return figures | worth(
        label_samples(synthetic.samples, synthetic.labels, synthetic.conditions), run
    )


def one_vote(folder: Path) -> Any:
    """The control of a PE run: as many samples, chosen by one vote and not varied."""
    run, recipe = Run.open(folder), Recipe.load(folder / FULL_RECIPE)
    dataset, embedding, plan = recipe.private.open(), build_embedding(recipe), plan_of(run, recipe)
    control = one_vote_run(
        run, recipe, plan, Glyphs(size=SIDE), run.populations(), dataset, embedding
    )
    return control.result(Progress(), Event())


def key_of(method: str, epsilon: float, run: int) -> str:
    """A cell's name: another recipe is another cell."""
    content = recipe_of(method, epsilon, run) if method in METHODS else [SAMPLES, EPOCHS]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    return f"{method} {epsilon:g} {run} {digest}"


def cells() -> dict[str, dict[str, Any]]:
    """Return the cells that were measured, by key."""
    lines = CELLS.read_text(encoding="utf-8").splitlines() if CELLS.exists() else []
    return {each["key"]: each for each in map(json.loads, lines)}


def write_page() -> None:
    """Write results/methods.md: mean ± standard deviation of each method at each ε."""
    groups: dict[tuple[float, int], list[dict[str, Any]]] = {}
    for each in cells().values():
        groups.setdefault((each["epsilon"], list(LABELS).index(each["method"])), []).append(each)
    dates = sorted({each["where"].partition(";")[0] for each in cells().values()})
    last = next(reversed(cells().values()))["where"].partition(";")[2]
    lines = [
        "# PE and the methods that train, on the same digits",
        "",
        f"Accuracy on {TESTED:,} held-out MNIST digits of classifiers trained on the samples "
        "alone; Fréchet distance of pixels from the private digits; mean ± standard deviation over "
        f"runs with fresh noise and over test sets. δ = 1e-5. Seconds are of one core. {dates[0]} "
        f"to {dates[-1]};{last}. `python benchmarks/methods.py`",
        "",
        "At ε = 10⁶ there is hardly any noise, and all else is as at ε = 10: what the method could "
        "be worth.",
        "",
        f"| ε | method | {' | '.join(CLASSIFIERS.values())} | Fréchet | fit, s | sample, s | peak, "
        "GB | runs |",
        f"| ---: | --- |{' ---: |' * (len(CLASSIFIERS) + 5)}",
        *(
            row(epsilon, list(LABELS.values())[i], runs)
            for (epsilon, i), runs in sorted(groups.items())
        ),
    ]
    keep("methods.md", "\n".join(lines))


def row(epsilon: float, label: str, runs: list[dict[str, Any]]) -> str:
    """One line of the page."""
    columns = [
        interval([run["accuracy"][name] for run in runs if name in run["accuracy"]])
        for name in CLASSIFIERS
    ]
    columns.append(f"{statistics.mean(run['frechet'] for run in runs):.2f}")
    for name, places in (("fit_seconds", 0), ("sample_seconds", 0), ("peak_gb", 1)):
        values = [run[name] for run in runs if name in run]
        columns.append(f"{statistics.mean(values):.{places}f}" if values else "–")
    shown = "10⁶" if epsilon == HARDLY_ANY_NOISE else f"{epsilon:g}" if epsilon else "–"
    return f"| {shown} | {label} | {' | '.join(columns)} | {len(runs)} |"


def interval(accuracies: list[float]) -> str:
    """Mean ± the standard deviation over runs and over test sets of TESTED digits."""
    if not accuracies:
        return "–"
    mean, between = (
        statistics.mean(accuracies),
        statistics.variance(accuracies) if len(accuracies) > 1 else 0.0,
    )
    return f"{mean:.3f} ± {math.sqrt(between + mean * (1 - mean) / TESTED):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", choices=LABELS, default=list(LABELS))
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--page", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    for run in range(0 if arguments.page else arguments.runs):
        for method in arguments.methods:
            for epsilon in arguments.epsilon if method in METHODS else [0.0]:
                key = key_of(method, epsilon, run)
                if key in cells():
                    continue
                named = {
                    "key": key,
                    "method": method,
                    "epsilon": epsilon,
                    "run": run,
                    "where": where(),
                }
                line = json.dumps(named | cell(method, epsilon, run))
                print(line, flush=True)
                with CELLS.open("a", encoding="utf-8") as lines:
                    lines.write(line + "\n")
    write_page()


if __name__ == "__main__":
    main()
