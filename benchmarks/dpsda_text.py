"""Side by side with DPSDA over texts (Aug-PE): the same records, pool, embedding, ε, calls and selection.

    python benchmarks/dpsda_text.py CHECKOUT [--python PYTHON] [--seeds N] [--texts FOLDER] [--commit COMMIT]

CHECKOUT and PYTHON are those of dpsda.py. The records are Reuters' R8 and the pool is the demo's, which FOLDER holds,
as `pe demo --data text` makes it, or pip fetches. Ours is `pe run`; theirs is dpsda_worker.py, whose pool and embedding
answer from this process: they count in its seconds and not in its memory. Runs that are in results/dpsda_text.jsonl are
not made again. Writes results/dpsda_text.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from dpsda import Generator, serve, timed
from record import RESULTS, keep, where

from adapters.pools import PublicTexts
from embeddings.tfidf import TfIdf
from pe.data.texts import Texts
from pe.engine.demo.newswire import make_newswire
from pe.engine.demo.texts import recipe_content
from pe.evaluation.classifiers import fit_tfidf_regression
from pe.evaluation.labelled import Labelled
from pe.evaluation.utility import macro_f1
from pe.private.tables import TextTable
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.store.run import Run
from pe.store.writer import read_journal

KEPT = RESULTS / "dpsda_text.jsonl"
OURS, THEIRS = "ours", "DPSDA"


@dataclass(frozen=True)
class Cell:
    """What both are told.

    Attributes:
        name: in the table.
        selected: by each vote, of all topics together.
        fold: variations of a selected text, and of each of the first ones where they are kept.
        keep: whether the selected texts stay beside their variations.
    """

    name: str
    selection: str
    selected: int
    degrees: tuple[float, ...]
    neighbors: int
    threshold: float
    fold: int = 1
    keep: bool = False

    @property
    def first(self) -> int:
        """Variations of each of the first texts."""
        return self.fold if self.keep else 0

    @property
    def schedule(self) -> list[int]:
        """As DPSDA counts: new texts at first, then selected ones."""
        return [self.selected if self.keep else 16000, *[self.selected] * len(self.degrees)]

    @property
    def population(self) -> list[int]:
        """As we count: members of each population."""
        new, *chosen = self.schedule
        return [new * (1 + self.first), *(each * (self.fold + self.keep) for each in chosen)]


CELLS = (
    Cell("Aug-PE: rank, 3 variations, keep selected", "rank", 2000, (0.03, 0.01, 0.003), 16, 0.0, 3, True),
    Cell("sample, one vote, not varied", "sample", 8000, (0.0,), 32, 7.5),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--commit", default="9078c67", help="of DPSDA, as the page states it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        texts = make_newswire(arguments.texts or Path(folder) / "newswire", progress=Progress())
        for seed, cell, whose in product(range(arguments.seeds), CELLS, (OURS, THEIRS)):
            if (seed, cell.name, whose) in {(run["seed"], run["rule"], run["whose"]) for run in kept()}:
                continue
            place = (cell, seed, texts)
            found = ours(*place) if whose == OURS else theirs(*place, arguments.checkout, arguments.python)
            with KEPT.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"rule": cell.name, "whose": whose, "seed": seed} | found) + "\n")
    keep("dpsda_text.md", page(arguments.commit))


def kept() -> list[dict[str, Any]]:
    """The runs that were measured."""
    return [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []


def figures(runs: list[dict[str, Any]]) -> list[str]:
    """A column each: median (least–most) of accuracy and macro-F1; medians of what else there is."""
    found = []
    for name in ("accuracy", "macro_f1"):
        values = [run[name] for run in runs]
        found.append(f"{statistics.median(values):.3f} ({min(values):.3f}–{max(values):.3f})")
    found.append(f"{statistics.median(run['texts'] for run in runs):,.0f}")
    found += [f"{statistics.median(run[name] for run in runs):.0f}" for name in ("seconds", "cpu")]
    found.append(f"{statistics.median(run['gigabytes'] for run in runs):.2f}")
    return found


def content_of(cell: Cell, texts: Path) -> dict[str, Any]:
    """The demo's recipe with the cell's evolution."""
    content = recipe_content(texts)
    content["evolution"] = {
        "iterations": len(cell.degrees), "population": cell.population, "degree": list(cell.degrees), "lookahead": 0,
        "neighbors": cell.neighbors, "threshold": cell.threshold, "selection": cell.selection, "offspring": cell.fold,
        "initial_variations": cell.first, "keep": "selected" if cell.keep else "none",
    }  # fmt: skip
    return content


def ours(cell: Cell, seed: int, texts: Path) -> dict[str, float]:
    """`pe run` of the cell."""
    with tempfile.TemporaryDirectory() as folder:
        recipe, out = Path(folder) / "recipe.yaml", Path(folder) / "run"
        content = content_of(cell, texts) | {"seed": seed}
        content["private"]["ledger_file"] = str(Path(folder) / "ledger.json")
        recipe.write_text(Recipe.parse(content, "the benchmark").dump(), encoding="utf-8")
        spent = timed([str(Path(sys.executable).with_name("pe")), "run", str(recipe), "--out", str(out)])
        run = Run(out)
        with read_journal(run) as journal:
            asked = float(journal.totals().usage.images)
        made = run.synthetic
        return spent | scores(made.samples, made.labels, texts) | {"texts": asked}


def theirs(cell: Cell, seed: int, texts: Path, checkout: Path, python: str) -> dict[str, float]:
    """DPSDA's PE over the pool and the embedding of this process."""
    content = content_of(cell, texts)
    records, labels = read(texts / "private.csv")
    with tempfile.TemporaryDirectory() as folder:
        places = {name: f"{folder}/{name}" for name in ("private", "result", "address", "checkpoint")}
        places |= {name: f"{places[name]}.npz" for name in ("private", "result")}
        np.savez(places["private"], samples=records.array, labels=labels)
        settings = places | {
            "degrees": list(cell.degrees), "lookahead": 0, "neighbors": cell.neighbors, "threshold": cell.threshold,
            "fold": cell.fold, "first": cell.first, "keep_selected": cell.keep, "selection": cell.selection,
            "schedule": cell.schedule, "column": "PE.TEXT", "classes": content["private"]["classes"],
            **content["privacy"],
        }  # fmt: skip
        pool, embedding = (dict(content[section]) for section in ("api", "embedding"))
        del pool["kind"], embedding["kind"]
        begun, used = time.monotonic(), time.process_time()
        generator = Generator(PublicTexts(**pool), Texts, seed, TfIdf(**embedding).embed)
        spent = serve(generator, settings, Path(folder), checkout, python)
        spent["seconds"], spent["cpu"] = time.monotonic() - begun, spent["cpu"] + time.process_time() - used
        made = np.load(places["result"])
        return spent | scores(Texts(made["samples"]), made["labels"], texts) | {"texts": float(generator.made)}


