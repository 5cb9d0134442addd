"""Measure how useful the data of a run are, by records, labels and ε: `python
benchmarks/usefulness.py`.

Usefulness is that of `pe evaluate`: where the accuracy of a linear probe lies between the best
trivial control (0) and the private records (10). Each run draws its records anew from a set, as
many as a cell says, of the set's largest labels. The generator is a pool that does not know the
labels, and holds samples of all of them and others, or draws digits by their labels. An image of a
pool is a number, whose vector was computed once, so a run takes seconds. Every run is kept in
results/usefulness.jsonl and not made again. Writes results/usefulness.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import floor, inf, log
from pathlib import Path
from typing import Any

import numpy as np
from record import RESULTS, keep, where
from sets import CLASSES, SIDE, TOPICS, make_newswire, make_picture_set, probe_accuracies

import pe
from pe.data.images import Images
from pe.data.texts import Texts
from pe.evaluation.grade import BEST
from pe.evaluation.labelled import Labelled
from pe.planning.releases import noise_multiplier_for
from pe.planning.usefulness import DRAWN, POOL, Measured, Rows
from pe.plugins.protocols import Embedding, PluginInfo, Vectors
from pe.plugins.specs import construct
from pe.privacy.ledger import Budget
from pe.privacy.release import Relation
from pe.private.npz import MnistSample
from pe.progress import Progress

RECORDS, LABELS, EPSILONS, RUNS = (100, 300, 1000, 3000), (2, 5, 10), (0.5, 1.0, 4.0, 10.0), 3
DELTA = 1e-5
KEPT = RESULTS / "usefulness.jsonl"


@dataclass(frozen=True)
class Part:
    """Samples of a set, with their labels; the embedding knows the images by their pixels."""

    images: Images
    labels: np.ndarray


@dataclass(frozen=True)
class DataSet:
    """Private, test and, if there is a pool, public samples, and the embedding of votes and
    probe.
    """

    private: Part
    test: Part
    pool: Images | None
    embedding: Embedding


class Lookup:
    """Vectors by number: an image is its number in four bytes."""

    info, batch_size = PluginInfo(hosts=()), 512

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors.astype(np.float32)

    def embed(self, images: Images) -> Vectors:
        numbers = images.pixels.reshape(len(images), 4).astype(np.int64) @ 256 ** np.arange(4)
        return self._vectors[numbers % len(self._vectors)]


def of_vectors(
    private: tuple[Vectors, np.ndarray], test: tuple[Vectors, np.ndarray], pool: Vectors
) -> DataSet:
    vectors = np.concatenate([private[0], test[0], pool])
    images = np.arange(len(vectors), dtype=np.uint32).view(np.uint8).reshape(-1, 2, 2, 1)
    one, two = len(private[0]), len(private[0]) + len(test[0])
    parts = (Images(images[:one]), Images(images[one:two]), Images(images[two:]))
    return DataSet(Part(parts[0], private[1]), Part(parts[1], test[1]), parts[2], Lookup(vectors))


def digits() -> DataSet:
    """scikit-learn's digits of 8×8, five of each by small shifts and turns; the pool has
    all ten.
    """
    from scipy.ndimage import affine_transform
    from sklearn.datasets import load_digits

    source, rng = load_digits(), np.random.default_rng(0)
    order = rng.permutation(len(source.target))
    parts = {}
    for name, part in {
        "private": order[:800],
        "pool": order[800:1400],
        "test": order[1400:],
    }.items():
        rows = np.repeat(part, 5)
        turns, shifts = rng.normal(0, 0.12, len(rows)), rng.normal(0, 0.4, (len(rows), 2))
        images = []
        for row, turn, shift in zip(rows, turns, shifts, strict=True):
            matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
            middle = np.array([3.5, 3.5])
            images.append(
                affine_transform(
                    source.images[row], matrix, middle - matrix @ middle + shift, order=1
                )
            )
        parts[name] = (
            np.stack(images).reshape(len(rows), -1),
            source.target[rows].astype(np.int32),
        )
    return of_vectors(parts["private"], parts["test"], parts["pool"][0])


def pictures(folder: Path) -> DataSet:
    """The set of examples/emoji.py, by EfficientNet-Lite0; the pool is other makers' pictures of
    all classes.
    """
    from pictures import Remembering

    from adapters.public_files import read_folder

    make_picture_set(folder)
    network = Remembering(folder.with_name(f"{folder.name}-efficientnet_lite.npz"))
    parts = {}
    for name, part in (("private", "private"), ("pool", "public-by-class"), ("test", "test")):
        pixels, labels = read_folder(folder / part, (SIDE, SIDE), "crop", 3)
        network.keep(Images(pixels))
        vectors = [network.embed(Images(pixels[i : i + 64])) for i in range(0, len(pixels), 64)]
        parts[name] = (
            np.concatenate(vectors),
            np.array([CLASSES.index(label) for label in labels], np.int32),
        )
    return of_vectors(parts["private"], parts["test"], parts["pool"][0])


def newswire(folder: Path) -> DataSet:
    """The texts of examples/newswire.py, by its embedding; the pool is windows of 80 words of other
    topics.
    """
    import csv

    make_newswire(folder)
    embedding = construct(
        "pe.embeddings", "tfidf", {"public": str(folder / "public.csv"), "projection": "svd"}
    )
    pool = construct(
        "pe.adapters", "public_texts", {"path": str(folder / "public.csv"), "words": 80}
    )
    windows = [
        text.item()
        for name, text in pool.public_samples((4096,), None)
        if name.startswith("window")
    ]

    def vectors(texts: list[bytes]) -> Vectors:
        parts = [np.array(texts[i : i + 256], dtype="S4096") for i in range(0, len(texts), 256)]
        return np.concatenate([embedding.embed(Texts(part)) for part in parts])

    parts = {}
    for name in ("private", "test"):
        with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        labels = np.array([TOPICS.index(row["label"]) for row in rows], np.int32)
        parts[name] = (vectors([row["text"].encode()[:4096] for row in rows]), labels)
    return of_vectors(parts["private"], parts["test"], vectors(windows))


def drawn_digits() -> DataSet:
    """The digits of `pe demo`, for which drawn text is the generator: it knows the labels."""
    parts = []
    for split in ("private", "test"):
        dataset = MnistSample(split=split).open()
        images, _ = next(dataset.blocks(len(dataset)))
        parts.append(Part(images, dataset.labels))
    return DataSet(*parts, None, construct("pe.embeddings", "pixels", {"blur": 0.8}))


def run_once(
    data: DataSet, records: int, labels: int, epsilon: float, seed: int
) -> dict[str, Any] | None:
    """One run: the accuracies by training set; None: the set has too few records of its largest
    labels.
    """
    largest = np.sort(np.argsort(-np.bincount(data.private.labels), kind="stable")[:labels])
    names = [str(label) for label in largest]
    own, tests = (
        np.flatnonzero(np.isin(part.labels, largest)) for part in (data.private, data.test)
    )
    if len(own) < records:
        return None
    own = np.random.default_rng(seed).permutation(own)[:records]
    real, test = (
        Labelled(
            part.images.take(rows), np.searchsorted(largest, part.labels[rows]).astype(np.int32)
        )
        for part, rows in ((data.private, own), (data.test, tests))
    )
    side = real.images.pixels.shape[1]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        np.savez(
            folder / "private.npz", images=real.images.pixels, labels=np.array(names)[real.labels]
        )
        generator = pe.api("glyphs")
        if data.pool is not None:
            np.savez(folder / "pool.npz", images=data.pool.pixels)
            generator = pe.api("public_images", path=str(folder / "pool.npz"), channels=1)
        private = pe.ImageNpz(
            folder / "private.npz", size=side, channels=1, classes=names, declared_size=records
        )
        run = pe.evolve(
            private,
            generator,
            embedding=data.embedding,
            epsilon=epsilon,
            delta=DELTA,
            seed=seed,
            out=folder / "run",
            progress=Progress(),
        )
        first, *_, last = run.populations()
        sets = {"synthetic": last, "unevolved": first}
        training = {name: Labelled(one.samples, one.labels) for name, one in sets.items()} | {
            "real": real
        }
        if len(last.labels) <= labels:  # one sample of a label trains no probe
            training.pop("synthetic")
        return probe_accuracies(training, test, data.embedding, Progress())


SETS = {
    POOL: ("digits", "pictures", "newswire"),
    DRAWN: ("drawn digits",),
}
MOST_LABELS = {"pictures": len(CLASSES), "newswire": len(TOPICS)}
LEAST_GAIN = 0.05
"""Accuracy that private records must have above the best control; below it nothing is to be
graded."""
GOALS = (3, 5, 7, 8)
LEAST_RUNS = 6
"""Runs that a band must have for a row."""
Grades = dict[tuple[str, int, int, float], list[float]]
"""Set, records, labels and ε → the usefulness of each run."""
LOWEST, STEP = 1.25, 2.0
"""Bands of votes over noise begin at LOWEST; each is STEP times as high as the one before."""


def usefulness(accuracy: dict[str, float]) -> float | None:
    """As `pe evaluate` grades it, in [0, 10]; None: nothing is to be gained."""
    control = max(accuracy["unevolved"], accuracy["chance"])
    span = accuracy["real"] - control
    if span < LEAST_GAIN:
        return None
    return BEST * min(max((accuracy.get("synthetic", control) - control) / span, 0.0), 1.0)


def ratio_of(records: int, labels: int, epsilon: float) -> float:
    """Votes of a label over the noise of one histogram with the whole budget."""
    return records / labels / noise_multiplier_for(Budget(epsilon, DELTA), 1, Relation.ADD_REMOVE)


def write_page(cells: list[dict[str, Any]]) -> None:
    grades: Grades = {}
    for one in cells:
        name, records, labels, epsilon, _ = one["cell"]
        value = usefulness(one["accuracy"])
        grades.setdefault((name, records, labels, epsilon), []).extend(
            [] if value is None else [value]
        )
    heads = "".join(f" ε = {epsilon:g} |" for epsilon in EPSILONS)
    lines = [
        "# Usefulness by records, labels and ε",
        "",
        "Usefulness of 10, as `pe evaluate` grades it: where the accuracy of a linear probe lies "
        "between the best trivial control and the private records, of which each run draws as many "
        f"as stated. δ = 1e-5, `evolution: auto`, {RUNS} runs a cell with other records and fresh "
        f"noise. {cells[-1]['where']}. `python benchmarks/usefulness.py` says what the sets are.",
    ]
    for measured, names in SETS.items():
        rows, table = by_ratio(
            {key: values for key, values in grades.items() if key[0] in names}, names
        )
        lines += [
            "",
            f"## {measured.sets}",
            "",
            "These rows are those of pe/planning/usefulness.py.",
            "",
            *table,
        ]
        lines += [
            "",
            "Records of a label for a median of",
            "",
            f"| usefulness |{heads}",
            "|--:" * 5 + "|",
        ]
        for goal in GOALS:
            ratio = Measured("", rows).ratio_of(goal)
            needed = " | ".join(in_digits(ratio / ratio_of(1, 1, epsilon)) for epsilon in EPSILONS)
            lines.append(f"| {goal} of 10 | {needed} |")
    keep("usefulness.md", "\n".join([*lines, *all_cells(grades)]))


def all_cells(grades: Grades) -> list[str]:
    names = [name for group in SETS.values() for name in group]
    lines = [
        "",
        "## All cells",
        "",
        "Mean (least–most) of the runs; – where nothing is to be gained, or the set has fewer "
        "records. Ten labels "
        f"are all {len(CLASSES)} of the pictures and {len(TOPICS)} of newswire.",
        "",
        f"| records | labels | ε | votes over noise | {' | '.join(names)} |",
        "|--:" * (4 + len(names)) + "|",
    ]
    for records, labels, epsilon in product(RECORDS, LABELS, EPSILONS):
        keys = [
            (name, records, min(labels, MOST_LABELS.get(name, labels)), epsilon) for name in names
        ]
        cells = " | ".join(in_words(grades.get(key, [])) for key in keys)
        ratio = float(f"{ratio_of(records, labels, epsilon):.3g}")
        if any(grades.get(key) for key in keys):
            lines.append(f"| {records:,} | {labels} | {epsilon:g} | {ratio:g} | {cells} |")
    return lines


def by_ratio(grades: Grades, names: Sequence[str]) -> tuple[Rows, list[str]]:
    """Return what `pe plan` foretells from, a row for each band of votes over noise; and the same
    as a table.
    """
    bands: dict[int, dict[str, list[tuple[float, float]]]] = {}
    for (name, *cell), values in ((key, values) for key, values in grades.items() if values):
        ratio = ratio_of(*cell)
        band = bands.setdefault(floor(log(ratio / LOWEST, STEP)), {})
        band.setdefault(name, []).extend((ratio, value) for value in values)
    others = names if len(names) > 1 else ()
    heads = ["votes over noise", "first quartile", "median", "third quartile", "runs", *others]
    rows, lines = [], [f"| {' | '.join(heads)} |", "|--:" * len(heads) + "|"]
    for _, band in sorted(bands.items()):
        if sum(map(len, band.values())) < LEAST_RUNS:
            continue
        ratios, values = np.array([pair for each in band.values() for pair in each]).T
        quartiles = np.round(np.percentile(values, [25, 50, 75]), 1)
        rows.append((float(f"{np.exp(np.log(ratios).mean()):.3g}"), *map(float, quartiles)))
        medians = (
            f"{np.median([value for _, value in band[name]]):.1f}" if name in band else "–"
            for name in others
        )
        cells = [
            f"{rows[-1][0]:g}",
            *(f"{each:.1f}" for each in rows[-1][1:]),
            f"{len(values)}",
            *medians,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return tuple(rows), lines


def in_digits(number: float) -> str:
    """In two digits; – if infinite."""
    return f"{float(f'{number:.2g}'):,.0f}" if number < inf else "–"


def in_words(values: list[float]) -> str:
    return f"{np.mean(values):.1f} ({min(values):.1f}–{max(values):.1f})" if values else "–"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pictures", type=Path, default=Path("pictures"), help="folder of the picture set"
    )
    parser.add_argument(
        "--newswire", type=Path, default=Path("newswire"), help="folder of the texts"
    )
    parser.add_argument(
        "--sets", nargs="+", default=["digits", "pictures", "newswire", "drawn digits"]
    )
    arguments = parser.parse_args()
    makers = {
        "digits": digits,
        "pictures": lambda: pictures(arguments.pictures),
        "newswire": lambda: newswire(arguments.newswire),
        "drawn digits": drawn_digits,
    }
    for name in arguments.sets:
        done = {tuple(one["cell"]) for one in kept_runs()}
        data = makers[name]()
        for seed, records, labels, epsilon in product(range(RUNS), RECORDS, LABELS, EPSILONS):
            cell = (name, records, min(labels, MOST_LABELS.get(name, labels)), epsilon, seed)
            if cell not in done and (accuracy := run_once(data, *cell[1:])) is not None:
                line = json.dumps({"cell": cell, "where": where(), "accuracy": accuracy})
                print(line, flush=True)
                with KEPT.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
    write_page(kept_runs())


def kept_runs() -> list[dict[str, Any]]:
    return (
        [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()]
        if KEPT.exists()
        else []
    )


if __name__ == "__main__":
    main()
