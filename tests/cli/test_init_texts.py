"""`pe init` over private texts: what it sees in a folder or a table, and that its recipe runs."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pe.evaluation.methods import TextMethods
from pe.recipe.schema import Recipe
from tests.cli.test_init import planned
from tests.cli.typed import pe

TEXTS = {
    "bad": "The soup was cold, and nobody came to table {}.",
    "good": "A kind waiter brought us bread at table {}.",
}
ROWS = [
    {"id": i, "review": text.format(i), "topic": label, "author": f"a{i // 4}"}
    for label, text in TEXTS.items()
    for i in range(12)
]
RECORDS = ("--privacy-unit", "record", "--declared-size", 30, "--public", "public")
COLUMNS = ("--text-column", "review", "--label-column", "topic")


def written(place: Path, rows: list[dict[str, object]] = ROWS) -> Path:
    """The reviews: a folder of .txt files by label, or a table."""
    if place.suffix == ".csv":
        with place.open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    elif place.suffix == ".jsonl":
        place.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif place.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), place)
    elif place.suffix == ".txt":
        place.write_text("".join(f"{row['review']}\n" for row in rows))
    else:
        for i, row in enumerate(rows):
            file = place / str(row["topic"]) / f"{i}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(str(row["review"]))
    return place


def public(place: Path) -> Path:
    return written(place, [row | {"review": f"{row['review']} Yes."} for row in ROWS])


@pytest.mark.parametrize("name", ["reviews", "reviews.csv", "reviews.jsonl", "reviews.parquet"])
def test_reviews_are_seen_and_the_recipe_is_planned(tmp_path: Path, name: str) -> None:
    written(tmp_path / name)
    public(tmp_path / "public.jsonl")
    table = name != "reviews"
    columns = "yes\nyes\n" if table else ""
    result = pe("init", name, cwd=tmp_path, typed=f"{columns}yes\n\n30\npublic.jsonl\nyes\n")
    assert result.returncode == 0, result.stderr
    assert "(proposed: bad,good; yes, or another):" in result.stdout
    assert "Public texts to draw from, a folder of .txt files, a .txt file (a text a line) or a table" in result.stdout
    assert "twice the median of 32 texts at most (proposed: 250; yes, or another):" in result.stdout
    assert "public.jsonl has texts of every class, so each class draws from its own" in result.stdout
    assert "image" not in result.stdout
    recipe = Recipe.load(tmp_path / "recipe.yaml")
    assert (recipe.private.kind, recipe.private.class_names) == (f"text_{'table' if table else 'folder'}", tuple(TEXTS))
    assert ("proposed: review" in result.stdout and "proposed: topic" in result.stdout) == table
    pool = {"path": str(tmp_path / "public.jsonl"), "text_column": "review"}
    assert recipe.api.settings == pool | {"label_column": "topic", "longest": 250, "by_label": True}
    assert (recipe.embedding.kind, recipe.embedding.settings["text_column"]) == ("tfidf", "review")
    text = (tmp_path / "recipe.yaml").read_text()
    assert "image" not in text
    assert {line.index("# ") for line in text.splitlines() if " # " in line.strip()} == {29}
    assert not [line for line in planned(tmp_path, "recipe.yaml")["warnings"] if "would not start" in line]


@pytest.mark.parametrize("pool", ["public", "public.txt"])
def test_the_recipe_runs_over_a_pool_that_is_no_table(tmp_path: Path, pool: str) -> None:
    written(tmp_path / "reviews.csv")
    public(tmp_path / pool)
    units = ("--privacy-unit", "author", "--declared-units", 6, "--declared-size", 24)
    told = pe(
        "init",
        "reviews.csv",
        *units,
        *COLUMNS,
        "--classes",
        "bad,good",
        "--longest",
        250,
        "--public",
        pool,
        cwd=tmp_path,
    )
    assert told.returncode == 0, told.stderr
    by_label = pool == "public"
    assert ("so each class draws from its own" in told.stdout) == by_label
    assert Recipe.load(tmp_path / "recipe.yaml").api.settings["by_label"] is by_label
    run = pe("run", "recipe.yaml", "--set", "evolution={iterations: 1, population: 8, lookahead: 0}", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "8 texts" in run.stdout


def test_a_list_of_labels_makes_no_table_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for i in range(3):
        (tmp_path / "notes" / f"{i}.txt").write_text(f"Text {i}")
    (tmp_path / "notes" / "labels.csv").write_text("file,label,author\n0.txt,a,x\n1.txt,b,x\n2.txt,a,y\n")
    told = pe(
        "init",
        "notes",
        *RECORDS[2:],
        "--privacy-unit",
        "author",
        "--declared-units",
        2,
        "--longest",
        40,
        cwd=tmp_path,
        typed="yes\n",
    )
    assert told.returncode == 0, told.stderr
    private = Recipe.load(tmp_path / "recipe.yaml").private
    assert (private.kind, private.class_names) == ("text_folder", ("a", "b"))
    assert (
        TextMethods().source_at(str(tmp_path / "notes"), private).kind == "text_folder"
    )  # as `pe evaluate` reads a test set


def test_a_column_of_an_unusual_name_is_named_by_an_option(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", [{"mood": row["topic"], "title": "Soup", "said": row["review"]} for row in ROWS])
    told = pe("init", "a.csv", *RECORDS, "--longest", 40, cwd=tmp_path, typed="said\n-\n")
    assert told.returncode == 0, told.stderr
    assert Recipe.load(tmp_path / "recipe.yaml").private.class_names == ()
    options = ("--text-column", "title", "--label-column", "mood", "--longest", 40, "--out", "b.yaml")
    told = pe("init", "a.csv", *RECORDS, *options, cwd=tmp_path, typed="yes\n")
    assert told.returncode == 0, told.stderr
    private = Recipe.load(tmp_path / "b.yaml").private
    assert (private.text_column, private.class_names, private.longest) == ("title", ("bad", "good"), 40)


def test_twice_the_median_length_is_proposed_and_no_more_than_the_usual(tmp_path: Path) -> None:
    for name, size, longest in (("a", 200, 500), ("b", 5000, 2000)):
        written(tmp_path / name, [{"topic": "good", "review": "x" * size}])
        told = pe("init", name, "--classes", "", *RECORDS, "--out", f"{name}.yaml", cwd=tmp_path, typed="yes\n")
        assert told.returncode == 0
        assert Recipe.load(tmp_path / f"{name}.yaml").private.longest == longest


@pytest.mark.parametrize("kind", ["chat", "causal_lm", "masked_lm"])
def test_a_recipe_over_a_generator_of_texts_is_planned_as_it_is_written(tmp_path: Path, kind: str) -> None:
    written(tmp_path / "reviews")
    answers = ("--privacy-unit", "record", "--declared-size", 500, "--classes", "bad,good", "--longest", 250)
    result = pe("init", "reviews", "--api", kind, *answers, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    settings = Recipe.load(tmp_path / "recipe.yaml").api.settings
    assert (settings["prompts"], settings["longest"]) == ("Write a short text about {label}.", 250)
    assert planned(tmp_path, "recipe.yaml")["per_iteration"]


@pytest.mark.parametrize(
    ("where", "flags", "sentence"),
    [
        ("nowhere", [], "nowhere does not exist: name a folder of images or texts, an .npz or .tar file or a table"),
        ("a.txt", [], r"a.txt is of no type that is read here: name .* a table \(.csv, .tsv"),
        ("a.csv", ["--text-column", "body"], "no column 'body': it has the columns 'id', 'review', 'topic', 'author'"),
        ("numbers.parquet", [], "numbers.parquet has no column of texts: it has the columns 'a'"),
        ("reviews", ["--api", "openai_images"], "it makes images, and the private records are texts: name another"),
        ("a.csv", ["--size", 32], "--size is not of texts, which a.csv holds: leave it out"),
        ("reviews", ["--public", "reviews"], "The public texts reviews are the private records reviews"),
        ("reviews", ["--public", "numbers.pdf"], "is no file of public texts"),
        ("empty", ["--public", "x"], "There are no records"),
    ],
)
def test_init_refuses_what_the_run_would(tmp_path: Path, where: str, flags: list[str], sentence: str) -> None:
    written(tmp_path / "reviews")
    written(tmp_path / "a.csv")
    written(tmp_path / "a.txt")
    (tmp_path / "empty").mkdir()
    (tmp_path / "numbers.pdf").touch()
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "numbers.parquet")
    common = RECORDS[:4] if {"--api", "--public"} & set(flags) else RECORDS
    result = pe("init", where, "--classes", "", *common, *flags, cwd=tmp_path)
    assert result.returncode == 2
    assert re.search(sentence, result.stderr), result.stderr
    assert not (tmp_path / "recipe.yaml").exists()
