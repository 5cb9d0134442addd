"""What people have on their disks: each odd record is read as it is meant, or refused in one sentence; none is lost."""

import io
import json
import os
import subprocess
import sys
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tifffile
from PIL import Image

from adapters.public_files import read_arrays, read_folder
from pe.data.images import Images
from pe.data.tables import files_below
from pe.errors import PrivateDataError, RecipeError
from pe.private import ImageFolder, ImageNpz, ImageParquet, PrivateDataset, TextTable, WebDataset, find_labels


def png(number=0, **settings):
    file = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG", **settings)
    return file.getvalue()


def write(path, data=b""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def tar(path, names):
    with tarfile.open(path, "w") as file:
        for number, name in enumerate(names):
            data = png(number) if name.endswith(("png", "jpg")) else b"cat"
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return path


def refused(source, *words):
    with pytest.raises(PrivateDataError) as error:
        source.open().check()
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), error.value


# privacy units


def table(path, who):
    parts = who if isinstance(who[0], list) else [who]
    for number, part in enumerate(parts):
        pq.write_table(pa.table({"image": [png(n) for n in range(len(part))], "who": part}), path / f"{number}.parquet")
    return ImageParquet(path, size=8, privacy_unit="who")


def lines(path, who):
    write(
        path / "a.jsonl",
        "".join(json.dumps({"text": f"t{n}", "who": one}) + "\n" for n, one in enumerate(who)).encode(),
    )
    return TextTable(path / "a.jsonl", privacy_unit="who")


def listed(path, who):
    rows = [f"{n}.png,{one}" for n, one in enumerate(who)]
    for number in range(len(who)):
        write(path / f"{number}.png", png(number))
    write(path / "labels.csv", "\n".join(["file,who", *rows]).encode())
    return ImageFolder(path, size=8, privacy_unit="who")


def arrays(path, who):
    np.savez(path / "a.npz", images=np.zeros((len(who), 8, 8, 3), np.uint8), who=np.array(who))
    return ImageNpz(path / "a.npz", size=8, privacy_unit="who")


def folders(path, who):
    for number, one in enumerate(who):
        write(path / f"{one}/{number}.png", png(number))
    return ImageFolder(path, size=8, classes=[], privacy_unit="subfolder")


@pytest.mark.parametrize(
    ("form", "who", "words"),
    [
        (table, [["001", "002"], [1, 2]], ["0.parquet", "1.parquet", "who", "text", "number"]),
        (lines, ["1", 1], ["who", "text", "number"]),
        (table, [["001"], ["1"]], ["leading zeros"]),
        (listed, ["1", "1.0"], ["leading zeros"]),
        (listed, ["ann", "ann\u200b"], ["invisible"]),
        (lines, ["ann", "ann\ufe0f"], ["invisible"]),
        (lines, ["\ufeffann", "ann"], ["invisible"]),
        (arrays, ["P-007", "P-7"], ["leading zeros"]),
        (arrays, ["Ann", "ANN"], ["case"]),
        (folders, ["p 1", "p1"], ["spaces"]),
        (folders, ["p\u00a01", "p 1"], ["spaces"]),
        (lines, ["\uff11", "1"], ["alike"]),
        (lines, ["\u200b"], ["no usable who"]),
        (lines, [1.0], ["no usable who"]),
        (lines, ["\udce9"], ["no usable who"]),
    ],
)
def test_ids_that_look_alike_are_refused_and_not_named(tmp_path, form, who, words):
    refused(form(tmp_path, who), *words)


@pytest.mark.parametrize("who", [["1", "2", "10", "1.1", "1.10"], ["a", " a ", "b"], ["cafe\u0301", "caf\u00e9"]])
def test_ids_that_are_one_or_clearly_several_are_kept(tmp_path, who):
    units = lines(tmp_path, who).open().units
    assert len(set(units.tolist())) == {5: 5, 3: 2, 2: 1}[len(who)]


# what a system puts beside the records

