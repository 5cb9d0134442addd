"""The rule of `evolution: auto`: what it chooses, and the stand-in data that it was chosen on.

    python benchmarks/choice.py [--fonts FOLDER] [--pictures FOLDER]

Without arguments: the rule's choices over declared sizes, labels and ε. With the fonts of demo_settings.py: settings
tried on drawn digits, unlike those of the generator; with the folder of `pictures.py --private twitter --public
facebook`: settings tried on pictures, over a pool with and without labels. Neither is reported elsewhere. Rows that
were measured are kept in results/choice.jsonl. Writes results/choice.md.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from record import RESULTS, keep, where

from adapters.glyphs import Glyphs
from pe.data.images import Images
from pe.engine.execution import Surroundings
from pe.engine.start import run_recipe
from pe.evaluation.controls import unevolved
from pe.evaluation.utility import accuracies
from pe.planning.choice import settle
from pe.planning.forecast import forecast
from pe.plugins.protocols import PluginInfo
from pe.recipe.schema import Recipe

KEPT = RESULTS / "choice.jsonl"
SIZES, LABELS, EPSILONS = (100, 300, 1000, 4000, 10_000, 30_000, 100_000), (1, 10, 100), (0.5, 1, 4, 10)
KINDS = {
    "a generator that knows labels, with four degrees": PluginInfo(degrees=(0.5, 0.45, 0.4, 0.4), by_label=True),
    "a pool of 5,000 public images without labels": PluginInfo(degrees=(0.0,), distinct=5000),
}
SIGMA = {1: 3.7305, 4: 1.08, 10: 0.51}  # of one histogram with the whole of ε, δ = 1e-5
DEGREES = {1: (0.4,), 2: (0.5, 0.4), 4: (0.5, 0.45, 0.4, 0.4)}

DIGITS = [  # records, ε, T, candidates of a label, q, H
    (300, 1, 1, 100, 32, -1), (1000, 1, 1, 400, 32, -1),
    (300, 1, 1, 100, 32, 0), (300, 1, 1, 100, 32, 0.5), (300, 1, 1, 100, 32, 1.5), (300, 1, 4, 24, 8, 1.5),
    (1000, 1, 1, 100, 32, 0.5), (1000, 1, 1, 400, 32, 0), (1000, 1, 1, 400, 32, 0.5),
    (1000, 1, 1, 400, 32, 3.0), (1000, 1, 2, 150, 32, 1.5),
    (1000, 1, 4, 80, 32, 1.5), (1000, 1, 4, 80, 32, 2.5),
    (4000, 1, 1, 800, 32, 1.5), (4000, 1, 4, 300, 32, 1.5), (4000, 1, 4, 400, 32, 1.5), (4000, 1, 4, 400, 32, 2.5),
    (4000, 4, 4, 400, 32, 1.5), (4000, 4, 4, 1000, 16, 1.5), (4000, 10, 4, 1000, 8, 1.5), (4000, 10, 4, 1000, 1, 1.5),
]  # fmt: skip
KEEPING = [  # candidates of a label at each vote, members in the end, what is kept, H; at ε = 1 with 4,000 records
    ((400, 400, 400, 400), 1000, "none", 1.5), ((400, 400, 400, 400), 1000, "none", 1.0),
    ((400, 400, 400, 400), 1000, "winners", 1.0), ((400, 400, 400, 400), 1000, "winners", 1.5),
    ((450, 550, 650, 750), 1500, "winners", 1.0), ((450, 550, 650, 750), 1500, "winners", 1.5),
    ((500, 500, 500, 500), 1300, "winners", 1.0), ((270, 330, 390, 450), 900, "winners", 1.0),
    ((100, 100, 100), 200, "none", 1.5), ((100, 150, 200), 400, "winners", 1.0), ((100, 150, 200), 400, "winners", 0.5),
    ((150, 200), 400, "winners", 1.0), ((100, 130, 160, 200), 350, "winners", 1.0),
    ((50, 50, 50), 100, "none", 1.5), ((50, 75, 100), 200, "winners", 1.0),
]  # fmt: skip
FEW = [  # records of ten labels, ε: whether the rule's own choice beats un-evolved samples
    (100, 1), (200, 1), (400, 1), (1000, 1), (2000, 1), (50, 4), (100, 4), (200, 4), (400, 4), (1000, 4),
]  # fmt: skip
PICTURES = [  # pool, ε, T, candidates of a label (1842: the whole pool; 360: the largest class), q, H, degrees
    ("unlabelled", 4, 1, 1842, 16, 2.5, [0]), ("unlabelled", 4, 1, 1842, 4, 2.5, [0]),
    ("unlabelled", 4, 1, 1842, 16, 1.5, [0]), ("unlabelled", 4, 1, 1842, 16, 3.5, [0]),
    ("unlabelled", 4, 1, 1000, 4, 2.5, [0]), ("unlabelled", 4, 1, 300, 4, 2.5, [0]),
    ("unlabelled", 4, 1, 1842, 16, 2.5, [0.0016]), ("unlabelled", 4, 2, 500, 8, 2.5, [0.005, 0]),
    ("unlabelled", 4, 2, 1000, 32, 2.5, [0.005, 0]), ("unlabelled", 4, 2, 1000, 16, 2.5, [0, 0]),
    ("unlabelled", 1, 1, 1842, 32, 2.5, [0]), ("unlabelled", 1, 1, 1000, 32, 2.5, [0]),
    ("unlabelled", 1, 1, 1000, 32, 1.5, [0]), ("unlabelled", 1, 1, 500, 16, 2.5, [0]),
    ("unlabelled", 1, 2, 500, 16, 2.5, [0.01, 0]),
    ("by_class", 4, 1, 360, 4, 0, [0]), ("by_class", 4, 1, 360, 4, 0.5, [0]), ("by_class", 4, 1, 360, 4, 2.5, [0]),
    ("by_class", 1, 1, 360, 4, 0, [0]), ("by_class", 1, 1, 360, 4, 0.5, [0]),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fonts", help="folder of fonts that stand in for handwriting")
    parser.add_argument("--pictures", type=Path, help="folder of the stand-in pictures")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.fonts:
        measure(DIGITS, digits_measurer(arguments.fonts), 1)
        measure(KEEPING, keeping_measurer(arguments.fonts), 2)
        measure(FEW, few_measurer(arguments.fonts), arguments.runs)
    if arguments.pictures:
        measure(PICTURES, pictures_measurer(arguments.pictures), arguments.runs)
    keep("choice.md", page())


def measure(settings: list[Any], of: Callable[[Any, int], dict[str, float]], runs: int) -> None:
    """Every setting that has not been measured yet, `runs` times."""
    done = {json.dumps(row["setting"]) for row in rows()}  # tuples and lists are the same there
    for setting in settings:
        if json.dumps(list(setting)) not in done:
            found = {"setting": setting, "runs": [of(setting, run) for run in range(runs)], "where": where()}
            print(json.dumps(found), flush=True)
            with KEPT.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()] if KEPT.exists() else []


def digits_measurer(fonts: str) -> Callable[[Any, int], dict[str, float]]:
    """Accuracy of LR and MLP after one short run, mean of both stand-in sets of demo_settings.py."""
    import demo_settings as short

    sets = [short.stand_in(fonts, "boxed", 1), short.stand_in(fonts, "free", 2)]

    def accuracy(setting: Any, run: int) -> dict[str, float]:
        records, epsilon, iterations, members, neighbors, threshold = setting
        short.NOISE = SIGMA[epsilon]
        wanted = replace(
            short.Setting(),
            population=(members,) * iterations,
            degree=DEGREES[iterations],
            neighbors=neighbors,
            threshold_sigmas=threshold,
        )
        some = [
            replace(one, private=one.private.take(np.arange(records)), private_labels=one.private_labels[:records])
            for one in sets
        ]
        lr, mlp = np.mean([short.evolved(one, wanted, run) for one in some], axis=0)
        return {"LR": round(float(lr), 3), "MLP": round(float(mlp), 3)}

    return accuracy


def keeping_measurer(fonts: str) -> Callable[[Any, int], dict[str, float]]:
    """Accuracy of LR and MLP after one short run, and images asked for: means of both stand-in sets."""
    import demo_settings as short

    sets = [short.stand_in(fonts, "boxed", 1), short.stand_in(fonts, "free", 2)]

    def accuracy(setting: Any, run: int) -> dict[str, float]:
        population, final, keep, threshold = setting
        degree = {2: (0.5, 0.4), 3: (0.5, 0.45, 0.4), 4: DEGREES[4]}[len(population)]
        wanted = short.Setting(population, final, degree, keep=keep, threshold_sigmas=threshold)
        found = []
        for one in sets:
            samples, labels, asked = short.evolve(one, wanted, run)
            found.append((*short.measured(samples, labels, one), asked))
        lr, mlp, images = np.mean(found, axis=0)
        return {"LR": round(float(lr), 3), "MLP": round(float(mlp), 3), "images": round(float(images))}

    return accuracy


def few_measurer(fonts: str) -> Callable[[Any, int], dict[str, float]]:
    """Accuracy of LR and MLP after a run of the engine by the rule's choice, and of as many un-evolved samples.

    Means of both stand-in sets; the private records of a run are others than those of the next.
    """
    import demo_settings as short

    sets = [short.stand_in(fonts, "boxed", 1), short.stand_in(fonts, "free", 2)]

    def accuracy(setting: Any, run: int) -> dict[str, float]:
        records, epsilon = setting
        found = np.mean([_few(one, records, epsilon, run) for one in sets], axis=0)
        names = ("LR", "MLP", "un-evolved LR", "un-evolved MLP")
        return {name: round(float(value), 3) for name, value in zip(names, found, strict=True)}

    return accuracy


def _few(digits: Any, records: int, epsilon: float, run: int) -> list[float]:
    """LR and MLP of a run, and of its generator's samples, over `records` of the stand-in's private digits."""
    rows = np.arange(run * records, (run + 1) * records) % len(digits.private)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder  # runs over the same records do not add up here
        private = Path(folder) / "private.npz"
        np.savez(private, images=digits.private.array[rows], labels=digits.private_labels[rows].astype(str))
        kind = {"kind": "npz", "path": str(private), "size": 28, "channels": 1, "declared_size": records}
        content = {
            "seed": run,
            "private": kind | {"classes": [str(digit) for digit in range(10)]},
            "api": {"kind": "glyphs"},
            "embedding": {"kind": "pixels", "blur": 0.8},
            "privacy": {"epsilon": epsilon, "delta": 1e-5},
        }
        recipe = Recipe.parse(content, "the benchmark")
        made = run_recipe(recipe, Path(folder) / "run", Surroundings()).synthetic
        assert isinstance(made.samples, Images)
        drawn = unevolved(Glyphs(), made.labels, recipe.private.labels, run)
        each = ((made.samples, made.labels), (drawn.images, drawn.labels))
        scores = [accuracies(images, labels, digits.test, digits.test_labels, run) for images, labels in each]
        return [score[name] for score in scores for name in ("logistic_regression", "mlp")]


def pictures_measurer(folder: Path) -> Callable[[Any, int], dict[str, float]]:
    """Accuracy of a linear probe after a run of the engine, and of its controls."""
    import pictures

    network = pictures.Remembering(folder.with_name(f"{folder.name}-efficientnet_lite.npz"))

    def accuracy(setting: Any, run: int) -> dict[str, float]:
        pool, epsilon, iterations, members, neighbors, threshold, degrees = setting
        given = {
            "iterations": iterations,
            "population": [9 * members] * iterations + [3600],
            "degree": degrees,
            "neighbors": neighbors,
            "lookahead": 0,
            "threshold_sigmas": threshold,
        }
        changes = tuple(f"evolution.{key}={json.dumps(value)}" for key, value in given.items())
        setup = pictures.Setting(folder, network, None, changes)
        recipe = pictures.recipe_for(pool, "efficientnet_lite", epsilon, run, setup)
        found: dict[str, float] = pictures.cell(recipe, pool, run, setup, None)["accuracy"]
        return {name: found[name] for name in ("synthetic", "unevolved", "random_selection")}

    return accuracy


def page() -> str:
    found = rows()
    digits = [row for row in found if len(row["setting"]) == 6]
    kept = [row for row in found if len(row["setting"]) == 4]
    few = sorted((row for row in found if len(row["setting"]) == 2), key=lambda row: row["setting"][::-1])
    pictures = [row for row in found if len(row["setting"]) == 7]
    lines = ["# The rule of `evolution: auto`", "", f"{where()}. `python benchmarks/choice.py`", ""]
    for kind, info in KINDS.items():
        lines += [f"## What it chooses for {kind}", "", *grid(info), ""]
    lines += [
        "T × candidates of a label, votes per record, and the signal: the votes that an average candidate gets, over"
    ]
    lines += [
        "the noise on it. With several votes it grows from the first to the last; the mean is told. δ = 1e-6.",
        "",
    ]
    lines += ["## Tried on drawn digits", "", "Un-evolved LR .506, MLP .754 ([page](demo_settings.md)).", ""]
    lines += ["| records | ε | T | m | q | H, σ | LR | MLP |", "|" + " --: |" * 8]
    lines += [f"| {' | '.join(map(str, row['setting']))} | {' | '.join(spread(row))} |" for row in digits]
    lines += ["", "## What stays, on drawn digits", "", *keeping_lines(kept)]
    lines += ["", "## How few records are too few", "", *few_lines(few)]
    lines += ["", "## Tried on pictures", "", "Twitter's as private, Facebook's as the pool; a linear probe.", ""]
    lines += [
        "| pool | ε | T | m | q | H, σ | degrees | PE | un-evolved | random selection |",
        "| --- |" + " --: |" * 9,
    ]
    lines += [f"| {' | '.join(map(str, row['setting']))} | {' | '.join(spread(row))} |" for row in pictures]
    return "\n".join(lines)


def keeping_lines(kept: list[dict[str, Any]]) -> list[str]:
    """What it brings that candidates stay from one population to the next."""
    lines = [
        "ε = 1, 4,000 records of ten labels, q = 32; mean (range) of the runs. What is kept is not asked for again.",
        "",
        "| candidates of a label | in the end | kept | H, σ | LR | MLP | images |",
        "| --- | --: | --- |" + " --: |" * 4,
    ]
    for row in sorted(kept, key=lambda row: row["runs"][0]["images"]):
        population, *rest = row["setting"]
        runs = [{"LR": run["LR"], "MLP": run["MLP"]} for run in row["runs"]]
        images = np.mean([run["images"] for run in row["runs"]])
        cells = [", ".join(map(str, population)), *map(str, rest), *spread({"runs": runs}), f"{images:,.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def few_lines(few: list[dict[str, Any]]) -> list[str]:
    """What the rule's choice gives over few records, beside as many samples that were never voted for."""
    lines = [
        "Drawn digits of ten labels, the rule's own choice, whole runs of the engine; mean (range). Records of a label",
        "over σ, the noise of one histogram with the whole budget.",
        "",
        "| ε | records | of a label, over σ | LR | MLP | un-evolved LR | un-evolved MLP |",
        "|" + " --: |" * 7,
    ]
    for row in few:
        records, epsilon = row["setting"]
        over = records / 10 / SIGMA[epsilon]
        lines.append(f"| {epsilon:g} | {records:,} | {over:.3g} | {' | '.join(spread(row))} |")
    return lines


