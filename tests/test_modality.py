"""The seam: another modality, known by entry points alone, has all that images have."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import KW_ONLY
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

import pe
from pe.cli.main import pe as command
from pe.data import samples
from pe.data.population import Population
from pe.errors import PEError
from pe.private.source import PrivateSource, source
from pe.recipe.schema import Recipe
from tests.words import WordList, Words

POINTS = """
[pe.modalities]
words = tests.words:Words
[pe.sources]
word_list = tests.words:WordList
[pe.adapters]
babble = tests.words:Babble
[pe.embeddings]
letters = tests.words:Letters
"""
VOWELS, CONSONANTS = "aeiou", "bcdfghjklm"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    info = tmp_path / "site" / "words-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: words\nVersion: 1\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.setattr(samples, "_modalities", {})
    rng = np.random.default_rng(0)
    lines = [
        f"{label} {''.join(rng.choice(list(letters), 5))}"
        for label, letters in (("vowels", VOWELS), ("consonants", CONSONANTS))
        for _ in range(2000)
    ]
    (tmp_path / "words.txt").write_text("\n".join(lines))
    content = {
        "private": {
            "kind": "word_list",
            "path": str(tmp_path / "words.txt"),
            "classes": ["vowels", "consonants"],
            "declared_size": 4000,
        },
        "api": {"kind": "babble"},
        "privacy": {"epsilon": 8, "delta": 1e-5},
        "evolution": {"iterations": 3, "population": 60, "lookahead": 2, "degree": [0.6, 0.4, 0.2]},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "recipe.yaml"


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(command, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


def stopped(*arguments: object) -> str:
    """The sentence that a command ends with."""
    with pytest.raises(PEError) as found:
        CliRunner().invoke(command, list(map(str, arguments)), catch_exceptions=False)
    return str(found.value)


def share_of_vowels(population: Population, label: int) -> float:
    words = population.samples.take(population.labels == label).array
    return float(np.mean([letter in VOWELS for word in words for letter in str(word)]))


def test_it_is_planned_run_stopped_resumed_reported_exported_and_extended(recipe: Path, tmp_path: Path) -> None:
    assert "ε" in invoke("plan", recipe)
    run = tmp_path / "run"
    assert "limits.max_images = 200 is reached" in stopped(
        "run", recipe, "--out", run, "--set", "limits.max_images=200"
    )
    invoke("resume", run, "--set", "limits.max_images=null")

    found = pe.Run(run)
    assert isinstance(found.synthetic.samples, Words)
    assert found.guarantee["epsilon"] == pytest.approx(8, abs=0.01)
    before, after = found.populations()[0], found.synthetic
    assert share_of_vowels(after, 0) > share_of_vowels(before, 0) + 0.2
    assert share_of_vowels(after, 1) < share_of_vowels(before, 1)
    invoke("privacy", run)

    invoke("extend", run, "-n", 10, "--set", "limits.max_images=null")
    assert len(found.extensions()[0]) == 10
    invoke("report", run)
    page = (run / "report.html").read_text()
    assert "synthetic words" in page
    assert "letters that differ" in page
    assert page.count("data:image/png") > 8

    invoke("export", run, "--to", tmp_path / "files", "--format", "folder")
    with (tmp_path / "files" / "synthetic" / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    written = [(tmp_path / "files" / "synthetic" / row["file"]).read_text() for row in rows]
    assert written[: len(after)] == after.samples.array.tolist()
    assert {row["label"] for row in rows} == {"vowels", "consonants"}
    invoke("export", run, "--to", tmp_path / "table", "--format", "parquet")
    table = pq.read_table(tmp_path / "table" / "synthetic.parquet")
    assert table["word"].to_pylist() == written
    feature = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]["word"]
    assert feature == {"dtype": "string", "_type": "Value"}
    invoke("probe", recipe, "--out", tmp_path / "probe.png")


@pytest.mark.parametrize(
    ("section", "spec", "sentence"),
    [
        ("api", {"kind": "glyphs", "size": 8}, "Glyphs makes images, and the private records are words"),
        ("embedding", {"kind": "pixels"}, "Pixels embeds images, and the private records are words"),
    ],
)
def test_a_plug_in_of_another_modality_is_refused_before_anything_is_asked(
    recipe: Path, tmp_path: Path, section: str, spec: dict[str, object], sentence: str
) -> None:
    content = yaml.safe_load(recipe.read_text())
    recipe.write_text(yaml.safe_dump(content | {section: spec}))
    planned = " ".join(invoke("plan", recipe).split())
    assert f"A run would not start: {sentence[:1].lower()}{sentence[1:]}" in planned
    said = stopped("run", recipe, "--out", tmp_path / "run")
    assert sentence in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("vowels aeiouaeiou", "Line 4001 of .*words.txt has more than the 8 letters that are declared"),
        ("vowels 4711", "'4711' is no word. Repair or remove it, or set on_bad_record: skip"),
    ],
)
def test_a_record_that_is_no_word_is_refused_in_a_sentence(
    recipe: Path, tmp_path: Path, line: str, sentence: str
) -> None:
    with (tmp_path / "words.txt").open("a") as file:
        file.write(f"\n{line}")
    said = stopped("run", recipe, "--out", tmp_path / "run")
    assert re.search(sentence, said)


def test_where_the_records_of_another_s_source_lie_is_in_no_shareable_file(recipe: Path, tmp_path: Path) -> None:
    @source
    class Register(WordList):
        """A list that a ward's server gives.

        Attributes:
            ward: where it is.
        """

        _: KW_ONLY
        ward: str = ""
        kind: Literal["register"] = "register"
        withheld: ClassVar[tuple[str, ...]] = (*WordList.withheld, "ward")

    content = yaml.safe_load(recipe.read_text())
    found = Recipe.parse(
        content | {"private": Register(tmp_path / "words.txt", ward="ward-7", classes=["vowels", "consonants"])}, "here"
    )
    assert "ward-7" in found.dump()
    assert "ward-7" not in found.dump_shareable()
    assert str(tmp_path) not in found.dump_shareable()


def test_a_source_that_does_not_say_where_its_records_lie_is_none() -> None:
    with pytest.raises(TypeError, match=r"abstract method.*place"):
        type("Nowhere", (PrivateSource,), {"shape": (8,), "open": None, "decoding": None})(kind="nowhere")


def test_it_is_evaluated_under_its_embedding(recipe: Path, tmp_path: Path) -> None:
    invoke("run", recipe, "--out", tmp_path / "run")
    rng = np.random.default_rng(1)
    lines = [
        f"{label} {''.join(rng.choice(list(letters), 5))}"
        for label, letters in (("vowels", VOWELS), ("consonants", CONSONANTS))
        for _ in range(50)
    ]
    (tmp_path / "test.txt").write_text("\n".join(lines))
    invoke("evaluate", tmp_path / "run", "--test", tmp_path / "test.txt", "--seeds", 1)
    values = json.loads((tmp_path / "run" / "confidential" / "metrics.json").read_text())
    assert values["run"]["noun"] == "words"
    assert values["utility"].keys() == {"linear_probe on letters"}
    assert values["utility"]["linear_probe on letters"]["real"]["accuracy"]["mean"] > 0.9
    assert values["fidelity"]["letters"]["controls"].keys() >= {"unevolved", "real"}
    assert values["memorisation"]["copies"]["generated"] == 60
    assert (tmp_path / "run" / "confidential" / "nearest_pairs.png").is_file()
    said = stopped("evaluate", tmp_path / "run", "--test", tmp_path / "test.txt", "--classifiers", "mlp")
    assert said == "The classifier 'mlp' is of images, and the run's data are words: take linear_probe."


def test_a_run_whose_modality_is_gone_says_which(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invoke("run", recipe, "--out", tmp_path / "run")
    shutil.rmtree(tmp_path / "site" / "words-1.dist-info")
    monkeypatch.setattr(samples, "_modalities", {})
    said = stopped("report", tmp_path / "run")
    assert said.startswith("Unknown source 'word_list'")
