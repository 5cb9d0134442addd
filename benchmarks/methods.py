"""Private Evolution and every method that trains, side by side: the same private and public images, the same (ε, δ).

    python benchmarks/methods.py [--setting cpu|gpu] [--methods NAME …] [--epsilon E …] [--runs N]
    python benchmarks/methods.py --private FILE.npz --test FILE.npz …       # to choose settings on other digits

Private: the demo's 4,000 MNIST digits, at 14×14 (cpu) or 28×28 (gpu). Public: drawn characters of 62 kinds in printed
fonts. Each cell is one `pe run` in a process of its own; a cell that is in results/methods-SETTING.jsonl already, and
whose recipe is the same, is not run again. Writes results/methods-SETTING.md and docs/images/methods-SETTING.png.
With digits of your own it prints each cell and writes nothing.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from methods_table import LABELS, write_table
from record import RESULTS, where

if TYPE_CHECKING:
    from pe.evaluation.labelled import Labelled

PE = Path(sys.executable).with_name("pe")
DELTA, DIGITS = 1e-5, tuple("0123456789")
FROM_SCRATCH = {"learning_rate": 2e-3}  # a network that was not trained before has further to go
LITTLE_NOISE = 4  # the ε from which PE has its settings for little noise
QUERY = {"semantics": 2, "semantics_share": 0.1}


@dataclass(frozen=True)
class Setting:
    """What the hardware decides; all of it public, chosen on drawn digits that stand in for private ones.

    Attributes:
        side: of the images, pixels.
        samples: that each method makes.
        characters: drawn as public images.
        diffusion: settings that the diffusion models share.
        resnet: epochs of ResNet-9, and in how many of a cell's runs it is trained at all.
        growing: candidates at each of PE's votes at ε = 1, winners kept.
        neighbors: q at ε = 1.
    """

    side: int
    samples: int
    characters: int
    diffusion: dict[str, Any]
    resnet: tuple[int, int]
    pretraining: dict[str, Any]
    growing: tuple[int, ...]
    neighbors: int
    merf: dict[str, Any] = field(default_factory=dict)
    sad: dict[str, Any] = field(default_factory=dict)


SETTINGS = {
    "cpu": Setting(
        side=14,
        samples=2000,
        characters=12400,
        diffusion={
            "network": {"channels": [16, 32]},
            "training": {"steps": 40, "expected_batch": 500, "draws": 4, "learning_rate": 3e-4, "ema": 0.9},
            "sampling": {"steps": 15},
        },
        resnet=(5, 1),
        pretraining={"steps": 1000, "batch": 64},
        growing=(2500, 3000, 3500, 4000),
        neighbors=16,
    ),
    "gpu": Setting(
        side=28,
        samples=4000,
        characters=62000,
        diffusion={
            "network": {"channels": [32, 64, 64]},
            "training": {"steps": 500, "expected_batch": 1000, "draws": 8, "micro_batch": 250, "ema": 0.99},
        },
        resnet=(20, 3),
        pretraining={"steps": 10000, "batch": 256},
        growing=(4500, 5500, 6500, 7500),
        neighbors=32,
    ),
}


def api_of(method: str, setting: Setting) -> dict[str, Any]:
    """The recipe's `api` for a method by its name, the hybrids included: `NAME+pe`."""
    public = {"public": {"kind": "glyphs", "count": setting.characters}, "pretraining": setting.pretraining}
    name, _, evolved = method.partition("+")
    apis: dict[str, dict[str, Any]] = {
        "pe": {"kind": "glyphs", "size": setting.side},
        "one_vote": {"kind": "glyphs", "size": setting.side},
        "dp_merf": {"kind": "dp_merf", **setting.merf},
        "dpdm": {"kind": "dpdm", **setting.diffusion, "training": setting.diffusion["training"] | FROM_SCRATCH},
        "pdp_diffusion": {"kind": "pdp_diffusion", **public, **setting.diffusion},
        "dp_ldm": {"kind": "dp_ldm", **public, **setting.diffusion},
        "privimage": {"kind": "privimage", **public, **QUERY, **setting.diffusion},
        "dp_imgsyn": {"kind": "dp_imgsyn", "public": public["public"]},
        "dp_sad": {"kind": "dp_sad", **distilled(setting), **setting.sad},
        "dp_sad_drawn": {"kind": "dp_sad", **public, **taught_by_drawn_digits(setting), **setting.sad},
    }
    return apis[name] | ({"fit": {"budget_share": 0.5}} if evolved else {})


