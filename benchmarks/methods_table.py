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
            "the same work took up to twice as long. "
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
    """Where the last cell was measured, with the loads of all."""
    loads = sorted(float(match[1]) for one in found if (match := LOAD.search(one["where"])))
    return LOAD.sub(f"load {loads[0]:g} to {loads[-1]:g}", found[-1]["where"]) if loads else str(found[-1]["where"])


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
    """Accuracy of two classifiers against ε, a line for each method; hybrids are dashed, in the colour of their fit."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), dpi=150, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, name in zip(panels, ("mlp", "resnet9"), strict=True):
        for method, label in LABELS.items():
            found = {
                epsilon: values
                for (other, epsilon), runs in sorted(groups.items())
                if other == method and (values := [one["accuracy"][name] for one in runs if name in one["accuracy"]])
            }
            if 0 in found:
                axes.axhline(statistics.mean(found[0]), linestyle=":", color="grey", linewidth=1)
                axes.annotate(label, (0.85, statistics.mean(found[0])), fontsize=6, color="grey", va="bottom")
            elif found:
                draw(axes, method, label, found)
        axes.set_xscale("log")
        axes.set_xticks([1, 10], ["1", "10"])
        axes.minorticks_off()
        axes.set(xlabel="ε", title=CLASSIFIERS[name], ylim=(0, 1), xlim=(0.8, 12.5))
    panels[0].set_ylabel("accuracy on real digits")
    panels[1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    FigureCanvasAgg(figure).print_figure(PICTURES / f"methods-{setting}.png")


def draw(axes: Any, method: str, label: str, found: dict[float, list[float]]) -> None:
    """One method's line: means, and from the least to the most of its runs."""
    base, _, evolved = method.partition("+")
    style: dict[str, Any] = {"linestyle": "--", "markerfacecolor": "white"} if evolved else {}
    means = [statistics.mean(values) for values in found.values()]
    low = [mean - min(values) for mean, values in zip(means, found.values(), strict=True)]
    high = [max(values) - mean for mean, values in zip(means, found.values(), strict=True)]
    color = f"C{list(LABELS).index(base)}"
    axes.errorbar(list(found), means, [low, high], marker="o", capsize=2, label=label, color=color, **style)