def spread(row: dict[str, Any]) -> Iterator[str]:
    """The mean of each figure, and its range where there are several runs."""
    for name in row["runs"][0]:
        values = [run[name] for run in row["runs"]]
        yield f"{np.mean(values):.3f}" + (f" ({min(values):.3f}–{max(values):.3f})" if len(values) > 1 else "")


def grid(info: PluginInfo) -> list[str]:
    lines = [
        f"| records | labels |{''.join(f' ε = {epsilon:g} |' for epsilon in EPSILONS)}",
        "| --: | --: |" + " --- |" * 4,
    ]
    for size in SIZES:
        for labels in LABELS:
            cells = [one_choice(size, labels, epsilon, info) for epsilon in EPSILONS]
            lines.append(f"| {size:,} | {labels} | {' | '.join(cells)} |")
    return lines


def one_choice(size: int, labels: int, epsilon: float, info: PluginInfo) -> str:
    private = {"kind": "npz", "path": "x.npz", "size": 8, "classes": list(range(labels)), "declared_size": size}
    content = {"private": private, "api": {"kind": "glyphs"}, "privacy": {"epsilon": epsilon, "delta": 1e-6}}
    evolution = settle(Recipe.parse(content, "the benchmark"), Declared(info)).recipe.evolution
    assert isinstance(evolution.population, list)
    signals = forecast(Recipe.parse(content | {"evolution": evolution.given}, "the benchmark"), None).signals
    signal = float(np.mean([(one.fewest or 0) / one.sigma for one in signals]))
    return f"{evolution.iterations} × {evolution.population[0] // labels:,}, {evolution.neighbors}, {signal:.2g}"


class Declared:
    """What stands in for a generator here: what it declares."""

    def __init__(self, info: PluginInfo) -> None:
        self.info = info


if __name__ == "__main__":
    main()