def distilled(setting: Setting) -> dict[str, Any]:
    """DP-SAD without public images: of DP-DM's steps a quarter for the teacher, with a fifth of ε.

    Such a teacher knows little, so that the student heeds it, and the discriminator that compares them, a quarter as
    much as by default, and is sampled without guidance.
    """
    training = setting.diffusion["training"] | FROM_SCRATCH
    steps = training["steps"] // 4
    teacher = training | {"steps": steps, "share": 0.2}
    heeded = {"guidance": 1, "imitation": 0.25, "adversarial": 0.25}
    return setting.diffusion | {"teacher": teacher, "training": training | {"steps": 3 * steps}} | heeded


def taught_by_drawn_digits(setting: Setting) -> dict[str, Any]:
    """DP-SAD whose teacher learned from the ten digits among the public characters, and so costs nothing."""
    drawn = {"kind": "glyphs", "characters": "".join(DIGITS), "count": setting.characters * len(DIGITS) // 62}
    return setting.diffusion | {"public": drawn, "teacher": {"share": 0}}


def recipe_of(method: str, epsilon: float, run: int, setting: Setting, private: Path | None) -> dict[str, Any]:
    """The recipe of one cell."""
    evolving = method in ("pe", "one_vote") or method.endswith("+pe")
    source: dict[str, Any] = {"kind": "mnist"} if private is None else {"kind": "npz", "path": str(private)}
    evolution: dict[str, Any] = {"iterations": 0, "population": setting.samples}
    privacy: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA}
    if evolving:
        evolution = {"iterations": 4, "degree": [0.5, 0.45, 0.4, 0.4], "lookahead": 0}
        evolution |= evolution_of(epsilon, setting) if "+" not in method else evolution_of_fitted(setting)
        if "keep" in evolution and epsilon < LITTLE_NOISE:
            privacy["schedule"] = [1.5**t for t in range(4)]
    return {
        "name": method.replace("+", "-"),
        "seed": run,
        "private": source
        | {"size": setting.side, "resize": "stretch", "channels": 1, "classes": list(DIGITS), "declared_size": 4000},
        "api": api_of(method, setting),
        "embedding": {"kind": "pixels", "size": setting.side, "blur": 0.8 * setting.side / 28},
        "privacy": privacy,
        "evolution": evolution,
    }


