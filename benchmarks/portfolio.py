"""A portfolio of three families of fonts: do the votes find the right one, and what does not knowing it cost?

    python benchmarks/portfolio.py FOLDER [--runs N]

FOLDER holds .ttf and .otf files (results/portfolio.md names those used, and the Debian packages that hold them, which
`apt-get download` and `dpkg -x` unpack without installing). The demo's recipe on the demo's private digits, ε = 1, with
the glyphs of three families as a portfolio, and of each family alone, at equal numbers of images. Cells that are in
results/portfolio.jsonl already are not run again. Writes results/portfolio.md.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported

import argparse
import json
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from record import RESULTS, keep, where

from adapters.glyphs import find_fonts
from pe.data.samples import GENERATOR
from pe.engine.demo.digits import RECIPES
from pe.engine.execution import Surroundings, run_recipe
from pe.evaluation.utility import accuracies
from pe.private.npz import MnistSample
from pe.recipe.schema import Recipe
from pe.report.sections import noisy_votes, public_plan
from pe.store.run import Run
from pe.store.writer import read_journal

FAMILIES = {
    "serif": "C059-Roman C059-Italic C059-Bold NimbusRoman-Regular NimbusRoman-Italic NimbusRoman-Bold P052-Roman "
    "P052-Italic P052-Bold URWBookman-Light URWBookman-LightItalic URWBookman-Demi",
    "mono": "NimbusMonoPS-Regular NimbusMonoPS-Italic NimbusMonoPS-Bold NimbusMonoPS-BoldItalic",
    "hand": "BecauseWeBuild-Regular BecauseWeConnect-Regular BecauseWeCreate-Regular BecauseWeLearn-Regular "
    "BecauseWeMentor-Regular BecauseWeOrganize-Regular Breip dkg dkgIt kiloji kiloji_p NanumPen",
}
PACKAGES = "fonts-breip fonts-bwht fonts-dkg-handwriting fonts-kiloji fonts-nanum-extra fonts-urw-base35"
PRINTED = {"warp": 0.0, "rotation": [-3, 3], "slant": [0, 0], "width": [0.9, 1.1], "height": [0.9, 1.1]}
RIGHT, ALL = "hand", "portfolio"
CELLS = (
    *("serif", "mono", "hand", ALL, "serif, as printed", "mono, as printed", f"{ALL}, as printed"),
    *(f"{name}, q = {q}" for q in (4, 1) for name in ("hand", ALL, f"{ALL}, as printed")),
)
KEPT = RESULTS / "portfolio.jsonl"


def recipe_of(name: str, run: int, fonts: Path) -> dict[str, Any]:
    """The demo's recipe with one family or all.

    With `, as printed` all but handwriting is drawn upright; with `, q = 4` a record votes for 4 candidates, not 32.
    """
    content: dict[str, Any] = yaml.safe_load(RECIPES["glyphs"].read_text(encoding="utf-8"))
    named, *changes = name.split(", ")
    for change in changes:
        if change.startswith("q = "):
            content["evolution"]["neighbors"] = int(change.removeprefix("q = "))

    def drawn(family: str) -> dict[str, Any]:
        own = PRINTED if "as printed" in changes and family != RIGHT else {}
        return {"kind": "glyphs", "fonts": str(fonts / family), **own}

    families = [{"name": family, **drawn(family)} for family in FAMILIES]
    return content | {"seed": run, "api": {"kind": "portfolio", "of": families} if named == ALL else drawn(named)}


def cell(name: str, run: int, fonts: Path) -> dict[str, Any]:
    """One run: accuracies on 1,000 held-out digits, images, seconds; of the portfolio, how the families fared."""
    started = time.monotonic()
    test = MnistSample(split="test").open()
    images, _ = next(test.blocks(len(test)))
    with tempfile.TemporaryDirectory() as folder:
        done = run_recipe(Recipe.parse(recipe_of(name, run, fonts), name), Path(folder) / "run", Surroundings())
        with read_journal(done) as journal:
            spent = journal.totals().usage.images
        synthetic = done.synthetic
        scores = accuracies(synthetic.samples, np.asarray(synthetic.labels), images, test.labels, run)
        shares = shares_of(done) if name.startswith(ALL) else {}
    return {"images": spent, "seconds": round(time.monotonic() - started), "scores": scores} | shares


def shares_of(run: Run) -> dict[str, Any]:
    """Of each family: its share of S_0 … S_T, and of the noisy votes for S_0 … S_T−1."""
    made = [np.asarray(population.conditions[GENERATOR]) for population in run.populations()]
    votes = [noisy_votes(run, step) for step in public_plan(run)[1].steps]
    return {
        "samples": {family: [float(np.mean(one == family)) for one in made] for family in FAMILIES},
        "votes": {
            family: [float(found[one == family].sum() / found.sum()) for one, found in zip(made, votes, strict=False)]
            for family in FAMILIES
        },
    }


def copy_fonts(folder: Path, to: Path) -> None:
    """Each family's files in a folder of its own."""
    found = find_fonts(folder)
    for family, names in FAMILIES.items():
        if missing := [name for name in names.split() if name not in found]:
            raise SystemExit(f"{folder} lacks {', '.join(missing)}: unpack {PACKAGES} into it.")
        (to / family).mkdir()
        for name in names.split():
            (to / family / found[name].name).symlink_to(found[name].resolve())


