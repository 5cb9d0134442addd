"""Texts from a recipe's file to what is shared: a table of private ones, a public pool, TF-IDF."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

import pe
from pe.data.population import Population
from pe.data.texts import Texts
from tests.test_modality import invoke, stopped

SUBJECTS = {
    "wine": [
        "vineyard",
        "harvest",
        "barrel",
        "grape",
        "cellar",
        "tasting",
        "vintage",
        "cork",
        "bottle",
    ],
    "rail": [
        "locomotive",
        "platform",
        "signal",
        "carriage",
        "timetable",
        "conductor",
        "junction",
        "freight",
    ],
}
HTML = "<script>alert(1)</script> & المحطة"


def text_of(subject: str, rng: np.random.Generator) -> str:
    return " ".join([*rng.choice(SUBJECTS[subject], 5), *rng.choice(["the", "of", "and", "to"], 6)])


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    with (tmp_path / "data" / "notes.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [
            (text_of(subject, rng), subject, f"p{i // 2}")
            for i in range(600)
            for subject in SUBJECTS
        ]
        csv.writer(file).writerows([("note", "about", "patient"), *rows])
    public = [text_of(subject, rng) for _ in range(150) for subject in SUBJECTS] + [HTML] * 3
    (tmp_path / "public.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in public))
    content = {
        "private": {
            "kind": "text_table",
            "path": "data/notes.csv",
            "text_column": "note",
            "label_column": "about",
            "classes": [*SUBJECTS],
            "declared_size": 1200,
            "longest": 200,
        },
        "api": {"kind": "public_texts", "path": "public.jsonl", "longest": 200},
        "privacy": {"epsilon": 4, "delta": 1e-5},
        "evolution": {"iterations": 2, "population": 40, "lookahead": 2, "degree": [0.1, 0.02]},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "recipe.yaml"


def share_of(population: Population, label: int, subject: str) -> float:
    samples = population.samples.take(population.labels == label)
    assert isinstance(samples, Texts)
    return float(
        np.mean([any(word in text for word in SUBJECTS[subject]) for text in samples.strings])
    )


def test_texts_are_planned_run_reported_and_exported(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    paid = ("--set", "api.price={image: 0.1}", "--set", "limits.max_cost=50")
    said = [
        invoke("plan", recipe, *paid),
        invoke("run", recipe, "--out", run),
        invoke("view", run, "--text"),
    ]
    assert "40 texts at the end" in said[0]
    assert "40 texts, " in said[1]
    found = pe.Run(run)
    after = found.synthetic
    for label, subject in enumerate(SUBJECTS):
        assert (
            share_of(after, label, subject) > 0.8 > share_of(found.populations()[0], label, subject)
        )
    assert not [
        path
        for path in run.glob("*.*")
        if str(tmp_path / "data") in path.read_text(errors="ignore")
    ]

    invoke("extend", run, "-n", 6)
    invoke("view", run, "--write")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "synthetic texts" in page
    assert "<script>alert(1)" not in page
    said.append(re.sub(r"<style>.*?</style>|data:image/\S+|<code>.*?</code>", "", page, flags=re.S))
    for text in (*said, (run / "certificate.md").read_text()):  # nothing speaks of images
        assert (
            re.findall(r"(?<!max_)images?\b", re.sub(r'"[^"]*"|next: .*', "", text), re.I) == []
        ), text

    invoke("export", run, tmp_path / "files", "--format", "folder")
    exported = tmp_path / "files" / "synthetic"
    with (exported / "labels.csv").open(newline="") as file:
        written = {row["file"]: row["label"] for row in csv.DictReader(file)}
    assert isinstance(after.samples, Texts)
    assert [(exported / name).read_text("utf-8") for name in written][:40] == after.samples.strings
    assert set(written.values()) == set(SUBJECTS)
    for form in ("csv", "jsonl", "parquet"):  # what is exported can be read as any table
        invoke("export", run, tmp_path / form, "--format", form)
        source = pe.TextTable(
            tmp_path / form / f"synthetic.{form}", classes=[*SUBJECTS], label_column="label"
        ).open()
        assert source.labels.tolist()[:40] == after.labels.tolist()


@pytest.mark.parametrize("section", ["api", "embedding"])
def test_a_private_text_among_the_public_ones_does_not_decide_whether_a_run_starts_but_its_file_does(
    recipe, tmp_path, section
):
    with (tmp_path / "data" / "notes.csv").open(newline="", encoding="utf-8") as file:
        record = next(csv.DictReader(file))["note"]
    content = yaml.safe_load(recipe.read_text())
    (tmp_path / "more.txt").write_text(f"something else\n  {record} \r\n")
    content[section] = {
        "api": {"kind": "public_texts", "path": "more.txt"},
        "embedding": {"kind": "tfidf"},
    }[section]
    if section == "embedding":
        content[section]["public"] = "more.txt"
    recipe.write_text(yaml.safe_dump(content))
    said = invoke("run", recipe, "--out", tmp_path / "run", "--set", "evolution.population=4")
    assert "Certificate" in said
    assert (
        json.loads((tmp_path / "run" / "public_samples.json").read_text())[section]["samples"] == 2
    )
    content[section]["public" if section == "embedding" else "path"] = "data/notes.csv"
    content[section]["text_column"] = "note"
    recipe.write_text(yaml.safe_dump(content))
    assert "are the private records" in stopped("run", recipe, "--out", tmp_path / "other")
    assert not (tmp_path / "other").exists()
