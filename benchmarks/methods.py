"""Judge Private Evolution and every method that trains, on the same images and (ε, δ).

    python benchmarks/methods.py [--methods NAME …] [--epsilon E …] [--runs N]
    python benchmarks/methods.py --page        # only write the page of what was measured

Private: the demo's 4,000 MNIST digits at 14×14. Public: drawn characters of 62 kinds in printed
fonts. methods.yaml has the methods and their settings. Each cell is one `pe run` in a process of
its own, judged as `pe evaluate` does, with the same control for all methods: drawn digits. A cell
that is in results/methods.jsonl with the same recipe is not run again. At ε = 1e6 there is hardly
any noise: it shows what a method could be worth. Writes results/methods.md.
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
from statistics import NormalDist
from threading import Event
from typing import Any

import numpy as np
import yaml
from record import RESULTS, keep, where
from sets import judged

from adapters.glyphs import Glyphs
from embeddings.pixels import Pixels
from pe.evaluation.controls import make_unevolved, one_vote_run
from pe.evaluation.sets import Notes, read_real
from pe.judgement.judge import SYNTHETIC
from pe.judgement.labelled import Labelled, label_samples
from pe.judgement.scale import LEVEL
from pe.planning.parts import build_embedding
from pe.planning.releases import plan_of
from pe.private.npz import MnistSample
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.store.places import FULL_RECIPE
from pe.store.run import Run

PE = Path(sys.executable).with_name("pe")
CELLS = RESULTS / "methods.jsonl"
METHODS: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)
LABELS = {
    "real": "2,000 of the private digits (not DP)",
    "drawn": "2,000 drawn digits (no private data)",
}
LABELS |= {name: method["label"] for name, method in METHODS.items()}
DIGITS = tuple("0123456789")
SIDE = 14
SAMPLES = 2000
HARDLY_ANY_NOISE = 1e6
DRAWN = "drawn"
COLUMNS = {
    "score": ("training, of 10", ".1f"),
    "brought": ("over drawn digits", "+.1f"),
    "accuracy": ("accuracy", ".3f"),
    "variety": ("variety, of 10", ".1f"),
    "coverage": ("covered", ".0%"),
    "fit_seconds": ("fit, s", ".0f"),
    "sample_seconds": ("sample, s", ".0f"),
    "peak_gb": ("peak, GB", ".1f"),
}
"""Value of a cell → heading and format of its column."""


def recipe_of(method: str, epsilon: float, run: int) -> dict[str, Any]:
    """Return the recipe of one cell."""
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
    """Run `pe run`. Return its seconds to fit, seconds for the rest, and peak memory."""
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
    """Return the most resident memory that a process had, in kB. 0 once it is over."""
    try:
        line = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(line[1]) if line else 0


def digits(split: Any) -> Labelled:
    """Return the private or the test digits, with their labels."""
    source = MnistSample(split=split, size=SIDE, resize="stretch", channels=1, classes=DIGITS)
    return read_real(source, split, DIGITS, Notes(Progress())).content


def drawn_digits(seed: int) -> Labelled:
    """Return drawn digits, as many of each label: public data, and PE's first population."""
    labels = np.arange(SAMPLES, dtype=np.int32) % len(DIGITS)
    return make_unevolved(Glyphs(size=SIDE), labels, DIGITS, seed)


def worth(training: Labelled, seed: int) -> dict[str, float]:
    """Return what the judgement says of a training set, beside drawn digits."""
    found = judged(
        {SYNTHETIC: training, DRAWN: drawn_digits(0)},
        digits("private"),
        digits("test"),
        Pixels(size=SIDE, blur=0),
        DIGITS,
        seed,
    )
    ours = found.trained[SYNTHETIC]
    values = {
        "score": ours.place.score,
        "low": ours.place.low,
        "high": ours.place.high,
        "brought": found.brought[DRAWN].score,
        "accuracy": ours.accuracy,
        "variety": found.variety.score,
        "coverage": found.shown.coverage,
    }
    return {name: round(value, 4) for name, value in values.items()}