CLUTTER = [
    "@eaDir/000.png/SYNOPHOTO_THUMB_XL.jpg",
    "#recycle/1.png",
    "@Recently-Snapshot/GMT/1.png",
    "@__thumb/s1001.jpg",
    "lost+found/1.png",
    "$RECYCLE.BIN/S-1-5/$R1.png",
    "System Volume Information/1.png",
    "__MACOSX/1.png",
    ".Trash-1000/files/1.png",
    "~snapshot/hourly.0/1.png",
    "._1.png",
    "Thumbs.db",
]


@pytest.mark.parametrize("place", ["", "cat/", "cat/p1/"])
def test_what_a_system_puts_into_folders_is_no_record(tmp_path, place):
    write(tmp_path / "cat/p1/1.png", png())
    for name in CLUTTER:
        write(tmp_path / place / name, png(1))
    data = ImageFolder(tmp_path, size=8, classes=["cat"]).open()
    assert data.check() == []
    assert (len(data), data.labels.tolist()) == (1, [0])
    assert files_below(tmp_path, (".png", ".jpg")) == [tmp_path / "cat/p1/1.png"]
    assert (
        len(WebDataset(tar(tmp_path / "a.tar", ["./1.png", *(f"./{place}{name}" for name in CLUTTER)]), size=8).open())
        == 1
    )


def test_a_list_of_files_names_none_that_a_system_made(tmp_path):
    write(tmp_path / "@eaDir/1.png", png())
    write(tmp_path / "labels.csv", b"file\n@eaDir/1.png\n")
    refused(ImageFolder(tmp_path, size=8), "@eaDir/1.png", "leave")


# class names


UNSEEN = ["\n", "\r", "\u2028", "\u2029", "\x85", "\t", "\0", "\x1b", "\u202e", "\u2066", "\ufeff", "\udce9"]


@pytest.mark.parametrize("name", [*(f"a{one}b" for one in UNSEEN), "", " ", " a"], ids=ascii)
def test_a_class_name_that_a_line_cannot_show_is_refused_before_anything_is_paid(tmp_path, name):
    made = PrivateDataset.of(Images(np.zeros((1, 8, 8, 3), np.uint8)), [0], classes=["b"])
    settings = {"modality": Images, "shape": (8, 8, 3)}
    with pytest.raises(PrivateDataError, match="class name"):
        PrivateDataset(made, made.labels, made.units, classes=[name], **settings)
    with pytest.raises(RecipeError, match="class name") as error:
        ImageFolder(tmp_path, size=8, classes=[name])
    assert "\n" not in str(error.value)


def test_class_names_of_any_script_are_kept(tmp_path):
    names = ("café crème", "می\u200cخواهم", "👩\u200d🔬", "a/b: #1", "10")
    assert ImageFolder(tmp_path, size=8, classes=names).class_names == names


def test_a_class_folder_that_is_not_utf_8_is_named(tmp_path):
    write(tmp_path / os.fsdecode(b"caf\xe9") / "1.png", png())
    write(tmp_path / "tea/1.png", png())
    refused(ImageFolder(tmp_path, size=8, classes=["tea"]), "not text in UTF-8", "udce9")
    with pytest.raises(PrivateDataError, match="udce9 is not UTF-8"):
        find_labels(tmp_path)


# columns that are not as their type says


def columns(path, name, **values):
    schema = pa.schema([pa.field(key, kind) for key, kind in values.pop("kinds", {}).items()])
    made = pa.Table.from_arrays(list(values.values()), schema=schema) if len(schema) else pa.table(values)
    if name.endswith("parquet"):
        pq.write_table(made, path / name)
    else:
        with pa.ipc.new_stream(path / name, made.schema) as writer:
            writer.write_table(made)
    return path / name


