"""Write down what `evolution: auto` chooses, by declared size, labels and ε.

    python benchmarks/choice.py

Writes a part of results/choice.md. The other parts are the trials by which the rule was chosen.
"""

from __future__ import annotations

import numpy as np
from record import keep, where

from pe.planning.choice import choose_evolution
from pe.planning.forecast import forecast
from pe.plugins.protocols import PluginInfo
from pe.recipe.schema import Recipe

SIZES, LABELS, EPSILONS = (
    (100, 300, 1000, 4000, 10_000, 30_000, 100_000),
    (1, 10, 100),
    (0.5, 1, 4, 10),
)
KINDS = {
    "a generator that knows labels, with four degrees": PluginInfo(
        degrees=(0.5, 0.45, 0.4, 0.4), by_label=True
    ),
    "a pool of 5,000 public images without labels": PluginInfo(degrees=(0.0,), distinct=5000),
}


def main() -> None:
    lines = ["## What it chooses", "", f"{where()}. `python benchmarks/choice.py`", ""]
    for kind, info in KINDS.items():
        lines += [f"### What it chooses for {kind}", "", *grid(info), ""]
    lines += [
        "T × candidates of a label, votes per record, and the signal: the votes that an average "
        "candidate gets, over",
        "the noise on it. With several votes it grows from the first to the last; the mean is "
        "shown. δ = 1e-6.",
    ]
    keep("choice.md", "\n".join(lines))


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
    private = {
        "kind": "npz",
        "path": "x.npz",
        "size": 8,
        "classes": list(range(labels)),
        "declared_size": size,
    }
    content = {
        "private": private,
        "api": {"kind": "glyphs"},
        "privacy": {"epsilon": epsilon, "delta": 1e-6},
    }
    evolution = choose_evolution(
        Recipe.parse(content, "the benchmark"), Declared(info)
    ).recipe.evolution
    assert isinstance(evolution.population, list)
    signals = forecast(
        Recipe.parse(content | {"evolution": evolution.own_values}, "the benchmark"), None
    ).signals
    signal = float(np.mean([(one.fewest or 0) / one.sigma for one in signals]))
    return (
        f"{evolution.iterations} × {evolution.population[0] // labels:,}, {evolution.neighbors}, "
        f"{signal:.2g}"
    )


class Declared:
    """What stands in for a generator here: what it declares."""

    def __init__(self, info: PluginInfo) -> None:
        self.info = info


if __name__ == "__main__":
    main()
