"""How the settings of the trained methods were chosen: on digits of other fonts, which stand in for private ones.

    python benchmarks/methods_search.py FONTS [--methods NAME …] [--epsilon E …]
    python benchmarks/methods_search.py --page

FONTS holds the fonts of demo_settings.py. Images, recipes and measures are those of benchmarks/methods.py (cpu), with
each candidate of methods_choice.py in turn, once. A cell that results/methods_search.jsonl has already is not run
again, so the search may be cut at any time and gone on with. Writes results/methods_search.md. The rule: the highest
mean of LR's and the MLP's accuracy at that ε; methods.py takes it from here once all candidates were measured.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a cell's seconds are of one core

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from demo_settings import stand_in
from methods import cell_of, code_of
from methods_choice import CANDIDATES, LEFT_OUT, SEARCHED, best_of, candidates, key_of_candidate, searched
from methods_settings import SETTINGS, recipe_with
from methods_table import LABELS
from record import keep, where

SETTING = SETTINGS["cpu"]
EPSILONS = (1.0, 10.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fonts", nargs="?", help="folder of the fonts that demo_settings.py names")
    parser.add_argument("--methods", nargs="+", choices=CANDIDATES, default=list(CANDIDATES))
    parser.add_argument("--epsilon", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--page", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    if arguments.fonts is None and not arguments.page:
        parser.error("name the folder of fonts, or give --page")
    if not arguments.page:
        with tempfile.TemporaryDirectory() as folder:
            search(arguments.methods, arguments.epsilon, stand_ins(arguments.fonts, Path(folder)))
    keep("methods_search.md", page(searched()))


def search(methods: list[str], epsilons: list[float], files: tuple[Path, Path]) -> None:
    """Measure what is missing, a cell at a time."""
    for method in methods:
        for epsilon in epsilons:
            for name, api in candidates(method, epsilon).items():
                if (key := key_of_candidate(method, epsilon, name)) in searched():
                    continue
                named = {"key": key, "method": method, "name": name, "epsilon": epsilon}
                recipe = recipe_with(api, method, epsilon, 0, SETTING, files[0])
                found = named | {"where": where(), "code": code_of(method)}
                found |= cell_of(recipe, 0, SETTING, files, epochs=None)
                print(json.dumps(found, ensure_ascii=False), flush=True)
                with SEARCHED.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(found, ensure_ascii=False) + "\n")


def stand_ins(fonts: str, folder: Path) -> tuple[Path, Path]:
    """The digits that stand in for private ones, and those to test on, as files."""
    found = stand_in(fonts, "boxed", 1)
    parts = (found.private.array, found.private_labels), (found.test.array, found.test_labels)
    paths = folder / "private.npz", folder / "test.npz"
    for path, (images, labels) in zip(paths, parts, strict=True):
        np.savez(path, images=images, labels=labels.astype(np.str_))
    return paths


def page(found: dict[str, dict[str, Any]]) -> str:
    """A row for each candidate, the chosen ones in bold."""
    text = [
        "# The settings of the trained methods, on digits that stand in for private ones",
        "",
        f"4,000 digits at {SETTING.side}×{SETTING.side}, drawn from handwriting fonts (`boxed` of demo_settings.py). "
        f"Accuracy on 1,000 others of classifiers trained on {SETTING.samples:,} samples, Fréchet distance of pixels; "
        "one run each, so a few hundredths mean nothing. Bold: chosen, by the mean of LR and MLP. Seconds of one core "
        "of a machine that did other things, too. δ = 1e-5. `python benchmarks/methods_search.py FONTS`",
        "",
        "| method | ε | settings | LR | MLP | Fréchet | fit, s | peak, GB |",
        "| --- | ---: | --- |" + " ---: |" * 5,
    ]
    for method in CANDIDATES:
        for epsilon in EPSILONS:
            best = best_of(method, epsilon, found)
            for name in candidates(method, epsilon):
                if (one := found.get(key_of_candidate(method, epsilon, name))) is not None:
                    text.append(row(one, chosen=name == best))
    missing = [
        f"{LABELS[method]} at ε = {epsilon:g}"
        for method in CANDIDATES
        for epsilon in EPSILONS
        if best_of(method, epsilon, found) is None
    ]
    places = sorted({one["where"].partition(";")[0] for one in found.values()})
    text += ["", f"Measured {' to '.join(dict.fromkeys((places[0], places[-1])))}; {where().split('; ', 1)[1]}."]
    text += [f"\nLeft out to save time: {left_out(*at)}." for at in LEFT_OUT]
    if missing:
        text += ["", f"Not all candidates were measured yet: {', '.join(missing)}."]
    return "\n".join(text)


def left_out(method: str, epsilon: float) -> str:
    return f"{LABELS[method]} at ε = {epsilon:g} with {'; '.join(LEFT_OUT[method, epsilon])}"


def row(one: dict[str, Any], *, chosen: bool) -> str:
    name = f"**{one['name']}**" if chosen else one["name"]
    scores = [f"{one['accuracy'][each]:.3f}" for each in ("logistic_regression", "mlp")]
    costs = [f"{one['frechet']:.2f}", f"{one['fit_seconds']:.0f}", f"{one['peak_gb']:.1f}"]
    return f"| {LABELS[one['method']]} | {one['epsilon']:g} | {name} | {' | '.join([*scores, *costs])} |"


if __name__ == "__main__":
    main()