BAD = pa.array([b"cat", b"\xe9"], pa.binary()).view(pa.string())


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"label_column": "odd", "classes": ["cat"]}, ["Row 2", "label that is not text in UTF-8"]),
        ({"privacy_unit": "odd"}, ["Row 2", "no usable odd"]),
        ({"privacy_unit": "large"}, ["Row 2", "no usable large"]),
        ({"label_column": "list", "classes": ["cat"]}, []),
    ],
)
def test_text_that_is_not_utf_8_is_named(tmp_path, name, settings, words):
    large = BAD.view(pa.binary()).cast(pa.large_binary()).view(pa.large_string())
    parts = {"odd": BAD, "large": large, "list": pa.ListArray.from_arrays([0, 1, 2], BAD)}
    refused(ImageParquet(columns(tmp_path, name, image=pa.array([png(), png()]), **parts), size=8, **settings), *words)
    texts = columns(tmp_path, name, text=pa.array(["a", "b"]), **parts)
    refused(TextTable(texts, **settings), *words)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_the_name_of_a_column_that_is_not_utf_8_is_told(tmp_path, name):
    kinds = {"image": pa.binary(), b"\xe9": pa.string()}
    path = columns(tmp_path, name, image=pa.array([png(), png()]), odd=BAD, kinds=kinds)
    refused(ImageParquet(path, size=8), "UTF-8")
    refused(TextTable(path, text_column="image"), "UTF-8")


