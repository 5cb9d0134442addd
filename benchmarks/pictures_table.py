"""The table and the picture of benchmarks/pictures.py."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
from methods_table import everywhere
from record import RESULTS, keep

from adapters.public_files import SUFFIXES
from pe.data.population import Population
from pe.data.tables import files_below
from pe.engine.demo.picture_set import CLASSES
from pe.report.pictures import contact_sheet
from pe.store.run import Run

POOLS = {
    "unlabelled": "public pictures without classes",
    "by_class": "public pictures with classes",
    "diffusion": "the small diffusion model (all pictures at its size)",
}
SETS = {
    "synthetic": "PE data",
    "unevolved": "un-evolved",
    "one_vote": "one vote",
    "random_selection": "random selection",
}
_SHOWN = "twitter-"  # the licence of the other makers' pictures is not clear, so they are not shown


def write_table(found: list[dict[str, Any]]) -> None:
    """results/pictures.md of the cells, the last one of each, of those with the last evolution that was measured."""
    scale = next(one for one in reversed(found) if one["key"] == "fixed")["accuracy"]
    cells = {(one["embedding"], one["pool"], one["epsilon"], one["run"]): one for one in found if "pool" in one}
    groups: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    for (embedding, pool, epsilon, _), one in cells.items():
        groups.setdefault((embedding, pool, epsilon), []).append(one)
    for key, group in groups.items():
        last = max(group, key=found.index)
        groups[key] = [one for one in group if one.get("evolution") == last.get("evolution")]
    ordered = sorted(groups, key=lambda each: (each[0], list(POOLS).index(each[1]), each[2]))
    text = "\n".join(
        [
            "# The default recipe on colour pictures",
            "",
            "Accuracy on held-out pictures of the private maker (Google), of a linear probe on features of "
            "EfficientNet-Lite0 that was trained on one set of pictures alone; mean ± standard deviation over runs "
            "with other seeds and fresh noise. δ = 1e-5. The recipe is that of `pe demo --data pictures`. For "
            f"comparison: trained on the private pictures themselves (not DP) {scale['real']:.3f}, on the public ones "
            f"with their true classes {scale['pool']:.3f}; guessing {scale['chance']:.3f}. Seconds are those of the "
            f"run alone, with the vectors of pool and private pictures kept. {everywhere(list(cells.values()))}. "
            "`python benchmarks/pictures.py`",
            "",
            f"| embedding of the votes | pool | ε | {' | '.join(SETS.values())} | seconds | runs |",
            f"| --- | --- | ---: |{' ---: |' * (len(SETS) + 2)}",
            *[row(*key, groups[key]) for key in ordered],
            "",
        ]
    )
    keep("pictures.md", text)


def row(embedding: str, pool: str, epsilon: float, runs: list[dict[str, Any]]) -> str:
    cells = [spread([one["accuracy"][name] for one in runs if name in one["accuracy"]]) for name in SETS]
    seconds = statistics.mean(one["seconds"] for one in runs)
    return f"| {embedding} | {POOLS[pool]} | {epsilon:g} | {' | '.join(cells)} | {seconds:.0f} | {len(runs)} |"


def spread(values: list[float]) -> str:
    if not values:
        return "–"
    mean = f"{statistics.mean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean


def write_sheet(run: Run, pool: Path, file: Path) -> None:
    """The run's evolution, S_0 above S_T, of those pictures of the pool that may be shown."""
    shown = np.array([path.name.startswith(_SHOWN) for path in files_below(pool, SUFFIXES)])
    populations = [of_the_shown(population, shown) for population in run.populations()]
    file.write_bytes(contact_sheet(populations, CLASSES))


def of_the_shown(population: Population, shown: np.ndarray) -> Population:
    """The members whose picture of the pool is one of `shown`, or all, where that leaves none."""
    members = np.flatnonzero(shown[population.conditions["pool"]])
    return population.take(members) if members.size else population


def write_frontier(found: list[dict[str, Any]]) -> None:
    """results/pictures_calls.md and docs/images/pictures_calls.png: accuracy against the images asked for."""
    groups: dict[tuple[float, int, int], list[dict[str, Any]]] = {}
    for one in found:
        groups.setdefault((one["epsilon"], one["votes"], one["limit"]), []).append(one)
    lines = [
        "# Accuracy on colour pictures against API images",
        "",
        "The recipe of `pe demo --data pictures`, its pool without classes and its embedding, with `limits.max_images` "
        "and `evolution.iterations` given and all else chosen by the rule; accuracy of a linear probe, as in "
        f"[pictures.md](pictures.md); mean ± standard deviation. A picture of the pool that is asked for again counts "
        f"again. {everywhere(found)}. `python benchmarks/pictures.py --frontier`",
        "",
        "![Accuracy against API images](../../docs/images/pictures_calls.png)",
        "",
        "| ε | votes | S_0 … S_T | q | API images | accuracy | runs |",
        "| ---: | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    curves: dict[str, list[tuple[float, list[float]]]] = {}
    for (epsilon, votes, _), runs in sorted(groups.items()):
        evolution, images = runs[0]["evolution"], statistics.mean(one["images"] for one in runs)
        scores = [one["accuracy"]["synthetic"] for one in runs]
        sizes = ", ".join(f"{size:,}" for size in evolution["population"])
        lines.append(
            f"| {epsilon:g} | {votes} | {sizes.replace(', ', ' · ')} | {evolution['neighbors']} | {images:,.0f} | "
            f"{spread(scores)} | {len(runs)} |"
        )
        kept = "one vote" if votes == 1 else f"{votes} votes, winners kept"
        curves.setdefault(f"{kept}, ε = {epsilon:g}", []).append((images, scores))
    keep("pictures_calls.md", "\n".join([*lines, ""]))
    plot_frontier(curves)


def plot_frontier(curves: dict[str, list[tuple[float, list[float]]]]) -> None:
    """A line for each, with the range of its runs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    for name, points in curves.items():
        images, runs = zip(*points, strict=True)
        means = [statistics.mean(scores) for scores in runs]
        ends = [[mean - min(scores) for mean, scores in zip(means, runs, strict=True)]]
        ends.append([max(scores) - mean for mean, scores in zip(means, runs, strict=True)])
        axes.errorbar(images, means, yerr=ends, marker="o", markersize=4, capsize=2, linewidth=1, label=name)
    axes.set(xscale="log", xlabel="API images", ylabel="accuracy on real pictures")
    axes.set_xticks([1000, 2000, 5000, 10000, 20000], ["1,000", "2,000", "5,000", "10,000", "20,000"], minor=False)
    axes.minorticks_off()
    axes.grid(color="0.93")
    axes.legend(fontsize=8, frameon=False)
    FigureCanvasAgg(figure).print_figure(RESULTS.parent.parent / "docs" / "images" / "pictures_calls.png")
