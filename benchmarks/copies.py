"""What equal candidates do to a vote of texts: they count once in our search, and one by one in DPSDA's.

    python benchmarks/copies.py [--seeds N] [--texts FOLDER]

Aug-PE's rule of dpsda_text.py, in this process: the same pool, vectors, noise and selection, and nothing else between
the rows. FOLDER as there. Runs that are in results/copies.jsonl are not made again. Writes results/copies.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from dpsda_text import CELLS, content_of, read, scores
from record import RESULTS, keep, where

from adapters.pools import PublicTexts
from embeddings.tfidf import TfIdf
from pe.data.samples import distinct
from pe.engine.demo.newswire import TOPICS, make_newswire
from pe.histogram import histogram_releases
from pe.privacy.calibration import calibrate
from pe.privacy.ledger import Budget
from pe.progress import Progress
from pe.selection import Descent, descend

KEPT, CELL = RESULTS / "copies.jsonl", CELLS[0]
ONCE, APART, SHARED = "once", "one by one", "once; all bear the first one's noisy votes"
WHO = {ONCE: "ours, before this was tried", APART: "DPSDA's", SHARED: "ours"}


class Pool:
    """The demo's pool and records, embedded once; the pool's texts by nearness to each."""

    def __init__(self, texts: Path) -> None:
        content = content_of(CELL, texts)
        settings = [
            {key: value for key, value in content[part].items() if key != "kind"} for part in ("api", "embedding")
        ]
        pool, embedding = PublicTexts(**settings[0]), TfIdf(**settings[1])
        self.texts, self.size = pool._texts, len(pool)
        records, labels = read(texts / "private.csv")
        products = embedding.embed(records) @ embedding.embed(self.texts).T
        self.products = [products[labels == label] for label in range(len(TOPICS))]
        first, place = distinct(self.texts)
        self.alike = first[place]
        self.near = np.concatenate(
            [self._nearest(pool, np.arange(self.size)[i : i + 256]) for i in range(0, self.size, 256)]
        )

    def _nearest(self, pool: PublicTexts, some: np.ndarray) -> np.ndarray:
        keys = pool._distances(some, np.arange(self.size)) * self.size + np.arange(self.size)
        keys[np.arange(len(some)), some] = -1
        return np.argsort(keys, axis=1)[:, : self.reach(max(CELL.degrees))]

    def reach(self, degree: float) -> int:
        """How many texts a variation is drawn from."""
        return 1 + math.ceil(degree * (self.size - 1))

    def vary(self, places: np.ndarray, degree: float, rng: np.random.Generator) -> np.ndarray:
        """As `PublicTexts` does."""
        return self.near[places, rng.integers(0, self.reach(degree), len(places))]


def run(pool: Pool, rule: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The last population: places in the pool, and labels."""
    rng, found = np.random.default_rng(seed), []
    sigma = calibrate(lambda z: histogram_releases(z, len(CELL.degrees)), Budget(1.0, 1e-5))
    sizes = [count // len(TOPICS) for count in CELL.population]
    how = Descent(CELL.selection, "selected" if CELL.keep else "none", CELL.fold)
    for products in pool.products:
        new = rng.permutation(pool.size)[: sizes[0] // (1 + CELL.first)]
        places = np.concatenate([new, pool.vary(np.repeat(new, CELL.first), CELL.degrees[0], rng)])
        for degree, size in zip(CELL.degrees, sizes[1:], strict=True):
            _, first, which = np.unique(pool.alike[places], return_index=True, return_inverse=True)
            heard = np.arange(len(places)) if rule == APART else first
            nearest = np.argsort(-products[:, places[heard]], axis=1, kind="stable")[:, : CELL.neighbors]
            votes = np.bincount(heard[nearest].ravel(), minlength=len(places)) / math.sqrt(CELL.neighbors)
            votes += rng.normal(0, sigma, len(votes))
            votes = votes[first[which]] if rule == SHARED else votes
            chosen = descend(votes, np.zeros(len(votes), bool), size, CELL.threshold, how, rng)
            parents = places[chosen.parents]
            places = np.where(chosen.kept, parents, pool.vary(parents, degree, rng))
        found.append(places)
    return np.concatenate(found), np.repeat(np.arange(len(TOPICS)), [len(each) for each in found])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--texts", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        texts = make_newswire(arguments.texts or Path(folder) / "newswire", progress=Progress())
        pool = Pool(texts)
        for seed, rule in product(range(arguments.seeds), WHO):
            if (seed, rule) in {(run["seed"], run["rule"]) for run in kept()}:
                continue
            places, labels = run(pool, rule, seed)
            row = {"seed": seed, "rule": rule, **scores(pool.texts.take(places), labels, texts)}
            row["different"] = sum(len(np.unique(places[labels == label])) for label in range(len(TOPICS)))
            with KEPT.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    keep("copies.md", page())


def kept() -> list[dict[str, Any]]:
    """The runs that were made."""
    return [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []


def figures(runs: list[dict[str, Any]], beside: list[dict[str, Any]]) -> list[str]:
    """Columns: mean ± deviation of accuracy and of macro-F1, each with its gain over `beside`; different texts."""
    found = []
    for name in ("accuracy", "macro_f1"):
        values = [run[name] for run in runs]
        gains = [run[name] - other[name] for run, other in zip(runs, beside, strict=True)]
        error = statistics.stdev(gains) / math.sqrt(len(gains))
        found += [f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"]
        found += ["–" if runs == beside else f"{statistics.mean(gains):+.3f} ± {error:.3f}"]
    return [*found, f"{statistics.mean(run['different'] for run in runs):,.0f}"]


def page() -> str:
    runs = kept()
    by_rule = {rule: [run for run in runs if run["rule"] == rule] for rule in WHO}
    lines = [f"| {rule} | {WHO[rule]} | {' | '.join(figures(by_rule[rule], by_rule[ONCE]))} |" for rule in WHO]
    return "\n".join(
        [
            "# Equal candidates in a vote of texts",
            "",
            f"{where()}. `python benchmarks/copies.py`",
            "",
            "Aug-PE's rule of [side by side](dpsda_text.md) in one process, ε = 1: the rows differ only in how equal",
            "candidates count. Once: a record votes for 16 different texts; the first of equal ones gets the vote,",
            "the others noise alone. One by one: equal ones get a vote each, in the place of other texts. Accuracy",
            f"and macro-F1: mean ± standard deviation of {len({run['seed'] for run in runs})} runs; beside them the",
            "gain over the first row with its standard error; and different texts of a topic, summed, of 8,000.",
            "That the third row is ours was decided on [stand-ins](copies_standins.md).",
            "",
            "| equal ones count | as in | accuracy | | macro-F1 | | different |",
            "| --- | --- | --- | --- | --- | --- | --: |",
            *lines,
        ]
    )


if __name__ == "__main__":
    main()
