"""The features of one noisy mean, and dp_gaussian, side by side on colour pictures: the same records and (ε, δ).

    python benchmarks/noisy_mean.py [--pictures FOLDER] [--side 32] [--epsilon E …] [--runs N] [--steps N]
    python benchmarks/noisy_mean.py --private twitter --public facebook …    # to choose settings

The picture set is that of `pe demo --data pictures`. Classifiers are trained on the samples alone, and tested on
held-out private pictures; the probe is on features of EfficientNet-Lite0, which dp_mepf matches. What was measured of
the same recipe is not measured again; a classifier that it lacks is trained on samples of another fit. Writes
results/noisy_mean.md; with another private maker it prints each cell, and keeps them beside the pictures.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from pictures import keep_cell
from record import RESULTS, keep, where

from embeddings.networks import EfficientNetLite
from pe.engine.demo.picture_set import CLASSES, make_picture_set
from pe.engine.demo.pictures import probe_accuracies, recipe_content
from pe.engine.execution import Surroundings, run_recipe
from pe.evaluation.classifiers import Classifier, NetworkSettings
from pe.evaluation.labelled import Labelled, label_samples
from pe.evaluation.real import read_real
from pe.evaluation.utility import utility
from pe.private.folder import ImageFolder
from pe.progress import Progress
from pe.recipe.schema import Recipe

PROBE = "linear_probe"
CLASSIFIERS = {"logistic_regression": "LR", "mlp": "MLP", PROBE: "probe", "resnet9": "ResNet-9"}
BASELINE = "dp_gaussian"
METHODS: dict[str, dict[str, Any]] = {
    "dp_merf": {"kind": "dp_merf"},
    "dp_merf, three bandwidths": {"kind": "dp_merf", "bandwidth": [0.1, 0.2, 0.4]},
    "dp_mepf": {"kind": "dp_mepf"},
    BASELINE: {"kind": "dp_gaussian"},
}
PLACES = "path", "public"
REAL, SAMPLES, EPOCHS = "the private pictures (not DP)", 1503, 20


def content_of(method: str, epsilon: float, run: int, folder: Path, changes: argparse.Namespace) -> dict[str, Any]:
    """The recipe of one cell."""
    content = recipe_content(folder)
    if method == BASELINE:
        api = METHODS[method] | {"public": {"kind": "folder", "path": str(folder.resolve() / "public")}}
    else:
        api = METHODS[method] | ({"steps": changes.steps} if changes.steps else {})
    return content | {
        "seed": run,
        "private": content["private"] | {"size": changes.side, "resize": "stretch"},
        "api": api,
        "embedding": {"kind": "pixels", "size": changes.side},
        "privacy": {"epsilon": epsilon, "delta": 1e-5},
        "evolution": {"iterations": 0, "population": SAMPLES},
    }


def pictures(folder: Path, part: str, side: int) -> Labelled:
    """The private or the test pictures."""
    shape: dict[str, Any] = {"size": side, "resize": "stretch", "channels": 3, "classes": tuple(CLASSES)}
    found: Labelled = read_real(ImageFolder(folder / part, **shape), part, tuple(CLASSES)).content
    return found


def accuracy(train: Labelled, test: Labelled, names: list[str], seed: int) -> dict[str, float]:
    """Of each classifier."""
    found: dict[str, float] = {}
    if named := [Classifier(name, NetworkSettings(epochs=EPOCHS)) for name in names if name != PROBE]:
        scores = utility(named, {"set": train}, test, len(CLASSES), [seed], Progress())
        found |= {one.name: round(float(scores[one.name]["set"].accuracy[0]), 4) for one in named}
    if PROBE in names:
        found[PROBE] = probe_accuracies({"set": train}, test, EfficientNetLite(device="cpu"), Progress())["set"]
    return found


def cell(content: dict[str, Any], test: Labelled, names: list[str]) -> dict[str, Any]:
    """One run: the accuracies of its pictures, and the processor seconds of the fit and the samples."""
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = run_recipe(Recipe.parse(content, "benchmarks/noisy_mean.py"), Path(folder) / "run", Surroundings())
        made = run.synthetic
    seconds = round(time.process_time() - started)
    train = label_samples(made.samples, made.labels, made.conditions)
    return {"accuracy": accuracy(train, test, names, content["seed"]), "seconds": seconds}


def write_table(cells: list[dict[str, Any]], side: int) -> None:
    """results/noisy_mean.md, of the cells of this size."""
    groups: dict[tuple[float, str], list[dict[str, Any]]] = defaultdict(list)
    for one in cells:
        if one["side"] == side:
            groups[one["epsilon"], one["method"]].append(one)
    lines = [row(epsilon, method, found) for (epsilon, method), found in sorted(groups.items())]
    text = [
        f"# The features of one noisy mean, and dp_gaussian, on colour pictures of {side}×{side}",
        "",
        f"Accuracy on held-out private pictures of {len(CLASSES)} classes, of classifiers that were trained on "
        f"{SAMPLES:,} samples alone; mean ± standard deviation over runs. The probe is on features of "
        f"EfficientNet-Lite0, which dp_mepf matches. ResNet-9 has {EPOCHS} epochs; without ±, one run. "
        "A classifier that was added later has samples of another fit of the same recipe. δ = 1e-5. "
        f"Seconds are of one processor. {cells[-1]['where']}. `python benchmarks/noisy_mean.py --side {side}`",
        "",
        f"| ε | features | {' | '.join(CLASSIFIERS.values())} | seconds | steps | runs |",
        f"| ---: | --- |{' ---: |' * (len(CLASSIFIERS) + 3)}",
        *lines,
    ]
    keep("noisy_mean.md", "\n".join(text))


def row(epsilon: float, method: str, found: list[dict[str, Any]]) -> str:
    """One line of the table."""
    values = []
    for name in CLASSIFIERS:
        each = [one["accuracy"][name] for one in found if name in one["accuracy"]]
        spread = f" ± {statistics.stdev(each):.3f}" if len(each) > 1 else ""
        values.append(f"{statistics.mean(each):.3f}{spread}" if each else "–")
    seconds = round(statistics.mean(one["seconds"] for one in found))
    steps = "–" if method == BASELINE else found[0]["steps"] or "default"
    costs = f"{seconds} | {steps}" if epsilon else "– | –"
    runs = len({one["run"] for one in found})
    return f"| {f'{epsilon:g}' if epsilon else '–'} | {method} | {' | '.join(values)} | {costs} | {runs} |"


def cells_in(kept: Path) -> list[dict[str, Any]]:
    """All that was measured; nothing where nothing was."""
    return [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()] if kept.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--private", default="google", help="the private maker")
    parser.add_argument("--public", nargs="+", default=["twitter", "facebook"], help="the public makers")
    parser.add_argument("--pictures", type=Path, help="the set's folder; default: pictures, or pictures-MAKER")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--side", type=int, default=32, help="pixels of a side")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of every fit; default: the method's")
    arguments = parser.parse_args()
    reported = arguments.private == "google"
    folder = arguments.pictures or Path("pictures" if reported else f"pictures-{arguments.private}")
    make_picture_set(folder, private=arguments.private, public=arguments.public, progress=Progress())
    kept = RESULTS / "noisy_mean.jsonl" if reported else folder.with_name(f"{folder.name}-noisy-mean.jsonl")
    done: dict[str, set[str]] = defaultdict(set)
    for found in cells_in(kept):
        done[found["key"]].update(found["accuracy"])
    test, side = pictures(folder, "test", arguments.side), arguments.side
    common = {"side": side, "steps": arguments.steps, "where": where()}
    if missing := missing_of(done[key := f"real {side}"]):
        scores = accuracy(pictures(folder, "private", side), test, missing, 0)
        found = {"key": key, "method": REAL, "epsilon": 0, "run": 0, "seconds": 0, "accuracy": scores}
        keep_cell(found | common, kept)
    for run in range(arguments.runs):
        for epsilon in arguments.epsilon:
            for method in arguments.methods:
                content = content_of(method, epsilon, run, folder, arguments)
                named = {"key": key_of(content), "method": method, "epsilon": epsilon, "run": run}
                if missing := missing_of(done[named["key"]]):
                    keep_cell(named | common | cell(content, test, missing), kept)
    if reported:
        write_table(cells_in(kept), side)


def missing_of(done: set[str]) -> list[str]:
    """The classifiers that a cell is still to be measured by."""
    return [name for name in CLASSIFIERS if name not in done]


def key_of(content: dict[str, Any]) -> str:
    """Of a recipe without its places: another one is another cell."""
    parts = {"private": content["private"], "api": content["api"]}
    placeless = content | {name: {key: part[key] for key in part if key not in PLACES} for name, part in parts.items()}
    return hashlib.sha256(json.dumps(placeless, sort_keys=True).encode()).hexdigest()[:12]


if __name__ == "__main__":
    main()
