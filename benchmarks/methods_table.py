"""The table and the plot of benchmarks/methods.py."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from methods_choice import HARDLY_ANY_NOISE
from record import keep

LABELS = {
    "real": "as many of the private digits (not DP)",
    "drawn": "as many drawn digits (no private data)",
    "pe": "PE over drawn text",
    "one_vote": "one vote of its budget over drawn text, nothing varied (seconds: PE's)",
    "dp_gaussian": "DP-Gaussian",
    "central_images": "central images",
    "dp_merf": "DP-MERF",
    "dp_mepf": "DP-MEPF",
    "dpgan": "DPGAN",
    "privimage_gan": "PrivImage+G",
    "dpdm": "DPDM",
    "dp_feta": "DP-FETA",
    "pdp_diffusion": "PDP-Diffusion, 40 steps",
    "dp_ldm": "DP-LDM, 40 steps",
    "privimage": "PrivImage",
    "dp_imgsyn": "DP-ImgSyn",
    "dp_sad": "DP-SAD, 40 steps",
    "dp_sad_drawn": "DP-SAD, 40 steps, its teacher of drawn digits",
    "dp_gaussian+pe": "DP-Gaussian with ε/2, then PE with ε/2",
    "central_images+pe": "central images with ε/2, then PE with ε/2",
    "privimage+pe": "PrivImage, 40 steps, with ε/2, then PE with ε/2",
    "dp_merf+pe": "DP-MERF with ε/2, then PE with ε/2",
    "dp_imgsyn+pe": "DP-ImgSyn with ε/2, then PE with ε/2",
    "dp_sad_drawn+pe": "DP-SAD of drawn digits, 40 steps, with ε/2, then PE with ε/2",
}
TESTED = 1000
SHORT_TRAINING = tuple(method for method, label in LABELS.items() if "40 steps" in label)
"""Left out of docs/methods.md and the picture: 40 steps say nothing of a method."""

SHORT = {"real": "private", "drawn": "drawn"}
CLASSIFIERS = {"logistic_regression": "LR", "mlp": "MLP", "resnet9": "ResNet-9"}
LOAD = re.compile(r"load ([\d.]+)")
PICTURED = "cpu", "gpu"
DOCS = Path(__file__).parent.parent / "docs" / "methods.md"
MARKS = "<!-- benchmarks/methods.py --page writes this table -->", "<!-- end of the table -->"
PICTURES = Path(__file__).parent.parent / "docs" / "images"


def write_table(setting: str, found: list[dict[str, Any]], codes: dict[str, str]) -> None:
    """results/methods-SETTING.md of the cells, for some the picture in docs/images, for cpu docs/methods.md's table.

    Args:
        setting: its name.
        found: the cells.
        codes: method → digest of its code as it is now.
    """
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
            f"Accuracy on {TESTED:,} held-out real digits of classifiers trained on the samples alone; Fréchet "
            "distance of pixels from the private digits; mean ± standard deviation over runs with fresh noise, of "
            "an accuracy with that of another such test set, √(p(1−p)/1000), of one run that alone. All methods have "
            "the same test digits, so two of them differ by less than that by chance. δ = 1e-5. "
            "Seconds are of one core, public pre-training included, on a machine that often did other things, too: "
            "the same work took several times as long. "
            f"{in_runs('resnet9', found)}{everywhere(found)}. `python benchmarks/methods.py --setting {setting}`",
            "",
            "At ε = 10⁶ there is hardly any noise, and all else is as at ε = 10: what the method could be worth.",
            "",
            f"| ε | method | {' | '.join(CLASSIFIERS.values())} | Fréchet | fit, s | sample, s | peak, GB | runs |",
            f"| ---: | --- |{' ---: |' * (len(CLASSIFIERS) + 5)}",
            *lines,
            "",
            *stale(cells.values(), codes),
            *queries(cells.values()),
        ]
    )
    keep(f"methods-{setting}.md", text)
    told = {key: runs for key, runs in groups.items() if setting != "cpu" or key[0] not in SHORT_TRAINING}
    if setting in PICTURED:
        plot(setting, told)
    if setting == "cpu":
        write_docs(told)


def in_runs(classifier: str, found: list[dict[str, Any]]) -> str:
    """A sentence, if some runs lack the classifier."""
    runs = sorted({one["run"] + 1 for one in found if classifier in one["accuracy"]})
    whole = all(classifier in one["accuracy"] for one in found)
    return "" if whole else f"{CLASSIFIERS[classifier]} learned from run {', '.join(map(str, runs))} at most. "


def everywhere(found: list[dict[str, Any]]) -> str:
    """Where the last cell was measured, with the dates and the loads of all."""
    loads = sorted(float(match[1]) for one in found if (match := LOAD.search(one["where"])))
    dates = sorted({one["where"].partition(";")[0] for one in found})
    where = found[-1]["where"].partition(";")[2]
    period = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return f"{period};{LOAD.sub(f'load {loads[0]:g} to {loads[-1]:g}', where) if loads else where}"


def stale(cells: Iterable[dict[str, Any]], codes: dict[str, str]) -> list[str]:
    """A sentence on the methods that were measured by other code than there is now, or by code that is not known."""
    older = {one["method"] for one in cells if one.get("code") != codes[one["method"]]}
    names = ", ".join(label for method, label in LABELS.items() if method in older)
    return (
        [
            f"Measured, in part or whole, by other code than there is now, or by code that was not recorded: {names}.",
            "",
        ]
        if older
        else []
    )


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
    cells = [interval([one["accuracy"][name] for one in runs if name in one["accuracy"]]) for name in CLASSIFIERS]
    cells.append(spread([one["frechet"] for one in runs], 2))
    for name, digits in (("fit_seconds", 0), ("sample_seconds", 0), ("peak_gb", 1)):
        values = [one[name] for one in runs if name in one]
        cells.append(f"{statistics.mean(values):.{digits}f}" if values else "–")
    return f"| {named(epsilon)} | {LABELS[method]} | {' | '.join(cells)} | {len(runs)} |"


def write_docs(groups: dict[tuple[str, float], list[dict[str, Any]]]) -> None:
    """The table between the marks in docs/methods.md: means at ε = 1 and 10, in brackets with hardly any noise."""
    rows = [docs_row(method, groups) for method in LABELS if any(method == each for each, _ in groups)]
    head = f"| | {' | '.join(CLASSIFIERS.values())} | Fréchet | s | GB | runs |"
    table = "\n".join([head, "| --- |" + " ---: |" * (len(CLASSIFIERS) + 4), *rows])
    before, _, rest = DOCS.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    DOCS.write_text(f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{after}", encoding="utf-8")


def docs_row(method: str, groups: dict[tuple[str, float], list[dict[str, Any]]]) -> str:
    """A method's line in docs/methods.md; – stands for what was not measured."""
    told = [groups.get((method, epsilon), []) for epsilon in (1.0, 10.0, HARDLY_ANY_NOISE)]
    if once := groups.get((method, 0.0)):
        told = [once]
    cells = [of_each([[one["accuracy"].get(name) for one in runs] for runs in told], 2) for name in CLASSIFIERS]
    cells.append(of_each([[one["frechet"] for one in runs] for runs in told], 1))
    spent = [one for runs in told for one in runs if "fit_seconds" in one]
    seconds = f"{statistics.mean(one['fit_seconds'] + one['sample_seconds'] for one in spent):.0f}" if spent else "–"
    memory = f"{statistics.mean(one['peak_gb'] for one in spent):.1f}" if spent else "–"
    runs = ", ".join(str(len(one)) for one in told[:2])
    return f"| {LABELS[method]} | {' | '.join([*cells, seconds, memory, runs])} |"


