"""Compare with DPSDA, the PE authors' library, on digits: the same data, generator and settings.

    python benchmarks/dpsda.py CHECKOUT [--python PYTHON] [--seeds N]

CHECKOUT is a checkout of github.com/microsoft/DPSDA. PYTHON is an interpreter with its libraries
(pandas, omegaconf below 2.4, torch, faiss-cpu, scikit-learn, matplotlib); the default is this one.
Both draw text with our generator and embed by bare pixels. Each run has a process of its own: ours
is `pe run`, theirs is benchmarks/dpsda_worker.py. DPSDA's generator answers from this process, so
its memory does not count. Writes results/dpsda.md.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from record import keep, timed, where

from adapters.glyphs import Glyphs
from pe.data.images import Images
from pe.data.samples import Conditions, Samples
from pe.judgement.classifiers import CLASSIFIERS, accuracy
from pe.plugins.protocols import Answer, RandomRequest, VariationRequest
from pe.private.npz import MnistSample
from pe.recipe.schema import Recipe
from pe.store.run import Run
from pe.store.writer import read_journal

EPSILON, DELTA, ITERATIONS, SELECTED, NEIGHBORS, THRESHOLD = 1.0, 1e-5, 4, 2000, 8, 8.0
DEGREES = [0.5, 0.45, 0.4, 0.4]


@dataclass(frozen=True)
class Cell:
    """A rule that both have."""

    selection: str
    keep_selected: bool = False
    fold: int = 1
    lookahead: int = 0

    @property
    def population(self) -> list[int]:
        """S_0 … S_T, when SELECTED are selected in every iteration."""
        return [SELECTED] + [SELECTED * (self.fold + self.keep_selected)] * ITERATIONS

    @property
    def schedule(self) -> list[int]:
        """How many DPSDA selects, and S_0 first."""
        return [SELECTED] * (ITERATIONS + 1)

    def __str__(self) -> str:
        kept = ", keep selected" * self.keep_selected
        ahead = f", lookahead {self.lookahead}" * bool(self.lookahead)
        return f"{self.selection}, fold {self.fold}{kept}{ahead}"


CELLS = (
    Cell("sample"),
    Cell("sample", lookahead=4),
    Cell("sample", fold=3),
    Cell("sample", True, 3),
    Cell("rank", fold=3),
    Cell("rank", True, 3),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    lines = []
    for cell in CELLS:
        found: dict[str, list[dict[str, float]]] = {"ours": [], "DPSDA": []}
        for seed in range(arguments.seeds):
            found["ours"].append(ours(cell, seed))
            found["DPSDA"].append(theirs(cell, seed, arguments.checkout, arguments.python))
        lines += [
            f"| {cell} | {whose} | {' | '.join(figures(runs))} |" for whose, runs in found.items()
        ]
        print("\n".join(lines[-2:]), flush=True)
    git = ["git", "-C", str(arguments.checkout), "rev-parse", "--short", "HEAD"]
    commit = (
        subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    )
    keep("dpsda.md", page(lines, commit, arguments.seeds))


def figures(runs: list[dict[str, float]]) -> list[str]:
    """Return the columns: accuracies as mean ± standard deviation, mean number of images, median
    seconds and gigabytes.
    """
    found = []
    for name in CLASSIFIERS:
        values = [run[name] for run in runs]
        found.append(
            f"{statistics.mean(values):.3f} ± "
            f"{statistics.stdev(values) if len(values) > 1 else 0:.3f}"
        )
    found.append(f"{statistics.mean(run['images'] for run in runs):,.0f}")
    found.append(f"{statistics.median(run['seconds'] for run in runs):.1f}")
    found.append(f"{statistics.median(run['gigabytes'] for run in runs):.2f}")
    return found


def ours(cell: Cell, seed: int) -> dict[str, float]:
    """`pe run` of the cell."""
    evolution = {
        "iterations": ITERATIONS, "population": cell.population, "degree": DEGREES, "lookahead": cell.lookahead,
        "neighbors": NEIGHBORS, "threshold": THRESHOLD, "selection": cell.selection, "offspring": cell.fold,
        "keep": "selected" if cell.keep_selected else "none",
    }  # fmt: skip
    content = {
        "name": "cell", "seed": seed, "private": {"kind": "mnist", "declared_size": 4000}, "api": {"kind": "glyphs"},
        "embedding": {"kind": "pixels"}, "privacy": {"epsilon": EPSILON, "delta": DELTA}, "evolution": evolution,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        recipe, run = Path(folder) / "recipe.yaml", Path(folder) / "run"
        recipe.write_text(Recipe.parse(content, "the benchmark").dump_shareable(), encoding="utf-8")
        command = str(Path(sys.executable).with_name("pe"))
        spent = timed([command, "run", str(recipe), "--out", str(run)])
        made = np.load(run / "synthetic.npz")
        with read_journal(Run(run)) as journal:
            images = float(journal.totals().usage.images)
        return spent | scores(made["images"], made["labels"], seed) | {"images": images}


def theirs(cell: Cell, seed: int, checkout: Path, python: str) -> dict[str, float]:
    """DPSDA's PE over the generator of this process."""
    source = MnistSample().open()
    images, _ = next(source.blocks(len(source)))
    with tempfile.TemporaryDirectory() as folder:
        private, result, address = (
            Path(folder) / name for name in ("private.npz", "result.npz", "socket")
        )
        np.savez(private, samples=images.array, labels=source.labels)
        settings = {
            "private": str(private), "result": str(result), "address": str(address), "degrees": DEGREES,
            "lookahead": cell.lookahead, "neighbors": NEIGHBORS, "threshold": THRESHOLD, "fold": cell.fold,
            "keep_selected": cell.keep_selected, "selection": cell.selection, "schedule": cell.schedule,
            "delta": DELTA, "epsilon": EPSILON, "checkpoint": f"{folder}/checkpoint", "column": "PE.IMAGE", "first": 0,
            "classes": [str(digit) for digit in range(10)],
        }  # fmt: skip
        generator = Generator(Glyphs(), Images, seed)
        spent = serve(generator, settings, Path(folder), checkout, python)
        made = np.load(result)
        return (
            spent
            | scores(made["samples"], made["labels"], seed)
            | {"images": float(generator.made)}
        )


