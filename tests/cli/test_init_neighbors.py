"""What `pe init` writes without being told depends on no record: data sets that differ in one have one recipe."""

import json
import os

import numpy as np
import pytest

from pe.recipe.schema import Recipe
from tests.cli.typed import assert_one_sentence, pe
from tests.private.records import png, write
from tests.private.test_forms import FORMS
from tests.private.test_texts import WRITERS

STATED = ("--privacy-unit", "record", "--declared-size", 500, "--public", "pool")
FEW = [(60, True, "A short text.", "a")] * 3  # an image's side, and if it is grey; a text; a label
LARGER, COLOUR = (300, True, "A short text.", "a"), (64, False, "A short text.", "a")
LONGER, CLASS = (60, True, "x" * 900, "a"), (60, True, "A short text.", "rare")


def images(form):
    """Images in a folder for each label, or in one of the other forms."""

    def write_all(place, records):
        files = [png(np.full((side, side, 3), [9, 9, 9 if grey else 99], np.uint8)) for side, grey, *_ in records]
        labels = [label for *_, label in records]
        for i, (label, file) in enumerate(zip(labels, files, strict=True) if form == "folder" else ()):
            write(place / label / f"{i}.png", file)
        if form != "folder":
            FORMS[form](place, files, np.zeros((len(records), 8, 8), np.uint8), labels, labels)

    return write_all


def text_folder(place, records):
    for i, (_, _, text, label) in enumerate(records):
        write(place / label / f"{i}.txt", text.encode())


def table(place, records):
    """The column with the most text is another one where the text of one record is long."""
    _, _, texts, labels = zip(*records, strict=True)
    WRITERS[".csv"](place / "a.csv", {"note": ["A note of some words."] * len(texts), "said": texts, "label": labels})


def lines(place, records):
    """The last record comes first, and has keys that the others lack."""
    rows = [{"said": text, "class" if i < len(FEW) else "label": label} for i, (*_, text, label) in enumerate(records)]
    write(place / "a.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows[::-1]).encode())


@pytest.mark.parametrize(
    ("name", "write_all", "more", "typed"),
    [
        ("data", images("folder"), LARGER, ""),
        ("data", images("folder"), COLOUR, "\n" * 20),  # Enter says nothing
        ("data", images("folder"), CLASS, ""),
        ("data", table, LONGER, ""),
        ("data", lines, CLASS, "\n" * 20),
        ("data", images("tar"), CLASS, ""),
        ("data", images("parquet"), LARGER, ""),
        ("data/a.npz", images("npz"), CLASS, ""),
        ("data", text_folder, LONGER, ""),
    ],
)
def test_one_record_more_changes_nothing_that_is_written_without_being_told(tmp_path, name, write_all, more, typed):
    recipes = []
    for folder, given in (("without", FEW), ("with", [*FEW, more])):
        (tmp_path / folder / "data").mkdir(parents=True)
        write_all(tmp_path / folder / "data", given)
        told = pe("init", name, *STATED, cwd=tmp_path / folder, typed=typed)
        assert told.returncode == 0, told.stderr
        assert "Declare in recipe.yaml before a run: " in told.stdout
        recipes.append((tmp_path / folder / "recipe.yaml").read_text())
    assert recipes[0] == recipes[1]
    with pytest.raises(Exception, match=r"must be .*, not empty: declare it"):
        Recipe.load(tmp_path / "with" / "recipe.yaml")


@pytest.mark.parametrize("name", [b"caf\xe9", b"\xff\xfe"])
def test_a_class_whose_name_is_not_utf_8_is_refused_in_one_sentence(tmp_path, name):
    other = tmp_path / "scans" / os.fsdecode(name)
    images("folder")(tmp_path / "scans", [(*FEW[0][:3], other.name)])
    for where in ("scans", other):
        refused = pe("init", where, *STATED, "--classes", "", "--size", 8, "--channels", 1, cwd=tmp_path)
        assert_one_sentence(refused, "is not UTF-8, so no recipe can hold it: rename it.")
        assert not (tmp_path / "recipe.yaml").exists()
