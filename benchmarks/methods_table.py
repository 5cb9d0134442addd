"""The table and the plot of benchmarks/methods.py."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from record import keep

LABELS = {
    "real": "the private digits themselves (not DP)",
    "drawn": "as many drawn digits (no private data)",
    "pe": "PE over drawn text",
    "one_vote": "one vote of its budget over drawn text, nothing varied (seconds: PE's)",
    "dp_merf": "DP-MERF",
    "dpdm": "DPDM",
    "pdp_diffusion": "PDP-Diffusion",
    "dp_ldm": "DP-LDM",
    "privimage": "PrivImage",
    "dp_imgsyn": "DP-ImgSyn",
    "dp_sad": "DP-SAD",
    "dp_sad_drawn": "DP-SAD, its teacher of drawn digits",
    "privimage+pe": "PrivImage with ε/2, then PE with ε/2",
    "dp_merf+pe": "DP-MERF with ε/2, then PE with ε/2",
    "dp_imgsyn+pe": "DP-ImgSyn with ε/2, then PE with ε/2",
    "dp_sad_drawn+pe": "DP-SAD of drawn digits with ε/2, then PE with ε/2",
}
SHORT = {"real": "private", "drawn": "drawn"}
CLASSIFIERS = {"logistic_regression": "LR", "mlp": "MLP", "resnet9": "ResNet-9"}
LOAD = re.compile(r"load ([\d.]+)")
PICTURES = Path(__file__).parent.parent / "docs" / "images"


def write_table(setting: str, found: list[dict[str, Any]]) -> None:
    """results/methods-SETTING.md and docs/images/methods-SETTING.png of the cells, the last one of each key."""
    cells: dict[tuple[str, float, int], dict[str, Any]] = {
        (one["method"], one["epsilon"], one["run"]): one for one in found
    }
    groups: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for (method, epsilon, _), one in cells.items():
        groups.setdefault((method, epsilon), []).append(one)
    ordered = sorted(groups, key=lambda each: (each[1], list(LABELS).index(each[0])))
    lines = [row(method, epsilon, groups[method, epsilon]) for method, epsilon in ordered]
    text = "\n".join(
        [
            f"# PE and the methods that train, on the same digits ({setting} setting)",
            "",
            "Accuracy on 1,000 held-out real digits of classifiers trained on the samples alone; Fréchet distance of "
            "pixels from the private digits; mean ± standard deviation over runs with fresh noise. δ = 1e-5. "
            "Seconds are of one core, public pre-training included, on a machine that often did other things, too: "
            "the same work took up to three times as long. "
            f"{in_runs('resnet9', found)}{everywhere(found)}. `python benchmarks/methods.py --setting {setting}`",
            "",
            f"| ε | method | {' | '.join(CLASSIFIERS.values())} | Fréchet | fit, s | sample, s | peak, GB | runs |",
            f"| ---: | --- |{' ---: |' * (len(CLASSIFIERS) + 5)}",
            *lines,
            "",
            *queries(cells.values()),
        ]
    )
    keep(f"methods-{setting}.md", text)
    plot(setting, groups)


def in_runs(classifier: str, found: list[dict[str, Any]]) -> str:
    """A sentence, if some runs lack the classifier."""
    runs = sorted({one["run"] + 1 for one in found if classifier in one["accuracy"]})
    whole = all(classifier in one["accuracy"] for one in found)
    return "" if whole else f"{CLASSIFIERS[classifier]} learned from run {', '.join(map(str, runs))} only. "


def everywhere(found: list[dict[str, Any]]) -> str:
    """Where the last cell was measured, with the dates and the loads of all."""
    loads = sorted(float(match[1]) for one in found if (match := LOAD.search(one["where"])))
    dates = sorted({one["where"].partition(";")[0] for one in found})
    where = found[-1]["where"].partition(";")[2]
    period = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return f"{period};{LOAD.sub(f'load {loads[0]:g} to {loads[-1]:g}', where) if loads else where}"


def queries(cells: Iterable[dict[str, Any]]) -> list[str]:
    """What PrivImage's query found for the digits 0 to 9, run by run."""
    found = [
        f"- ε = {one['epsilon']:g}, {LABELS[one['method']]}, run {one['run'] + 1}: {' '.join(one['semantics'])} "
        f"({one['digits_found']} of 10 digits by name)"
        for one in sorted(cells, key=lambda one: (list(LABELS).index(one["method"]), one["epsilon"], one["run"]))
        if "semantics" in one
    ]
    return (
        ["The semantics that PrivImage's query chose for 0, 1, …, 9, most frequent first:", "", *found, ""]
        if found
        else []
    )


