"""Compare with DPSDA's Aug-PE on texts: the same records, pool, embedding and ε.

    python benchmarks/dpsda_text.py CHECKOUT [--python PYTHON] [--seeds N] [--texts FOLDER]

Ours is examples/newswire.yaml. CHECKOUT and PYTHON are those of dpsda.py. DPSDA's pool and
embedding are ours and answer from this process: they count in its seconds, not in its memory.
Writes results/dpsda_text.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from dpsda import Generator, serve
from record import keep, timed, where
from sets import judged, macro_f1, make_newswire, texts_recipe

from adapters.pools import PublicTexts
from embeddings.wordllama import WordLlama
from pe.data.samples import Samples
from pe.data.texts import Texts
from pe.judgement.judge import SYNTHETIC
from pe.judgement.labelled import Labelled
from pe.private.tables import TextTable
from pe.store.run import Run

AUG_PE = {"degrees": [0.03, 0.01, 0.003], "neighbors": 16, "threshold": 0.0, "fold": 3, "first": 3}
AUG_PE |= {"keep_selected": True, "selection": "rank", "schedule": [2000] * 4}
ONE_VOTE = {"degrees": [0.0], "neighbors": 32, "threshold": 7.5, "fold": 1, "first": 0}
ONE_VOTE |= {"keep_selected": False, "selection": "sample", "schedule": [16000, 8000]}
CELLS: dict[str, dict[str, Any] | None] = {
    "ours: examples/newswire.yaml": None,
    "DPSDA, Aug-PE: rank, 3 variations, keep selected": AUG_PE,
    "DPSDA, sample, one vote, not varied": ONE_VOTE,
}

QUALITY = {"score": ".1f", "accuracy": ".3f", "macro_f1": ".3f"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--texts", type=Path)
    arguments = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        texts = make_newswire(arguments.texts or Path(folder) / "newswire")
        for name, cell in CELLS.items():
            runs = [
                ours(seed, texts)
                if cell is None
                else theirs(cell, seed, texts, arguments.checkout, arguments.python)
                for seed in range(arguments.seeds)
            ]
            lines.append(f"| {name} | {' | '.join(figures(runs))} |")
            print(lines[-1], flush=True)
    keep("dpsda_text.md", page(lines, arguments.seeds))


def figures(runs: list[dict[str, float]]) -> list[str]:
    """Return the columns: median (least–most) of the quality, medians of the rest."""
    columns = []
    for name, form in QUALITY.items():
        values = [run[name] for run in runs]
        columns.append(
            f"{statistics.median(values):{form}} ({min(values):{form}}–{max(values):{form}})"
        )
    columns += [
        f"{statistics.median(run[name] for run in runs):.0f}" for name in ("seconds", "cpu")
    ]
    return [*columns, f"{statistics.median(run['gigabytes'] for run in runs):.2f}"]


def ours(seed: int, texts: Path) -> dict[str, float]:
    """Run the example's recipe by `pe run`."""
    with tempfile.TemporaryDirectory() as folder:
        recipe, out = Path(folder) / "recipe.yaml", Path(folder) / "run"
        content = texts_recipe(texts.resolve()) | {"seed": seed}
        content["private"]["ledger_file"] = str(Path(folder) / "ledger.json")
        recipe.write_text(yaml.safe_dump(content), encoding="utf-8")
        spent = timed(
            [str(Path(sys.executable).with_name("pe")), "run", str(recipe), "--out", str(out)]
        )
        result = Run(out).synthetic
        return spent | scores(result.samples, result.labels, texts)


def theirs(
    cell: dict[str, Any], seed: int, texts: Path, checkout: Path, python: str
) -> dict[str, float]:
    """Run DPSDA's PE over the pool and the embedding of this process."""
    content = texts_recipe(texts.resolve())
    records, labels = read(texts / "private.csv", content)
    with tempfile.TemporaryDirectory() as folder:
        places = {name: f"{folder}/{name}" for name in ("address", "checkpoint")}
        places |= {name: f"{folder}/{name}.npz" for name in ("private", "result")}
        np.savez(places["private"], samples=records.array, labels=labels)
        classes = content["private"]["classes"]
        settings = (
            places
            | cell
            | content["privacy"]
            | {"lookahead": 0, "column": "PE.TEXT", "classes": classes}
        )
        pool, embedding = (dict(content[section]) for section in ("api", "embedding"))
        del pool["kind"], embedding["kind"]
        started, used = time.monotonic(), time.process_time()
        generator = Generator(PublicTexts(**pool), Texts, seed, WordLlama(**embedding).embed)
        spent = serve(generator, settings, Path(folder), checkout, python)
        spent["seconds"], spent["cpu"] = (
            time.monotonic() - started,
            spent["cpu"] + time.process_time() - used,
        )
        result = np.load(places["result"])
        return spent | scores(Texts(result["samples"]), result["labels"], texts)


def read(table: Path, content: dict[str, Any]) -> tuple[Texts, np.ndarray]:
    """Return real texts and their labels, as the recipe reads them."""
    declared = {name: value for name, value in content["private"].items() if name != "kind"}
    source = TextTable(**declared | {"path": table})
    dataset = source.open()
    records, _ = next(dataset.blocks(len(dataset)))
    return records, dataset.labels


def scores(samples: Samples, labels: np.ndarray, texts: Path) -> dict[str, float]:
    """Return what the judgement says of a set for training, tested on R8's test texts."""
    content = texts_recipe(texts.resolve())
    private, test = (
        Labelled(*read(texts / f"{name}.csv", content)) for name in ("private", "test")
    )
    settings = {name: value for name, value in content["embedding"].items() if name != "kind"}
    ours = Labelled(samples, labels.astype(np.int32))
    classes = content["private"]["classes"]
    found = judged({SYNTHETIC: ours}, private, test, WordLlama(**settings), classes)
    trained = found.trained[SYNTHETIC]
    return {
        "score": trained.place.score,
        "accuracy": trained.accuracy,
        "macro_f1": macro_f1(trained.confusion),
    }


def page(lines: list[str], seeds: int) -> str:
    return "\n".join(
        [
            "# Compared with DPSDA's Aug-PE on texts",
            "",
            f"{where()}. DPSDA at commit 9078c67. `python benchmarks/dpsda_text.py CHECKOUT`",
            "",
            "R8's 5,485 training texts are private, ε = 1, δ = 1e-5. Both draw from the example's "
            "pool, in windows of 80 words, and compare by the same vectors (`wordllama`, centred "
            "on the pool). DPSDA's pool and vectors come from another process: they count in its "
            "seconds, not in its memory.",
            "",
            "The score for training is that of `pe evaluate`: 0 is a guess, 10 what the private "
            "texts give. Score, accuracy and macro-F1 on R8's test texts: median (least–most) of "
            f"{seeds} runs. Seconds, processor seconds and memory: medians.",
            "",
            "| rule | score | accuracy | macro-F1 | s | CPU s | GB |",
            "| --- | --- | --- | --- | --: | --: | --: |",
            *lines,
        ]
    )


if __name__ == "__main__":
    main()