def of_each(groups: list[list[float | None]], digits: int) -> str:
    """The mean of each group; the third, hardly any noise, in brackets where it was measured."""
    means = [[value for value in values if value is not None] for values in groups]
    told = [
        f"{statistics.mean(values):.{digits}f}".removeprefix("0" * (digits > 1)) if values else "–" for values in means
    ]
    return ", ".join(told[:2]) + (f" ({told[2]})" if means[2:] and means[2] else "")


def named(epsilon: float) -> str:
    """An ε as the page tells it."""
    if epsilon == HARDLY_ANY_NOISE:
        return "10⁶"
    return f"{epsilon:g}" if epsilon else "–"


def interval(accuracies: list[float]) -> str:
    """Mean ± what runs and test sets of TESTED digits differ by."""
    if not accuracies:
        return "–"
    mean, between = statistics.mean(accuracies), statistics.variance(accuracies) if len(accuracies) > 1 else 0.0
    return f"{mean:.3f} ± {math.sqrt(between + mean * (1 - mean) / TESTED):.3f}"


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
    figure.legend(*marks(panels[0]), fontsize=8, loc="outside lower left", ncols=3, frameon=False)
    FigureCanvasAgg(figure).print_figure(PICTURES / f"methods-{setting}.png")


def draw(axes: Any, place: int, epsilon: float, values: list[float]) -> None:
    """One method at one ε: its mean, and from the least to the most of its runs."""
    mean = statistics.mean(values)
    if epsilon == HARDLY_ANY_NOISE:
        axes.plot([mean], [place], marker="|", markersize=9, color="0.5", linestyle="", label="hardly any noise")
        return
    shift, face = (0.13, "C0") if epsilon > 1 else (-0.13, "white")
    ends = [[mean - min(values)], [max(values) - mean]]
    style: dict[str, Any] = {"color": "C0", "markerfacecolor": face, "markersize": 5, "capsize": 2, "linewidth": 1}
    axes.errorbar([mean], [place + shift], xerr=ends, marker="o", label=f"ε = {epsilon:g}", **style)


def marks(axes: Any) -> tuple[list[Any], list[str]]:
    """A legend's entries: one for each ε."""
    found = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    return list(found.values()), list(found)
