"""What people have on their disks: each odd record is read as it is meant, or refused in one
sentence; none is lost.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tifffile
from PIL import Image

from adapters.public_files import read_folder
from pe.errors import RecipeError
from pe.private.folder import ImageFolder
from pe.private.npz import ImageNpz
from pe.private.tables import ImageParquet, TextTable
from tests.private.records import FILES, refused, write

# privacy units


def table(path, who):
    for number, part in enumerate(who if isinstance(who[0], list) else [who]):
        pq.write_table(
            pa.table({"image": FILES[: len(part)], "who": part}), path / f"{number}.parquet"
        )
    return ImageParquet(path, size=8, privacy_unit="who")


def lines(path, who):
    rows = [json.dumps({"text": f"t{number}", "who": one}) + "\n" for number, one in enumerate(who)]
    return TextTable(write(path / "a.jsonl", "".join(rows).encode()), privacy_unit="who")


def listed(path, who):
    for number in range(len(who)):
        write(path / f"{number}.png", FILES[number])
    rows = "".join(f"{number}.png,{one}\n" for number, one in enumerate(who))
    write(path / "labels.csv", f"file,who\n{rows}".encode())
    return ImageFolder(path, size=8, privacy_unit="who")


def arrays(path, who):
    np.savez(path / "a.npz", images=np.zeros((len(who), 8, 8, 3), np.uint8), who=np.array(who))
    return ImageNpz(path / "a.npz", size=8, privacy_unit="who")


def folders(path, who):
    for number, one in enumerate(who):
        write(path / f"{one}/{number}.png", FILES[number])
    return ImageFolder(path, size=8, classes=[], privacy_unit="subfolder")


@pytest.mark.parametrize(
    ("form", "who", "parts"),
    [
        (table, [["001", "002"], [1, 2]], ["0.parquet", "1.parquet", "who", "text", "number"]),
        (lines, ["1", 1], ["Row 1", "Row 2", "who", "text", "number"]),
        (listed, ["1", "1.0"], ["Record 1", "Record 2", "leading zeros"]),
        (listed, ["ann", "ann\u200b"], ["invisible"]),
        (lines, ["b-1", "b\u20131"], ["dashes"]),
        (arrays, ["P-007", "P-7"], ["leading zeros"]),
        (arrays, ["Ann", "ANN"], ["case"]),
        (folders, ["p 1", "p1"], ["spaces"]),
        (lines, ["\uff11", "1"], ["alike"]),
        (lines, ["b", "\u200b"], ["Row 2", "no usable who"]),
        (lines, [1.0], ["no usable who"]),
    ],
)
def test_ids_that_look_alike_are_refused_and_not_named(tmp_path, form, who, parts):
    said = refused(form(tmp_path, who), *parts)
    assert not [one for one in who if f"'{one}'" in said]
    assert "ann" not in said.lower()


@pytest.mark.parametrize(
    ("who", "count"),
    [
        (["1", "2", "10", "1.1", "1.10"], 5),
        (["a", " a ", "b"], 2),
        (["cafe\u0301", "caf\u00e9"], 1),
    ],
)
def test_ids_that_are_one_or_clearly_several_are_kept(tmp_path, who, count):
    assert len(set(lines(tmp_path, who).open().units.tolist())) == count


UNSEEN = ["\n", "\u2028", "\u2029", "\x85", "\t", "\0", "\x1b", "\u202e", "\ufeff", "\udce9"]


@pytest.mark.parametrize("name", [*(f"a{one}b" for one in UNSEEN), "", " ", " a"], ids=ascii)
def test_a_class_name_that_a_line_cannot_show_is_refused_before_anything_is_paid(tmp_path, name):
    with pytest.raises(RecipeError, match="class name") as error:
        ImageFolder(tmp_path, size=8, classes=[name])
    assert "\n" not in str(error.value)
    for kept in ("café crème", "می\u200cخواهم", "👩\u200d🔬", "a/b: #1", "10"):
        assert ImageFolder(tmp_path, size=8, classes=[kept]).class_names == (kept,)


GREY = {"size": 8, "channels": 1}


def deep(path, number, top, channels, suffix):
    values = np.random.default_rng(number).integers(0, top + 1, (8, 8, channels), dtype=np.uint16)
    values[0, 0] = top
    path.mkdir(exist_ok=True)
    if channels == 3:
        tifffile.imwrite(path / f"{number}.tif", values, photometric="rgb")
    else:
        Image.fromarray(values[:, :, 0]).save(path / f"{number}.{suffix}")
    return values


@pytest.mark.parametrize(("channels", "suffix"), [(1, "png"), (1, "tif"), (3, "tif")])
def test_files_of_16_bits_whose_values_have_12_are_refused(tmp_path, channels, suffix):
    pool = tmp_path / "scans"
    np.savez(
        tmp_path / "a.npz",
        images=np.stack([deep(pool, number, 4095, channels, suffix) for number in range(3)]),
    )
    pq.write_table(
        pa.table({"image": [path.read_bytes() for path in pool.iterdir()]}), tmp_path / "a.parquet"
    )
    folder = ImageFolder(pool, **GREY)
    for source in (
        folder,
        ImageNpz(tmp_path / "a.npz", **GREY),
        ImageParquet(tmp_path / "a.parquet", **GREY),
    ):
        refused(source, "16-bit", "4,095", "multiply")
    with pytest.raises(RecipeError, match="16-bit"):
        read_folder(pool, None, "crop", 1)
    deep(pool, 3, 4096, channels, suffix)  # one that goes beyond: the others are dark
    assert folder.open().check() == []
    assert len(read_folder(pool, None, "crop", 1)[0]) == 4
    Image.new("L", (8, 8), 3).save(write(tmp_path / "dark/1.png"))  # of 8 bits
    assert ImageFolder(tmp_path / "dark", **GREY).open().check() == []
