"""Private Evolution and every method that trains, side by side: the same private and public images, the same (ε, δ).

    python benchmarks/methods.py [--setting fast|cpu|gpu] [--methods NAME …] [--epsilon E …] [--runs N]
    python benchmarks/methods.py --page                     # the page and the picture of what was measured
    python benchmarks/methods.py --setting gpu --tiny       # whether all of it runs: a few steps of everything

Private: the demo's 4,000 MNIST digits, at 14×14 (fast, cpu) or 28×28 (gpu). Public: drawn characters of 62 kinds in
printed fonts. `fast` has only the methods that need no DP-SGD, once. Each cell is one `pe run` in a process of its
own; a cell that is in results/methods-SETTING.jsonl already, and whose recipe is the same, is not run again: the page
names what other code measured, and --anew measures that again. At ε = 1e6 there is hardly any noise: what a method
could be worth. Writes results/methods-SETTING.md and, of cpu and gpu, docs/images/methods-SETTING.png; with --tiny it
prints each cell and writes nothing. The settings are those that methods_search.py chose on other digits; a method
whose search is not complete at an ε is skipped there.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a cell's seconds are of one core

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from code_digest import code_digest
from methods_choice import CANDIDATES, QUERY
from methods_settings import DIGITS, FAST, SETTINGS, Setting, recipe_of, tiny, tiny_api
from methods_table import LABELS, write_table
from record import RESULTS, where

if TYPE_CHECKING:
    from pe.evaluation.labelled import Labelled

PE = Path(sys.executable).with_name("pe")
KINDS = dict.fromkeys(("pe", "one_vote", "drawn", "real"), "glyphs") | {"dp_sad_drawn": "dp_sad"}
BEGUN_BY = {"dp_feta": ("central_images", "dp_gaussian")}
RESNET_RUNS = dict.fromkeys((*FAST, *CANDIDATES), 5)
"""In how many runs ResNet-9 is trained at least; for others the setting says it."""


def carried_out(recipe: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One `pe run`: seconds to fit, seconds for the rest, and the process's peak memory."""
    path, run = folder / "recipe.yaml", folder / "run"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    model, started, peak, fit = run / "model", time.time(), 0, 0.0
    process = subprocess.Popen([PE, "run", path, "--out", run, "--quiet"], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        peak = max(peak, high_water(process.pid))
        fit = fit or (time.time() - started if model.is_dir() else 0.0)
        time.sleep(0.2)
    if process.returncode:
        raise SystemExit(f"pe run ended with status {process.returncode} on {recipe}")
    return {
        "fit_seconds": round(fit, 1),
        "sample_seconds": round(time.time() - started - fit, 1),
        "peak_gb": round(peak / 2**20, 2),
        "epsilon_certified": json.loads((run / "certificate.json").read_text())["epsilon"],
    }


def high_water(pid: int) -> int:
    """The most resident memory that a process had, kB; 0 once it is over."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def semantics_of(run: Path) -> dict[str, Any]:
    """The public characters that PrivImage's query found for each digit, and for how many digits they hold it."""
    from adapters.trained.public import CHARACTERS
    from adapters.trained.semantics import chosen_semantics

    chosen = chosen_semantics(np.load(run / "releases" / "fit-semantics.npy"), QUERY["semantics"])
    found = ["".join(CHARACTERS[one] for one in row) for row in chosen]
    print("PrivImage's query found", found, flush=True)
    return {"semantics": found, "digits_found": sum(digit in row for digit, row in zip(DIGITS, found, strict=True))}


def measured(train: Labelled, real: Any, test: Any, seed: int, epochs: int | None) -> dict[str, Any]:
    """What a training set is worth: accuracies on the test digits, and the distance from the private ones.

    Guarantee: none. These numbers compare methods on digits that are public in truth.
    """
    from embeddings.pixels import Pixels
    from pe.evaluation.classifiers import Classifier, NetworkSettings
    from pe.evaluation.features import Seen, features, frechet_distance
    from pe.evaluation.utility import utility
    from pe.progress import Progress, Task

    names = ["logistic_regression", "mlp", *(["resnet9"] if epochs else [])]
    classifiers = [Classifier(name, NetworkSettings(epochs=epochs or 1)) for name in names]
    scores = utility(classifiers, {"set": train}, test, len(DIGITS), [seed], Progress())
    pixels = Seen("pixels", Pixels(size=train.images.shape[0], blur=0))
    one, other = (features(images, pixels, 0, Task()).moments for images in (train.images, real.images))
    return {
        "accuracy": {name: round(float(scores[name]["set"].accuracy[0]), 4) for name in names},
        "frechet": round(frechet_distance(one, other), 3),
    }


def cell(method: str, epsilon: float, run: int, setting: Setting, *, small: bool = False) -> Any:
    """One method at one ε, once; `drawn` and `real`, as many images each, cost no ε."""
    from adapters.glyphs import Glyphs
    from pe.evaluation.controls import unevolved
    from pe.evaluation.labelled import Labelled

    private, test = digits("private", setting, None), digits("test", setting, None)
    epochs = epochs_of(method, run, setting)
    if method == "real":
        rows = np.random.default_rng(run).permutation(len(private.labels))[: setting.samples]
        some = Labelled(private.images.take(rows), private.labels[rows])
        return measured(some, private, test, run, epochs)
    if method == "drawn":
        labels = np.arange(setting.samples, dtype=np.int32) % len(DIGITS)
        images = unevolved(Glyphs(size=setting.side), labels, DIGITS, run).images
        return measured(Labelled(images, labels), private, test, run, epochs)
    recipe = recipe_of(method, epsilon, run, setting)
    if small:
        recipe["api"] = tiny_api(recipe["api"])
    return cell_of(recipe, run, setting, (None, None), epochs=epochs, once=method == "one_vote")


def epochs_of(method: str, run: int, setting: Setting) -> int | None:
    """ResNet-9's epochs; None where it is not trained."""
    epochs, runs = setting.resnet
    return epochs if run < max(runs, RESNET_RUNS.get(method, 0)) else None


def one_vote(folder: Path, setting: Setting) -> Any:
    """The control of a PE run: as much data chosen by one vote, and not varied."""
    from threading import Event

    from adapters.glyphs import Glyphs
    from pe.evaluation.controls import one_vote_run
    from pe.planning.build import build_embedding
    from pe.planning.layout import plan_of
    from pe.progress import Progress
    from pe.recipe.schema import Recipe
    from pe.store.places import FULL_RECIPE
    from pe.store.run import Run

    run, recipe = Run.open(folder), Recipe.load(folder / FULL_RECIPE)
    dataset, embedding, plan = recipe.private.open(), build_embedding(recipe), plan_of(run, recipe)
    control = one_vote_run(run, recipe, plan, Glyphs(size=setting.side), run.populations(), dataset, embedding)
    return control.result(Progress(), Event())


def cell_of(
    recipe: dict[str, Any],
    run: int,
    setting: Setting,
    files: tuple[Path | None, Path | None],
    *,
    epochs: int | None,
    once: bool = False,
) -> Any:
    """One `pe run`, and what its samples, or those of its control by one vote, are worth."""
    from pe.evaluation.labelled import label_samples
    from pe.store.run import Run

    private, test = digits("private", setting, files[0]), digits("test", setting, files[1])
    with tempfile.TemporaryDirectory() as folder:
        found = carried_out(recipe, Path(folder))
        if recipe["api"]["kind"] in ("privimage", "privimage_gan"):
            found |= semantics_of(Path(folder) / "run")
        place = Path(folder) / "run"
        synthetic = one_vote(place, setting) if once else Run.open(place).synthetic
    train = label_samples(synthetic.samples, synthetic.labels, synthetic.conditions)
    return found | measured(train, private, test, run, epochs)


def digits(split: Any, setting: Setting, file: Path | None) -> Any:
    """The private or the test digits, with their labels."""
    from pe.evaluation.real import read_real
    from pe.private.npz import ImageNpz, MnistSample

    shape: dict[str, Any] = {"size": setting.side, "resize": "stretch", "channels": 1, "classes": DIGITS}
    source = MnistSample(split=split, **shape) if file is None else ImageNpz(file, **shape)
    return read_real(source, split, DIGITS).content


def main() -> None:
    arguments = parsed()
    setting, kept = SETTINGS[arguments.setting], RESULTS / f"methods-{arguments.setting}.jsonl"
    setting = tiny(setting) if arguments.tiny else setting
    done = {} if arguments.tiny else cells_in(kept)
    for run in range(0 if arguments.page else arguments.runs or setting.runs):
        for method in arguments.methods or setting.methods or LABELS:
            for epsilon in arguments.epsilon if method not in ("drawn", "real") else [0.0]:
                try:
                    key, code = key_of(method, epsilon, run, setting), code_of(method)
                except LookupError as unsearched:
                    if not run:
                        print(f"Skipped: {unsearched}", flush=True)
                    continue
                if key in done and not lacking(done[key], epochs_of(method, run, setting), code, arguments.anew):
                    continue
                named = {"key": key, "method": method, "epsilon": epsilon, "run": run, "where": where(), "code": code}
                found = named | cell(method, epsilon, run, setting, small=arguments.tiny)
                print(json.dumps(found), flush=True)
                if not arguments.tiny:
                    with kept.open("a", encoding="utf-8") as lines:
                        lines.write(json.dumps(found) + "\n")
    if not arguments.tiny:
        cells = [one for one in cells_in(kept).values() if is_current(one, setting)]
        write_table(arguments.setting, cells, {method: code_of(method) for method in LABELS})


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=SETTINGS, default="cpu")
    parser.add_argument("--methods", nargs="+", choices=LABELS)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--runs", type=int)
    parser.add_argument("--page", action="store_true", help="measure nothing")
    parser.add_argument("--tiny", action="store_true", help="a few steps of everything")
    parser.add_argument("--anew", action="store_true", help="measure again what was measured by other code")
    return parser.parse_args()