def serve(
    generator: Generator, settings: dict[str, Any], folder: Path, checkout: Path, python: str
) -> dict[str, float]:
    """DPSDA's run over `generator`: its seconds and gigabytes."""
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    with Listener(settings["address"], "AF_UNIX") as listener:
        Thread(target=generator.serve, args=(listener,), daemon=True).start()
        worker = str(Path(__file__).with_name("dpsda_worker.py").resolve())
        environment = dict(os.environ) | {"PYTHONPATH": str(checkout.resolve())}
        return timed([python, worker, f"{folder}/settings.json"], environment)


class Generator:
    """A generator of ours that answers at a socket, and an embedding beside it."""

    def __init__(
        self, adapter: Any, samples: Callable[[np.ndarray], Samples], seed: int, embed: Any = None
    ) -> None:
        self._adapter, self._samples, self._embed = adapter, samples, embed
        self._seeds, self.made = np.random.default_rng(seed), 0

    def serve(self, listener: Listener) -> None:
        """Answer one client until it goes."""
        connection = listener.accept()
        try:
            while True:
                self._answer(connection)
        except EOFError:
            return

    def _answer(self, connection: Connection) -> None:
        asked: Any = connection.recv()
        if asked[0] == "embed":
            connection.send(self._embed(self._samples(asked[1])))
            return
        if asked[0] == "random":
            labels = (asked[1],) * asked[2]
            seeds = self._draw(len(labels))
            drawn = getattr(self._adapter, "draw_conditions", lambda *_: Conditions())(
                labels, seeds
            )
            answer = self._adapter.random_api(RandomRequest(labels, seeds, drawn))
        else:
            _, samples, labels, rows, degree = asked
            conditions = Conditions(
                {name: np.array([row[name] for row in rows]) for name in rows[0]}
            )
            seeds = self._draw(len(labels))
            request = VariationRequest(
                self._samples(samples), tuple(labels), conditions, seeds, degree
            )
            answer = self._adapter.variation_api(request)
        self.made += len(labels)
        connection.send((answer.samples.array, rows_of(answer)))

    def _draw(self, count: int) -> np.ndarray:
        return self._seeds.integers(0, 2**64, count, dtype=np.uint64)


def rows_of(answer: Answer) -> list[dict[str, Any]]:
    """The conditions, a row each."""
    columns = dict(answer.conditions.items())
    return [
        {name: column[i] for name, column in columns.items()} for i in range(len(answer.samples))
    ]


def scores(images: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, float]:
    """Return the accuracy of each classifier of `pe demo` on 1,000 held-out digits."""
    test = MnistSample(split="test").open()
    real, _ = next(test.blocks(len(test)))
    own = (Images(images), np.asarray(labels, np.int32))
    return {name: accuracy(name, *own, real, test.labels, seed) for name in CLASSIFIERS}


def page(lines: list[str], commit: str, seeds: int) -> str:
    return "\n".join(
        [
            "# Compared with DPSDA on digits",
            "",
            f"{where()}. DPSDA at commit {commit}. `python benchmarks/dpsda.py CHECKOUT`",
            "",
            f"4,000 real digits are private, ε = {EPSILON:g}, δ = {DELTA:g}. {ITERATIONS} "
            f"iterations select {SELECTED:,} images each, with {NEIGHBORS} votes per record and a "
            f"threshold of {THRESHOLD:g} votes. The embedding is the bare pixels, the generator "
            "draws text. For DPSDA the generator runs in another process, whose memory does not "
            "count.",
            "",
            "Accuracy on 1,000 held-out digits of the classifiers of `pe demo`, logistic "
            f"regression (LR) and MLP: mean ± standard deviation of {seeds} seeds. Images that "
            "were asked for: mean. Seconds and memory of the whole process: medians.",
            "",
            "| rule | | LR | MLP | images | s | GB |",
            "| --- | --- | --- | --- | --: | --: | --: |",
            *lines,
        ]
    )


if __name__ == "__main__":
    main()
