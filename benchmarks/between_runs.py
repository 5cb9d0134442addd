"""Measure how far runs of one recipe differ, by records, labels and ε.

    python benchmarks/between_runs.py [--runs N] [--records N …]

Runs of one recipe differ in the noise alone. Private records and test digits are variants of
scikit-learn's digits; the generator is a pool of others without labels. What is learned from each
run is measured as `pe evaluate` does, by the linear learners alone. Takes about ten minutes. Writes
the part "Between runs" of results/evaluation.md.
"""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np
from record import keep, where
from repeats import DELTA, repeated

import pe
from pe.judgement.judge import PRIVATE
from pe.judgement.scale import Scale, between_runs

RECORDS = (100, 300, 1000)
LABELS = (2, 5, 10)
EPSILONS = (0.5, 1.0, 4.0, 10.0)


def measures(records: int, labels: int, epsilon: float, runs: int) -> list[float]:
    """Return the measure of each run of one recipe, in [0, 1]."""
    found, truth = repeated(records, labels, epsilon, runs)
    scale = Scale.of(labels, truth, found.pop(PRIVATE), 0)
    return [scale.place(one)[0].value for one in found.values()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=8, help="of each recipe, two or more")
    parser.add_argument("--records", type=int, nargs="+", default=list(RECORDS))
    arguments = parser.parse_args()
    rows = []
    for records, labels, epsilon in product(arguments.records, LABELS, EPSILONS):
        try:
            values = measures(records, labels, epsilon, arguments.runs)
        except pe.PEError as error:
            print(f"{records} records, {labels} labels, ε = {epsilon:g}: {error}")
            continue
        deviation = np.std(values, ddof=1)
        curve = between_runs(records, labels, epsilon)
        rows.append(
            f"| {records:,} | {labels} | {epsilon:g} | {np.mean(values):.3f} | {deviation:.3f} | "
            f"{curve:.3f} |"
        )
        print(rows[-1], flush=True)
    lines = [
        "## Between runs",
        "",
        f"{arguments.runs} runs of each recipe with fresh noise: mean and standard deviation of "
        "the measure (AUC for two labels, mean recall for more), and the standard deviation that "
        "`pe evaluate` assumes. Variants of scikit-learn's digits of 8×8, a pool without labels, "
        f"linear learners alone, δ = {DELTA:g}. {where()}. `python benchmarks/between_runs.py`",
        "",
        "| records | labels | ε | mean | standard deviation | assumed |",
        "|--:|--:|--:|--:|--:|--:|",
        *rows,
    ]
    keep("evaluation.md", "\n".join(lines))


if __name__ == "__main__":
    main()