def cell(method: str, epsilon: float, run: int) -> dict[str, Any]:
    """Return the values of one run of a method at one ε. `drawn` and `real` cost no ε."""
    if method == "real":
        private = digits("private")
        rows = np.random.default_rng(run).permutation(len(private))[:SAMPLES]
        return worth(private.take(rows), run)
    if method == DRAWN:
        # Other drawn digits than those of the control.
        return worth(drawn_digits(run + 1), run)
    with tempfile.TemporaryDirectory() as folder:
        figures = run_recipe(recipe_of(method, epsilon, run), Path(folder))
        place = Path(folder) / "run"
        synthetic = one_vote(place) if method == "one_vote" else Run.open(place).synthetic
        training = label_samples(synthetic.samples, synthetic.labels, synthetic.conditions)
        return figures | worth(training, run)


def one_vote(folder: Path) -> Any:
    """Return as many samples as a PE run has, chosen by one vote and not varied."""
    run, recipe = Run.open(folder), Recipe.load(folder / FULL_RECIPE)
    dataset, embedding, plan = recipe.private.open(), build_embedding(recipe), plan_of(run, recipe)
    control = one_vote_run(
        run, recipe, plan, Glyphs(size=SIDE), run.populations(), dataset, embedding
    )
    return control.result(Progress(), Event())


def key_of(method: str, epsilon: float, run: int) -> str:
    """Return a cell's name. Another recipe is another cell."""
    content = recipe_of(method, epsilon, run) if method in METHODS else [SAMPLES]
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
    heads = [head for head, _ in COLUMNS.values()]
    lines = [
        "# PE and the methods that train, on the same digits",
        "",
        "What `pe evaluate` says of the samples, on 1,000 held-out MNIST digits. The score for "
        "training: 0 is a guess, 10 what the 4,000 private digits give; classifiers learn from "
        "soft labels where a method has them. Beside it what the records brought over drawn "
        "digits, the control of all methods. Accuracy of the learners that were chosen. Variety: "
        "10 is that of the private digits. Covered: share of the private digits that have a sample "
        "as near as other private ones. Means of all runs; the score ± its "
        f"{100 * LEVEL:g} % interval for other noise and other test digits. δ = 1e-5. Seconds are "
        "of one core. "
        f"{dates[0]} to {dates[-1]};{last}. `python benchmarks/methods.py`",
        "",
        "At ε = 10⁶ there is hardly any noise, and all else is as at ε = 10: what the method could "
        "be worth.",
        "",
        f"| ε | method | {' | '.join(heads)} | runs |",
        f"| ---: | --- |{' ---: |' * (len(heads) + 1)}",
        *(
            row(epsilon, list(LABELS.values())[i], runs)
            for (epsilon, i), runs in sorted(groups.items())
        ),
    ]
    keep("methods.md", "\n".join(lines))


def row(epsilon: float, label: str, runs: list[dict[str, Any]]) -> str:
    """Return one line of the page."""
    columns = []
    for name, (_, form) in COLUMNS.items():
        values = [run[name] for run in runs if name in run]
        columns.append(f"{statistics.mean(values):{form}}" if values else "–")
    columns[0] += f" ± {reach(runs):.1f}"
    shown = "10⁶" if epsilon == HARDLY_ANY_NOISE else f"{epsilon:g}" if epsilon else "–"
    return f"| {shown} | {label} | {' | '.join(columns)} | {len(runs)} |"


def reach(runs: list[dict[str, Any]]) -> float:
    """Return half the width of the score's interval: that of the test digits, and of other runs."""
    of_test = statistics.mean(run["high"] - run["low"] for run in runs) / 2
    scores = [run["score"] for run in runs]
    between = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return math.hypot(of_test, NormalDist().inv_cdf((1 + LEVEL) / 2) * between)


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