def cells_in(kept: Path) -> dict[str, dict[str, Any]]:
    """What was measured, by key; of a key that was measured twice, the last."""
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    return {found["key"]: found for found in map(json.loads, lines)}


def lacking(found: dict[str, Any], epochs: int | None, code: str, anew: bool) -> bool:
    """Whether a cell is to be measured again: it lacks ResNet-9, or other code measured it and `anew` asks for that."""
    return (epochs is not None and "resnet9" not in found["accuracy"]) or (anew and found.get("code") != code)


def is_current(found: dict[str, Any], setting: Setting) -> bool:
    """Whether a cell is of the recipe that its method has now."""
    try:
        return bool(found["key"] == key_of(found["method"], found["epsilon"], found["run"], setting))
    except LookupError:  # its settings are not chosen yet
        return False


def key_of(method: str, epsilon: float, run: int, setting: Setting) -> str:
    """What a cell's result depends on.

    Raises LookupError if the method's settings are to be searched first.
    """
    if method in ("drawn", "real"):
        content: Any = [epochs_of(method, run, setting), setting.samples]
    else:
        content = recipe_of(method, epsilon, run, setting)
    return f"{method} {epsilon:g} {run} {digest_of(content, setting)}"


def code_of(method: str) -> str:
    """Of the code by which a method is measured now."""
    name = method.partition("+")[0]
    return code_digest(KINDS.get(name, name), *BEGUN_BY.get(name, ()))


def digest_of(content: Any, setting: Setting) -> str:
    """Of a recipe, or whatever else a cell is made from: another one is another cell."""
    return hashlib.sha256(json.dumps([content, setting.side], sort_keys=True).encode()).hexdigest()[:8]


if __name__ == "__main__":
    main()
