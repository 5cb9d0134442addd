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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from choice_trials import (
    BLIND,
    DIGITS,
    FEW,
    KEEPING,
    LIMITED,
    PICTURES,
    SIGMA,
    blind_measurer,
    digits_measurer,
    few_measurer,
    keeping_measurer,
    limited_measurer,
    pictures_measurer,
)
from record import RESULTS, keep, where

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fonts", help="folder of fonts that stand in for handwriting")
    parser.add_argument("--pictures", type=Path, help="folder of the stand-in pictures")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.fonts:
        measure(DIGITS, digits_measurer(arguments.fonts), 1)
        measure(KEEPING, keeping_measurer(arguments.fonts), 2)
        measure(LIMITED, limited_measurer(arguments.fonts), 2)
        measure(BLIND, blind_measurer(arguments.fonts), 2)
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


def page() -> str:
    found = rows()
    digits = [row for row in found if len(row["setting"]) == 6]
    kept = [row for row in found if len(row["setting"]) == 4]
    limited = [row for row in found if len(row["setting"]) == 5]
    blind = [row for row in found if len(row["setting"]) == 8]
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
    lines += ["", "## Few images", "", *limited_lines(limited)]
    lines += ["", "## A generator that knows no labels", "", *blind_lines(blind)]
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


def limited_lines(limited: list[dict[str, Any]]) -> list[str]:
    """One vote, taken as it is or varied, and several, where a limit allows few images."""
    lines = [
        f"{limited[-1]['where']}. ε = 1, 4,000 records of ten labels;",
        "mean (range) of the runs. A limit counts all that a run may ask for; what is kept is not asked for, so",
        "several votes use less of it. Winners are kept where there are several.",
        "",
        "| limit | candidates of a label | in the end | q | H, σ | at last | LR | MLP | images |",
        "| --: | --- |" + " --: |" * 3 + " --- |" + " --: |" * 3,
    ]
    for limit, row in sorted(((limit_of(row["setting"]), row) for row in limited), key=lambda pair: pair[0]):
        population, final, neighbors, threshold, last = row["setting"]
        runs = [{"LR": run["LR"], "MLP": run["MLP"]} for run in row["runs"]]
        images = np.mean([run["images"] for run in row["runs"]])
        told = [f"{limit:,}", ", ".join(map(str, population)), str(final), str(neighbors), f"{threshold:g}"]
        told.append("varied" if last else "taken as chosen")
        lines.append(f"| {' | '.join([*told, *spread({'runs': runs}), f'{images:,.0f}'])} |")
    return lines


def limit_of(setting: list[Any]) -> int:
    """The limit on images, of those tried, that a setting keeps within."""
    population, final, *_, last = setting
    most = 10 * (sum(population) + (final if last else 0)) / 0.95
    return min((1000, 1500, 2500, 5000), key=lambda each: abs(each - most))


def blind_lines(blind: list[dict[str, Any]]) -> list[str]:
    """What the threshold and what is kept are worth where the generator knows no labels."""
    lines = [
        "Digits of ten labels, from drawn text that shows any digit whatever the label; mean (range) of the runs.",
        "Degrees .7 to .4; a variation of degree v has another digit with a probability of v². One vote is",
        "`systematic`, its choice varied at .4.",
        "",
        "| generator | records | ε | candidates of a label | in the end | q | kept | H, σ | LR | MLP | images |",
        "| --- | --: | --: | --- | --: | --: | --- |" + " --: |" * 4,
    ]
    for row in blind:
        generator, records, epsilon, population, *rest = row["setting"]
        runs = [{"LR": run["LR"], "MLP": run["MLP"]} for run in row["runs"]]
        images = np.mean([run["images"] for run in row["runs"]])
        told = [generator, f"{records:,}", f"{epsilon:g}", ", ".join(map(str, population)), *map(str, rest)]
        lines.append(f"| {' | '.join([*told, *spread({'runs': runs}), f'{images:,.0f}'])} |")
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
