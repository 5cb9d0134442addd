"""Measure what `pe extend --examples` is worth, over a scripted model.

    python benchmarks/text_expansion.py [--texts FOLDER] [--runs 3]

The private texts are R8's, or those of FOLDER (see text.py). `chat` asks a scripted model on this
machine, which knows only the public pool, in windows of 80 words. Shown no text, it answers with a
window of a random text. Shown texts, it finds the NEAR windows that are nearest to them by TF-IDF,
and answers with 40 words in a row of one of these and 40 of another. A vote at ε = 1 takes 25 texts
for each label from CANDIDATES first ones. Then `pe extend` asks for 5,000 more, once with three
examples, once as variations of one text. Results are in results/text_expansion.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from record import where
from scripted import draw_window, score_words, serve_model
from sets import make_newswire, read_texts
from sklearn.feature_extraction.text import TfidfVectorizer

import pe
from pe.data.population import Population
from pe.data.samples import BETWEEN
from pe.data.texts import runs_of_words
from pe.engine.extend import novelty

WINDOW, NEAR, EXAMPLES = 80, 40, 3
CANDIDATES, A_LABEL, MORE = (
    1000,
    25,
    5000,
)  # first texts and voted ones for each label; texts of an extension
WAYS = {"examples": {"examples": EXAMPLES}, "variations": {"degree": 1.0}}
ROWS = {
    "result": "the voted texts",
    "examples": f"{MORE:,} by `--examples {EXAMPLES}`",
    "examples and result": "both of these",
    "variations": f"{MORE:,} variations",
    "variations and result": "these and the voted texts",
    "real": "the real private texts (not DP)",
}


class PoolModel:
    """A scripted model that knows the texts of a public pool; see the top."""

    def __init__(self, pool: list[str]) -> None:
        self._pool, self.calls = pool, count()
        pieces = [text.split() for text in pool]
        self._windows = [
            " ".join(one[i : i + WINDOW]) for one in pieces for i in range(0, len(one), WINDOW)
        ]
        self._words = TfidfVectorizer(sublinear_tf=True)
        self._vectors = self._words.fit_transform(self._windows)

    def answer(self, prompt: str, rng: np.random.Generator) -> str:
        """Answer a prompt, in which the texts stand below the first empty line."""
        next(self.calls)
        texts = prompt.partition("\n\n")[2]
        if not texts:
            return draw_window(self._pool[rng.integers(len(self._pool))], WINDOW, rng)
        nearness = np.asarray(
            (self._vectors @ self._words.transform(texts.split(BETWEEN)).T).sum(axis=1)
        ).ravel()
        places = rng.choice(np.argpartition(-nearness, NEAR)[:NEAR], 2, replace=False)
        return " ".join(draw_window(self._windows[place], WINDOW // 2, rng) for place in places)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = make_newswire(arguments.texts or Path(place) / "R8")
        model = PoolModel([text for text, _ in read_texts(folder / "public.csv")])
        with serve_model(model.answer) as url:
            results = [measure(folder, model, url, seed) for seed in range(arguments.runs)]
    print(where(), *table(results), sep="\n")


def measure(folder: Path, model: PoolModel, url: str, seed: int) -> dict[str, Any]:
    """Return accuracy and macro-F1 by training set, and the numbers of the two extensions."""
    private, public, test = (
        read_texts(folder / f"{name}.csv") for name in ("private", "public", "test")
    )
    classes, records = sorted({label for _, label in private}), {text for text, _ in private}
    sets, numbers = {"real": private}, {}

    def pairs(population: Population) -> list[tuple[str, str]]:
        return list(
            zip(
                population.samples.strings,
                (classes[label] for label in population.labels),
                strict=True,
            )
        )

    with tempfile.TemporaryDirectory() as place:
        run = evolve(folder, url, seed, classes, len(private), Path(place))
        sets["result"] = pairs(run.synthetic)
        for name, terms in WAYS.items():
            model.calls, started = count(), time.monotonic()
            path = pe.extend(run, MORE, **terms)
            seconds = time.monotonic() - started
            numbers[name] = {
                "calls": next(model.calls),
                "seconds": seconds,
                "novelty": novelty(path),
            }
            sets[name] = pairs(run.extensions()[-1])
            sets[f"{name} and result"] = sets[name] + sets["result"]
    own = runs_of(private) - runs_of(public)
    numbers |= {
        "own": len(own),
        "leaks": [" ".join(one) for one in own & runs_of(sets["examples"])],
    }
    rest = [(text, label) for text, label in test if text not in records]
    scores = {name: score_words(one, rest) for name, one in sets.items()}
    print(seed, scores, numbers, flush=True)
    return {"scores": scores, **numbers}


def evolve(
    folder: Path, url: str, seed: int, classes: list[str], records: int, place: Path
) -> pe.Run:
    """Return the run whose texts the extensions follow."""
    about = {
        "label_column": "label",
        "classes": classes,
        "cut": True,
        "declared_size": round(records, -2),
    }
    api = {
        "base_url": url,
        "key_env": None,
        "model": "m",
        "seed_field": "seed",
        "prompts": "Write a text.",
    }
    terms = {"iterations": 1, "degree": 0.0, "lookahead": 0, "votes": "smooth", "selection": "rank"}
    return pe.evolve(
        pe.TextTable(folder / "private.csv", ledger_file=place / "ledger.json", **about),
        pe.api("chat", variation="paraphrase", **api),
        embedding=pe.embedding("wordllama", public=folder / "public.csv"),
        epsilon=1.0,
        delta=1e-5,
        seed=seed,
        out=place / "run",
        population=[CANDIDATES * len(classes), A_LABEL * len(classes)],
        neighbors=CANDIDATES * len(classes) // 190,
        **terms,
    )


def runs_of(texts: list[tuple[str, str]]) -> set[tuple[str, ...]]:
    """Return the runs of eight words in all of these texts."""
    return set[tuple[str, ...]]().union(*(runs_of_words(text) for text, _ in texts))


def table(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines that the page shows: medians, and the least and most of all runs."""
    yield from ("| trained on | accuracy | macro-F1 |", "| --- | --- | --- |")
    for key, words in ROWS.items():
        yield (
            f"| {words} | "
            f"{' | '.join(spread([one['scores'][key][i] for one in results], '.3f') for i in (0, 1))} |"
        )
    for way in WAYS:
        for key, form in (("calls", ",.0f"), ("novelty", ".2f"), ("seconds", ".0f")):
            yield f"{ROWS[way]}, {key}: {spread([one[way][key] for one in results], form)}"
    yield f"private runs that are in no text of the pool: {results[0]['own']:,}"
    yield f"of these in the texts by examples, run by run: {[one['leaks'] for one in results]}"


def spread(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


if __name__ == "__main__":
    main()
