"""Measure how far the accuracies of runs of one recipe differ, by records, labels and ε.

    python benchmarks/between_runs.py

Each recipe runs RUNS times; its runs differ in the noise alone. Private records, pool (unlabelled)
and test images are parts of scikit-learn's 1,797 digits of 8×8, with all ten labels or five. The
linear probe of `pe evaluate` is trained on each run's data. Writes the part "Between runs" of
benchmarks/results/evaluation.md.
"""

from __future__ import annotations

import tempfile
from itertools import product
from pathlib import Path

import numpy as np
from record import keep, where
from sets import probe_accuracies
from sklearn.datasets import load_digits

import pe
from pe.data.images import Images
from pe.evaluation.grade import between_runs
from pe.evaluation.labelled import Labelled
from pe.plugins.specs import construct
from pe.progress import Progress

RUNS = 8
RECORDS, LABELS, EPSILONS = (100, 300, 700), (5, 10), (0.5, 1.0, 4.0, 10.0)
LEAST_RECORDS, MOST_RECORDS, TEST = 50, 700, 300


def accuracy_of(run: pe.Run, test: Labelled) -> float:
    last = run.populations()[-1]
    embedding = construct("pe.embeddings", "pixels", {"size": 8, "blur": 0})
    return probe_accuracies(
        {"synthetic": Labelled(last.samples, last.labels)}, test, embedding, Progress()
    )["synthetic"]


def measure(folder: Path, records: int, labels: int, epsilon: float) -> list[float]:
    """The accuracies of RUNS runs of one recipe, in [0, 1]."""
    digits, names = load_digits(), [str(label) for label in range(labels)]
    order = np.random.default_rng(0).permutation(np.flatnonzero(digits.target < labels))
    pixels, truth = (
        np.round(digits.images[order] * (255 / 16)).astype(np.uint8),
        digits.target[order].astype(np.int32),
    )
    tested, pool = slice(len(order) - TEST, None), slice(len(order) // 2, len(order) - TEST)
    np.savez(folder / "private.npz", images=pixels[:records], labels=truth[:records].astype(str))
    np.savez(folder / "pool.npz", images=pixels[pool])
    private = pe.ImageNpz(
        folder / "private.npz", size=8, channels=1, classes=names, declared_size=records
    )
    accuracies = []
    for i in range(RUNS):
        (folder / "private.npz.ledger.json").unlink(missing_ok=True)
        run = pe.evolve(
            private,
            pe.api("public_images", path=str(folder / "pool.npz"), channels=1),
            embedding=pe.embedding("pixels", size=8, blur=0),
            epsilon=epsilon,
            delta=1e-5,
            out=folder / f"{records}-{labels}-{epsilon}-{i}",
            progress=Progress(),
        )
        accuracies.append(
            accuracy_of(run, Labelled(Images(pixels[tested, ..., None]), truth[tested]))
        )
    return accuracies


def main() -> None:
    rows = []
    for records, labels, epsilon in product(RECORDS, LABELS, EPSILONS):
        with tempfile.TemporaryDirectory() as folder:
            try:
                accuracies = measure(Path(folder), records, labels, epsilon)
            except pe.PEError:  # the plan refuses so few records at this ε
                continue
        spread, rule = np.std(accuracies, ddof=1), between_runs(records, labels, epsilon)
        rows.append(
            f"| {records} | {labels} | {epsilon:g} | {np.mean(accuracies):.3f} | {spread:.3f} | "
            f"{rule:.3f} |"
        )
        print(rows[-1], flush=True)
    lines = [
        "## Between runs",
        "",
        f"{RUNS} runs of one recipe each, with fresh noise: mean and standard deviation of the "
        "probe's accuracy, and what the verdict reckons with. scikit-learn's digits of 8×8, an "
        f"unlabelled pool of digits, δ = 1e-5. {where()}. `python benchmarks/between_runs.py`",
        "",
        "| records | labels | ε | accuracy | standard deviation | reckoned with |",
        "|--:|--:|--:|--:|--:|--:|",
        *rows,
    ]
    keep("evaluation.md", "\n".join(lines))


if __name__ == "__main__":
    main()
