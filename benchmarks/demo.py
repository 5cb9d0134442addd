"""Measure how good `pe demo` is: five runs with fresh noise, median and spread.

    python benchmarks/demo.py [--api glyphs|diffusion] [--runs N] [--epsilon E …]

Writes results/demo.md, or results/demo_diffusion.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from record import keep, where

PE = Path(sys.executable).with_name("pe")
CLASSIFIERS = {"logistic_regression": "logistic regression", "mlp": "MLP"}
SETS = {
    "synthetic": "PE data",
    "unevolved": "un-evolved samples",
    "one_vote": "samples chosen by one vote, not varied",
    "real": "the real private digits (not DP)",
}


def run_demo(api: str, epsilon: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [
            PE,
            "demo",
            "--api",
            api,
            "--epsilon",
            str(epsilon),
            "--out",
            out,
            "--json",
            "--quiet",
        ]
        result: dict[str, Any] = json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout
        )
    return result


def spread(values: list[float], digits: int = 3) -> str:
    return (
        f"{statistics.median(values):.{digits}f} "
        f"({min(values):.{digits}f}–{max(values):.{digits}f})"
    )


def rows(epsilon: float, results: list[dict[str, Any]]) -> list[str]:
    lines = []
    for key, name in CLASSIFIERS.items():
        accuracies = [run["accuracy"][key] for run in results]
        cells = [
            spread([one[data] for one in accuracies]) if data in accuracies[0] else "–"
            for data in SETS
        ]
        lines.append(f"| {epsilon:g} | {name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--api", choices=["glyphs", "diffusion"], default="glyphs")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    arguments = parser.parse_args()
    lines, seconds = [], []
    for epsilon in arguments.epsilon:
        results = [run_demo(arguments.api, epsilon) for _ in range(arguments.runs)]
        lines += rows(epsilon, results)
        seconds += [run["seconds"] for run in results]
    text = "\n".join(
        [
            f"# `pe demo --api {arguments.api}`: accuracy on 1,000 held-out real digits",
            "",
            f"Median (range) of {arguments.runs} runs with fresh noise, δ = 1e-5. {where()}. "
            f"Seconds in all: {spread(seconds, 0)}. `python benchmarks/demo.py --api "
            f"{arguments.api}`",
            "",
            f"| ε | classifier | trained on {' | on '.join(SETS.values())} |",
            f"| ---: | --- |{' --- |' * len(SETS)}",
            *lines,
            "",
        ]
    )
    keep("demo.md" if arguments.api == "glyphs" else "demo_diffusion.md", text)


if __name__ == "__main__":
    main()