def evolution_of(epsilon: float, setting: Setting) -> dict[str, Any]:
    """Winners are kept; with little noise there are more candidates, and fewer neighbours get a record's vote."""
    little = epsilon >= LITTLE_NOISE
    growing = [size * 11 // 10 if little else size for size in setting.growing]
    return {
        "population": [*growing, setting.samples],
        "keep": "winners",
        "neighbors": setting.neighbors // 8 if little else setting.neighbors,
        "threshold_sigmas": 1.0,
    }


def evolution_of_fitted(setting: Setting) -> dict[str, Any]:
    """What suits a fitted generator's samples, at each ε: every candidate costs a diffusion model's time."""
    return {"population": [setting.samples] * 5, "neighbors": 32, "threshold_sigmas": 1.5}


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
    from adapters.trained.diffusion.semantics import chosen_semantics
    from adapters.trained.public import CHARACTERS

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
    from pe.evaluation.features import Seen, features
    from pe.evaluation.frechet import frechet_distance
    from pe.evaluation.utility import utility
    from pe.progress import Progress, Task

    names = ["logistic_regression", "mlp", *(["resnet9"] if epochs else [])]
    classifiers = [Classifier.named(name, NetworkSettings(epochs=epochs or 1)) for name in names]
    scores = utility(classifiers, {"set": train}, test, len(DIGITS), [seed], Progress())
    pixels = Seen("pixels", Pixels(size=train.images.shape[0], blur=0))
    one, other = (features(images, pixels, 0, Task()).moments for images in (train.images, real.images))
    return {
        "accuracy": {name: round(float(scores[name]["set"].accuracy[0]), 4) for name in names},
        "frechet": round(frechet_distance(one, other), 3),
    }


def cell(method: str, epsilon: float, run: int, setting: Setting, files: tuple[Path | None, Path | None]) -> Any:
    """One method at one ε, once; `drawn` and `real` are the two ends of the scale and cost no ε."""
    from adapters.glyphs import Glyphs
    from pe.evaluation.controls import unevolved
    from pe.evaluation.labelled import Labelled

    private, test = digits("private", setting, files[0]), digits("test", setting, files[1])
    epochs = setting.resnet[0] if run < setting.resnet[1] else None
    if method == "real":
        return measured(private, private, test, run, epochs)
    if method == "drawn":
        labels = np.arange(setting.samples, dtype=np.int32) % len(DIGITS)
        images = unevolved(Glyphs(size=setting.side), labels, DIGITS, run).images
        return measured(Labelled(images, labels), private, test, run, epochs)
    recipe = recipe_of(method, epsilon, run, setting, files[0])
    return evaluated(recipe, run, setting, files, once=method == "one_vote")


def one_vote(folder: Path, setting: Setting) -> Any:
    """The control of a PE run: as much data chosen by one vote, and not varied."""
    from threading import Event

    from adapters.glyphs import Glyphs
    from pe.evaluation.one_vote import one_vote_run
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


def evaluated(
    recipe: dict[str, Any], run: int, setting: Setting, files: tuple[Path | None, Path | None], once: bool = False
) -> Any:
    """One `pe run`, and what its samples, or those of its control by one vote, are worth."""
    from pe.evaluation.labelled import label_samples
    from pe.store.run import Run

    private, test = digits("private", setting, files[0]), digits("test", setting, files[1])
    epochs = setting.resnet[0] if run < setting.resnet[1] else None
    with tempfile.TemporaryDirectory() as folder:
        found = carried_out(recipe, Path(folder))
        if recipe["api"]["kind"] == "privimage":
            found |= semantics_of(Path(folder) / "run")
        place = Path(folder) / "run"
        synthetic = one_vote(place, setting) if once else Run.open(place).synthetic
    train = label_samples(synthetic.samples, synthetic.labels, synthetic.conditions)
    return found | measured(train, private, test, run, epochs)


def digits(split: Any, setting: Setting, file: Path | None) -> Any:
    """The private or the test digits, with their labels."""
    from pe.evaluation.real import read_real
    from pe.private.mnist import MnistSample
    from pe.private.npz import ImageNpz

    shape: dict[str, Any] = {"size": setting.side, "resize": "stretch", "channels": 1, "classes": DIGITS}
    source = MnistSample(split=split, **shape) if file is None else ImageNpz(file, **shape)
    return read_real(source, split, DIGITS).content


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=SETTINGS, default="cpu")
    parser.add_argument("--methods", nargs="+", choices=LABELS, default=list(LABELS))
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--private", type=Path, help=".npz of digits that stand in for the private ones")
    parser.add_argument("--test", type=Path, help=".npz of digits to test on, with --private")
    parser.add_argument("--set", nargs="*", default=[], metavar="A.B=VALUE", help="change the setting, with --private")
    arguments = parser.parse_args()
    if (arguments.private is None) != (arguments.test is None) or (arguments.set and not arguments.private):
        parser.error("--private and --test go together, and --set with them")
    setting, kept = SETTINGS[arguments.setting], RESULTS / f"methods-{arguments.setting}.jsonl"
    for change in arguments.set:
        alter(setting, change)
    files = arguments.private, arguments.test
    done = (
        {}
        if arguments.private or not kept.exists()
        else {found["key"]: found for found in map(json.loads, kept.read_text(encoding="utf-8").splitlines())}
    )
    for run in range(arguments.runs):
        for method in arguments.methods:
            for epsilon in arguments.epsilon if method not in ("drawn", "real") else [0.0]:
                key = key_of(method, epsilon, run, setting)
                if key in done:
                    continue
                named = {"key": key, "method": method, "epsilon": epsilon, "run": run, "where": where()}
                found = named | cell(method, epsilon, run, setting, files)
                print(json.dumps(found), flush=True)
                if not arguments.private:
                    with kept.open("a", encoding="utf-8") as lines:
                        lines.write(json.dumps(found) + "\n")
    if not arguments.private:
        write_table(arguments.setting, [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()])


def key_of(method: str, epsilon: float, run: int, setting: Setting) -> str:
    """What a cell's result depends on."""
    content = setting.resnet if method in ("drawn", "real") else recipe_of(method, epsilon, run, setting, None)
    return f"{method} {epsilon:g} {run} {digest_of(content, setting)}"


def digest_of(content: Any, setting: Setting) -> str:
    """Of a recipe, or whatever else a cell is made from: another one is another cell."""
    return hashlib.sha256(json.dumps([content, setting.side], sort_keys=True).encode()).hexdigest()[:8]


def alter(setting: Setting, change: str) -> None:
    """`diffusion.training.steps=80` and the like, in place."""
    path, _, value = change.partition("=")
    first, *keys, last = path.split(".")
    inner = getattr(setting, first)
    for each in keys:
        inner = inner.setdefault(each, {})
    inner[last] = yaml.safe_load(value)


if __name__ == "__main__":
    main()