def read(table: Path) -> tuple[Texts, np.ndarray]:
    """Real texts and their labels, as the demo's recipe reads them."""
    declared = recipe_content(table.parent)["private"] | {"path": table}
    del declared["kind"]
    source = TextTable(**declared).open()
    records, _ = next(source.blocks(len(source)))
    return records, source.labels


def scores(samples: Any, labels: np.ndarray, texts: Path) -> dict[str, float]:
    """Accuracy and macro-F1 on R8's test texts of the evaluation's classifier on words."""
    real, wanted = read(texts / "test.csv")
    training, classes = Labelled(samples, labels.astype(np.int32)), 8
    called = fit_tfidf_regression(training, training, classes, 0)(Labelled(real, wanted)).argmax(axis=1)
    confusion = np.bincount(wanted * classes + called, minlength=classes**2).reshape(classes, classes)
    return {"accuracy": float(np.mean(called == wanted)), "macro_f1": macro_f1(confusion)}


def page(commit: str) -> str:
    lines, runs = [], kept()
    for cell, whose in product(CELLS, (OURS, THEIRS)):
        found = [run for run in runs if (run["rule"], run["whose"]) == (cell.name, whose)]
        lines.append(f"| {cell.name} | {whose} | {' | '.join(figures(found))} |")
    seeds = len({run["seed"] for run in runs})
    return "\n".join(
        [
            "# Side by side with DPSDA's Aug-PE",
            "",
            f"{where()}. DPSDA at commit {commit}. `python benchmarks/dpsda_text.py CHECKOUT`",
            "",
            "R8's 5,485 training texts are private, ε = 1, δ = 1e-5. Both draw from the demo's pool, in windows of 80",
            "words, vary by neighbours in it, and compare by the same vectors (TF-IDF with SVD on the pool's texts).",
            "DPSDA's pool and vectors come from another process: they count in its seconds and not in its memory.",
            f"Accuracy and macro-F1 on R8's test texts: median (least–most) of {seeds} runs; texts asked for, seconds,",
            "those of a processor, and memory: medians. Other work shared the processor, so compare its seconds.",
            "Between runs macro-F1 has a standard deviation of .03 to .04: grain has 41 records and 10 test texts,",
            "ship 108 and 36. By Aug-PE's rule equal candidates [count](copies.md) once in our search, and bear the",
            "same votes; one by one in DPSDA's. One vote has hardly any; there no difference was found.",
            "",
            "| rule | | accuracy | macro-F1 | texts | s | processor's s | GB |",
            "| --- | --- | --- | --- | --: | --: | --: | --: |",
            *lines,
        ]
    )


if __name__ == "__main__":
    main()