def row(method: str, epsilon: float, runs: list[dict[str, Any]]) -> str:
    cells = [spread([one["accuracy"][name] for one in runs if name in one["accuracy"]], 3) for name in CLASSIFIERS]
    cells.append(spread([one["frechet"] for one in runs], 2))
    for name, digits in (("fit_seconds", 0), ("sample_seconds", 0), ("peak_gb", 1)):
        values = [one[name] for one in runs if name in one]
        cells.append(f"{statistics.mean(values):.{digits}f}" if values else "–")
    return f"| {epsilon or '–':{'g' if epsilon else ''}} | {LABELS[method]} | {' | '.join(cells)} | {len(runs)} |"


def spread(values: list[float], digits: int) -> str:
    if not values:
        return "–"
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def plot(setting: str, groups: dict[tuple[str, float], list[dict[str, Any]]]) -> None:
    """Accuracy of each classifier, a row for each method: from the least ε to the largest; a dotted line costs none."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    methods = [method for method in reversed(LABELS) if any(key == method and epsilon for key, epsilon in groups)]
    figure = Figure(figsize=(9.5, 0.3 * len(methods) + 1.3), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(CLASSIFIERS), sharey=True)
    for axes, (name, title) in zip(panels, CLASSIFIERS.items(), strict=True):
        for (method, epsilon), runs in sorted(groups.items()):
            values = [one["accuracy"][name] for one in runs if name in one["accuracy"]]
            if values and epsilon:
                draw(axes, methods.index(method), epsilon, values)
            elif values:
                axes.axvline(statistics.mean(values), linestyle=":", color="grey", linewidth=1)
                axes.annotate(SHORT[method], (statistics.mean(values), len(methods) - 0.5), fontsize=7, ha="center")
        axes.grid(axis="y", color="0.93")
        axes.set(title=title, xlim=(0, 1.02), ylim=(-0.6, len(methods) + 0.1))
        axes.set_xlabel("accuracy on real digits", fontsize=8)
        axes.tick_params(labelsize=8)
    panels[0].set_yticks(range(len(methods)), [LABELS[method] for method in methods])
    figure.legend(*marks(panels[0]), fontsize=8, loc="outside lower left", ncols=2, frameon=False)
    FigureCanvasAgg(figure).print_figure(PICTURES / f"methods-{setting}.png")


def draw(axes: Any, place: int, epsilon: float, values: list[float]) -> None:
    """One method at one ε: its mean, and from the least to the most of its runs."""
    mean, shift = statistics.mean(values), 0.13 if epsilon > 1 else -0.13
    face = "C0" if epsilon > 1 else "white"
    ends = [[mean - min(values)], [max(values) - mean]]
    style: dict[str, Any] = {"color": "C0", "markerfacecolor": face, "markersize": 5, "capsize": 2, "linewidth": 1}
    axes.errorbar([mean], [place + shift], xerr=ends, marker="o", label=f"ε = {epsilon:g}", **style)


def marks(axes: Any) -> tuple[list[Any], list[str]]:
    """A legend's entries: one for each ε."""
    found = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    return list(found.values()), list(found)
