"""What `pe init` writes without being told depends on no record: data sets that differ in one have one recipe."""

from __future__ import annotations

import csv
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pe.recipe.schema import Recipe
from tests.cli.test_commands import assert_one_sentence, public, scans
from tests.cli.typed import pe

__all__ = ["public", "scans"]  # fixtures

STATED = ("--privacy-unit", "record", "--declared-size", 500, "--public", "pool")
Record = tuple[int, str, str, str]  # an image's side and mode; a text; a label
FEW: list[Record] = [(120, "L", "A short text.", "a")] * 3
LARGER, COLOUR, LONGER = (300, "L", "A short text.", "a"), (64, "RGB", "A short text.", "a"), (120, "L", "x" * 900, "a")
CLASS = (120, "L", "A short text.", "rare")


def png(side: int, mode: str) -> bytes:
    buffer, pixels = io.BytesIO(), np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(buffer, "PNG")
    return buffer.getvalue()


def image_folder(place: Path, records: list[Record]) -> None:
    for i, (side, mode, _, label) in enumerate(records):
        (place / label).mkdir(parents=True, exist_ok=True)
        (place / label / f"{i}.png").write_bytes(png(side, mode))


def text_folder(place: Path, records: list[Record]) -> None:
    for i, (_, _, text, label) in enumerate(records):
        (place / label).mkdir(parents=True, exist_ok=True)
        (place / label / f"{i}.txt").write_text(text)


def npz(place: Path, records: list[Record]) -> None:
    np.savez(place, images=np.zeros((len(records), 28, 28), np.uint8), labels=[label for *_, label in records])


def parquet(place: Path, records: list[Record]) -> None:
    images, labels = [png(side, mode) for side, mode, *_ in records], [label for *_, label in records]
    pq.write_table(pa.table({"image": images, "label": labels}), place)


def table(place: Path, records: list[Record]) -> None:
    """The column with the most text is another one where the text of one record is long."""
    with place.open("w", newline="") as file:
        csv.writer(file).writerows(
            [("note", "said", "label"), *(("A note of some words.", t, x) for *_, t, x in records)]
        )


def lines(place: Path, records: list[Record]) -> None:
    """The last record comes first, and has keys that the others lack."""
    rows = [{"said": text, "class" if i < len(FEW) else "label": label} for i, (*_, text, label) in enumerate(records)]
    place.write_text("".join(f"{json.dumps(row)}\n" for row in rows[::-1]))


def tar(place: Path, records: list[Record]) -> None:
    with tarfile.open(place, "w") as file:
        for i, (side, mode, _, label) in enumerate(records):
            for suffix, content in (("png", png(side, mode)), ("cls", label.encode())):
                member = tarfile.TarInfo(f"{i}.{suffix}")
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))


Write = Callable[[Path, list[Record]], None]
CASES = [
    *((name, write, one) for name, write in (("a", image_folder), ("a.tar", tar)) for one in (LARGER, COLOUR, CLASS)),
    *((name, write, one) for name, write in (("a.csv", table), ("a.jsonl", lines)) for one in (LONGER, CLASS)),
    *((("a", text_folder, LONGER), ("a.parquet", parquet, LARGER), ("a.npz", npz, CLASS))),
]


@pytest.mark.parametrize(("name", "write", "more"), CASES)
@pytest.mark.parametrize("typed", ["", "\n" * 20], ids=["nobody", "Enter"])
def test_one_record_more_changes_nothing_that_is_written_without_being_told(
    tmp_path: Path, name: str, write: Write, more: Record, typed: str
) -> None:
    recipes = []
    for folder, records in (("without", FEW), ("with", [*FEW, more])):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / name, records)
        told = pe("init", name, *STATED, cwd=tmp_path / folder, typed=typed)
        assert told.returncode == 0, told.stderr
        assert "Declare in recipe.yaml before a run: " in told.stdout
        recipes.append((tmp_path / folder / "recipe.yaml").read_text())
    assert recipes[0] == recipes[1]
    with pytest.raises(Exception, match=r"must be .*, not empty: declare it"):
        Recipe.load(tmp_path / "with" / "recipe.yaml")


def test_one_record_of_another_kind_changes_no_proposal(tmp_path: Path) -> None:
    for name, records in (("a", FEW), ("b", [*FEW, COLOUR])):
        image_folder(tmp_path / name, records)
        told = pe("init", name, *STATED, "--out", f"{name}.yaml", cwd=tmp_path)
        assert "(proposed: 120; yes, or another)" in told.stdout
        assert "(proposed: 1; yes, or another)" in told.stdout


@pytest.mark.parametrize("name", [b"caf\xe9", b"\xff\xfe"])
def test_a_class_whose_name_is_not_utf_8_is_refused_in_one_sentence(tmp_path: Path, name: bytes) -> None:
    image_folder(tmp_path / "scans", FEW)
    other = tmp_path / "scans" / os.fsdecode(name)
    (tmp_path / "scans" / "a").rename(other)
    for where in ("scans", other):
        refused = pe("init", where, *STATED, "--classes", "", "--size", 8, "--channels", 1, cwd=tmp_path)
        assert_one_sentence(refused, "is not UTF-8, so no recipe can hold it: rename it.")
        assert not (tmp_path / "recipe.yaml").exists()