def page(cells: list[dict[str, Any]]) -> str:
    """What was found, as tables."""
    runs = max(one["run"] for one in cells) + 1
    found = {name: [one for one in cells if one["name"] == name] for name in CELLS}
    return "\n".join(
        [
            "# A portfolio of three families of fonts",
            "",
            f"{where()}. The demo's private digits and recipe, ε = 1, δ = 1e-5; mean ± standard deviation of {runs} "
            "runs with fresh noise. `python benchmarks/portfolio.py FOLDER`",
            "",
            "All families are drawn with the settings of `glyphs`; *as printed*, `serif` and `mono` are upright and "
            "straight, as print is, and `hand` as before. A record votes for its q nearest candidates: 32, as in the "
            "demo, unless stated. A portfolio's `explore` is the default, .05.",
            "",
            "| generator | API images | logistic regression | MLP |",
            "| --- | ---: | ---: | ---: |",
            *(f"| {name} | {row(of)} |" for name, of in found.items()),
            "",
            *(line for name in CELLS if name.startswith(ALL) for line in fared(name, found)),
            *(f"- `{family}`: {', '.join(names.split())}." for family, names in FAMILIES.items()),
            "",
            f"Debian packages that hold them: {', '.join(PACKAGES.split())}. Some of `hand` drew the stand-in digits "
            "by which the demo's settings were chosen ([page](demo_settings.md)); the private digits here are MNIST's.",
        ]
    )


def fared(name: str, found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """How the families of a portfolio fared, and what not knowing the right one cost."""
    alone = ", ".join([RIGHT, *(part for part in name.split(", ") if part.startswith("q"))])
    cells, right = found[name], found[alone]
    lost = [mean(right, key) - mean(cells, key) for key in ("logistic_regression", "mlp")]
    rising = sum(rises(one["samples"][RIGHT]) for one in cells)
    return [
        f"## The {name}",
        "",
        f"Accuracy below `{alone}`, alone: {lost[0]:.3f} (LR), {lost[1]:.3f} (MLP); the goal is at most .02. The share "
        f"of `{RIGHT}` rises in every iteration in {rising} of {len(cells)} runs; the goal is all.",
        "",
        "Share of the samples S_t and, in brackets, of the noisy votes for them; mean of the runs:",
        "",
        f"| family | {' | '.join(f'S{t}' for t in range(5))} |",
        f"| --- |{' ---: |' * 5}",
        *(family_row(cells, family) for family in FAMILIES),
        "",
    ]


def rises(shares: list[float]) -> bool:
    """Whether each is larger than the one before."""
    return all(before < after for before, after in pairwise(shares))


def mean(cells: list[dict[str, Any]], key: str) -> float:
    """Of an accuracy."""
    return statistics.mean(one["scores"][key] for one in cells) if cells else float("nan")


def row(cells: list[dict[str, Any]]) -> str:
    """Images and accuracies."""
    spread = [
        f"{mean(cells, key):.3f} ± {np.std([one['scores'][key] for one in cells], ddof=min(len(cells) - 1, 1)):.3f}"
        for key in ("logistic_regression", "mlp")
    ]
    return f"{cells[0]['images']:,} | {' | '.join(spread)}"


def family_row(cells: list[dict[str, Any]], family: str) -> str:
    samples = np.mean([one["samples"][family] for one in cells], axis=0)
    votes = np.mean([one["votes"][family] for one in cells], axis=0)
    told = [f"{100 * made:.0f} % ({100 * got:.0f} %)" for made, got in zip(samples, votes, strict=False)]
    return f"| {family} | {' | '.join([*told, f'{100 * samples[-1]:.0f} %'])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fonts", type=Path, help="folder of fonts")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    cells = [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()] if KEPT.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        copy_fonts(arguments.fonts, Path(folder))
        for run in range(arguments.runs):
            for name in CELLS:
                if any((one["name"], one["run"]) == (name, run) for one in cells):
                    continue
                cells.append({"name": name, "run": run, "where": where(), **cell(name, run, Path(folder))})
                print(json.dumps(cells[-1]), flush=True)
                with KEPT.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(cells[-1]) + "\n")
    keep("portfolio.md", page(cells))


if __name__ == "__main__":
    main()