def test_an_arrow_file_that_is_cut_off_while_it_is_read_is_an_error_and_no_signal(tmp_path):
    path = columns(tmp_path, "a.arrow", image=pa.array([png(n) * 50 for n in range(200)]))
    code = f"""
import os, pe
data = pe.ImageParquet({str(path)!r}, size=8, on_bad_record="skip").open()
blocks = data.blocks(4)
next(blocks)
os.truncate({str(path)!r}, 4096)
try:
    print(sum(1 for _ in blocks))
except pe.PEError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# 12-bit values in 16-bit files

SIZE = {"size": 8, "channels": 1}


def deep(path, number, top, channels=1, suffix="png"):
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
    arrays = [deep(tmp_path / "scans", number, 4095, channels, suffix) for number in range(3)]
    np.savez(tmp_path / "a.npz", images=np.stack(arrays))
    files = [path.read_bytes() for path in (tmp_path / "scans").iterdir()]
    parquet = columns(tmp_path, "a.parquet", image=pa.array(files))
    pool = tmp_path / "scans"
    for source in (ImageFolder(pool, **SIZE), ImageNpz(tmp_path / "a.npz", **SIZE), ImageParquet(parquet, **SIZE)):
        refused(source, "16-bit", "4,095", "multiply")
    with pytest.raises(RecipeError, match="16-bit"):
        read_folder(pool, None, "crop", 1)
    deep(pool, 3, 4096, channels, suffix)  # one that goes beyond: the others are dark
    assert ImageFolder(pool, **SIZE).open().check() == []
    assert len(read_folder(pool, None, "crop", 1)[0]) == 4


def test_dark_images_of_8_bits_are_kept(tmp_path):
    write(tmp_path / "scans/1.png", b"")
    Image.new("L", (8, 8), 3).save(tmp_path / "scans/1.png")
    assert ImageFolder(tmp_path / "scans", **SIZE).open().check() == []


# labels that stand elsewhere, or under another name


def listing(path, text, name="labels.csv"):
    for number in range(2):
        write(path / f"{number}.png", png(number))
    write(path / name, text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file,Label\n0.png,cat\n", ["no column 'label'", "'Label'", "rename", "classes: []"]),
        ("file, label\n0.png,cat\n", ["no column 'label'", "' label'"]),
        ("file,class\n0.png,cat\n", ["no column 'label'", "'class'"]),
        ("filename,label\n0.png,cat\n", ["no column 'file'", "'filename'"]),
        ("file;label\n0.png;cat\n", ["semicolons", "commas"]),
        ("file\tlabel\n0.png\tcat\n", ["tabs", "commas"]),
        ("sep=;\nfile;label\n0.png;cat\n", ["sep=", "commas"]),
        ("sep=,\nfile,label\n0.png,cat\n", ["sep=", "leave"]),
        ("file,label\n0.png\n", ["Row 1", "1 cells"]),
    ],
)
@pytest.mark.parametrize("classes", [None, ["cat", "dog"]])
def test_a_labels_csv_whose_columns_are_not_found_is_told_why(tmp_path, text, words, classes):
    refused(ImageFolder(listing(tmp_path, text), size=8, classes=classes), *words)


def test_a_column_that_looks_like_labels_may_be_none(tmp_path):
    assert len(ImageFolder(listing(tmp_path, "file,Label\n0.png,cat\n"), size=8, classes=[]).open()) == 1


@pytest.mark.parametrize(
    ("text", "words"), [("text;label\na;cat\n", ["semicolons"]), ("sep=;\ntext;label\n", ["sep="])]
)
def test_a_table_of_texts_with_other_separators_is_told_so(tmp_path, text, words):
    refused(TextTable(write(tmp_path / "a.csv", text.encode())), *words)


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])
@pytest.mark.parametrize("place", ["", "images/"])
def test_the_metadata_of_hugging_face_are_named(tmp_path, name, place):
    rows = {
        "csv": f"file_name,label\n{place}0.png,cat\n",
        "jsonl": f'{{"file_name": "{place}0.png", "label": "cat"}}\n',
    }
    write(listing(tmp_path / "scans", rows[name.split(".")[1]], name) / f"{place}2.png", png(2))
    for classes in (None, ["cat"]):
        refused(
            ImageFolder(tmp_path / "scans", size=8, classes=classes), name, "labels.csv", "file_name", "classes: []"
        )
    with pytest.raises(PrivateDataError, match=name):
        find_labels(tmp_path / "scans")
    assert len(ImageFolder(tmp_path / "scans", size=8, classes=[]).open()) == 3
    for number in range(2):
        (tmp_path / f"scans/{number}.png").unlink()
    if place:  # class folders are labels enough
        assert len(ImageFolder(tmp_path / "scans", size=8, classes=["images"]).open()) == 1


def test_a_path_without_bytes_is_told_from_a_missing_image(tmp_path):
    cells = pa.array([{"bytes": None, "path": "img/0.png"}], pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    refused(ImageParquet(columns(tmp_path, "a.parquet", image=cells), size=8), "only a path", "embed")


@pytest.mark.parametrize("shape", [(4, 1), (4, 1, 1)])
def test_labels_and_units_of_one_column_are_taken(tmp_path, shape):
    values = np.array([0, 1, 1, 0]).reshape(shape)
    np.savez(tmp_path / "a.npz", images=np.zeros((4, 8, 8), np.uint8), labels=values, who=values)
    data = ImageNpz(tmp_path / "a.npz", classes=[0, 1], privacy_unit="who", **SIZE).open()
    assert data.labels.tolist() == data.units.tolist() == [0, 1, 1, 0]
    assert read_arrays(tmp_path / "a.npz", None, "crop", 1)[1] == ["0", "1", "1", "0"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["train_images", "train_labels", "val_images"], ["'train_images', 'val_images'", "save", "'images'"]),
        (["x_train", "y_train"], ["'x_train'", "'images'"]),
        (["images", "Labels"], ["no array 'labels'", "'Labels'"]),
    ],
)
def test_arrays_of_other_names_are_named(tmp_path, names, words):
    np.savez(tmp_path / "a.npz", **{name: np.zeros((4, 8, 8), np.uint8) for name in names})
    refused(ImageNpz(tmp_path / "a.npz", **SIZE), *words)


@pytest.mark.parametrize(
    ("names", "column", "words"),
    [
        (["p.000.png", "p.000.cls", "p.001.png"], None, ["first dot", "rename"]),
        (["p.000.png", "p.000.cls", "p.001.png"], "000.png", ["first dot", "rename"]),
        (["p.1.2.jpg", "p.1.3.jpg", "q.1.2.jpg", "q.1.3.jpg"], "1.2.jpg", ["first dot"]),
        (["p.a.png", "p.b.png"], "a.png", ["first dot"]),
    ],
)
def test_samples_that_dots_run_together_are_refused(tmp_path, names, column, words):
    refused(WebDataset(tar(tmp_path / "a.tar", names), size=8, image_column=column), *words)


def test_several_views_of_a_sample_are_kept_apart_by_their_suffix(tmp_path):
    views = ["1.left.png", "1.right.png", "2.left.png", "2.right.png"]
    assert len(WebDataset(tar(tmp_path / "a.tar", views), size=8, image_column="left.png").open()) == 2
    mask = ["1.png", "1.mask.png", "2.png"]
    assert len(WebDataset(tar(tmp_path / "b.tar", mask), size=8, image_column="png").open()) == 2
