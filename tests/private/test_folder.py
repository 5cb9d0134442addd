"""Folders of private files: which of them are records, with which labels and units."""

import os
import re
import sys
import unicodedata

import numpy as np
import pytest
from PIL import Image

from pe.errors import PrivateDataError
from pe.private.folder import ImageFolder
from pe.private.webdataset import WebDataset
from tests.private.records import FILES, PIXELS, png, read, refused, tar, write

NAMES = ["bad/ann/3.png", "bad/eve/1.png", "good/ann/1.png", "good/ann/2.png", "good/bob/1.png"]


@pytest.fixture
def scans(tmp_path):
    """Two classes, three patients (ann in both classes), five images, the last of which
    came first.
    """
    for number in reversed(range(5)):
        write(tmp_path / "scans" / NAMES[number], FILES[number])
    return tmp_path / "scans"


def folder(root, **settings):
    return ImageFolder(root, **{"size": 8, "classes": ["bad", "good"]} | settings)


def test_class_folders_give_labels_and_each_record_is_its_own_unit_in_the_order_of_paths(scans):
    data = folder(scans).open()
    assert (data.classes, data.unit_name, data.shape) == (("bad", "good"), "record", (8, 8, 3))
    assert data.labels.tolist() == [0, 0, 1, 1, 1]
    assert data.units.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(read(data)[0], PIXELS[:5])


def test_a_subfolder_is_one_unit_across_classes(scans):
    data = folder(scans, privacy_unit="subfolder").open()
    assert (data.unit_name, data.units.tolist()) == ("subfolder", [0, 1, 0, 0, 2])
    data = folder(
        scans, classes=[], privacy_unit="subfolder"
    ).open()  # without classes, the top folders
    assert (data.classes, data.units.tolist()) == (("all",), [0, 0, 1, 1, 1])
    write(scans / "good/loose.png", FILES[0])
    part = r"good/loose\.png lies in no subfolder of its class folder: put each unit's files"
    refused(folder(scans, privacy_unit="subfolder"), part)
    write(scans / "loose.png", FILES[0])
    refused(folder(scans), rf"loose\.png lies in no subfolder of {scans}")


def test_classes_are_public_and_never_derived(scans):
    refused(
        folder(scans, classes=None), r"confirm it with classes: \[bad, good\], or set classes: \[\]"
    )
    assert ImageFolder.find(scans).labels == ("bad", "good")
    refused(
        folder(scans, classes=["bad", "goods"]),
        r"good/ann/1\.png has the label 'good', .* did you mean 'goods'\?",
    )
    data = folder(
        scans, classes=["good", "none", "bad"]
    ).open()  # a class without records is no error
    assert (data.classes, data.labels.tolist()) == (("good", "none", "bad"), [2, 2, 0, 0, 0])


def test_no_labels_are_one_label(tmp_path):
    write(tmp_path / "1.png", FILES[0])
    assert folder(tmp_path, classes=None).open().classes == ("all",)
    refused(folder(tmp_path), "lists several classes, but the private records have no labels")
    for number in (2, 10):
        write(tmp_path / f"{number}/a.png", FILES[0])
    (tmp_path / "1.png").unlink()
    refused(
        folder(tmp_path, classes=None), r"\[2, 10\]"
    )  # numbers in their order, and they may be given as numbers
    assert folder(tmp_path, classes=[2, 10]).open().classes == ("2", "10")


def test_names_in_other_unicode_forms_are_the_same_names(tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "santé") for form in ("NFC", "NFD"))
    write(tmp_path / decomposed / "日本.png", FILES[0])
    write(tmp_path / composed / "2.png", FILES[1])
    for name in (composed, decomposed):
        assert folder(tmp_path, classes=[name]).open().labels.tolist() == [0, 0]
    assert ImageFolder.find(tmp_path).labels == (composed,)


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS refuses such names")
def test_names_that_are_not_utf_8_are_named_so_that_it_can_be_shown(tmp_path):
    write(tmp_path / "tea" / os.fsdecode(b"\xff.png"))
    refused(folder(tmp_path, classes=["tea"]), "udcff").encode()
    write(tmp_path / os.fsdecode(b"caf\xe9") / "1.png", FILES[0])
    refused(folder(tmp_path, classes=["tea"]), "not text in UTF-8", "udce9")
    with pytest.raises(PrivateDataError, match="udce9 is not UTF-8"):
        ImageFolder.find(tmp_path)


CLUTTER = [
    *(
        "@eaDir/000.png/SYNOPHOTO_THUMB_XL.jpg",
        "#recycle/1.png",
        "@Recently-Snapshot/GMT/1.png",
        "@__thumb/s1001.jpg",
    ),
    *(
        "lost+found/1.png",
        "$RECYCLE.BIN/S-1-5/$R1.png",
        "System Volume Information/1.png",
        "__MACOSX/1.png",
    ),
    *(".Trash-1000/files/1.png", "~snapshot/hourly.0/1.png", "._1.png", "Thumbs.db"),
]


@pytest.mark.parametrize("place", ["", "cat/p1/"])
def test_what_a_system_puts_into_folders_is_no_record(tmp_path, place):
    write(tmp_path / "cat/p1/1.png", FILES[0])
    for name in CLUTTER:
        write(tmp_path / place / name, FILES[1])
    data = folder(tmp_path, classes=["cat"]).open()
    assert (data.check(), data.labels.tolist()) == ([], [0])
    members = [
        (f"./{name}", FILES[0]) for name in ("1.png", *(f"{place}{name}" for name in CLUTTER))
    ]
    assert len(WebDataset(tar(tmp_path / "a.tar", members), size=8).open()) == 1
    write(tmp_path / "labels.csv", f"file\n{CLUTTER[0]}\n".encode())
    refused(folder(tmp_path), "@eaDir/000.png", "leave the row out")


def test_texts_are_passed_over_and_what_is_not_read_is_an_error(scans, tmp_path):
    write(scans / "README.md")
    write(scans / "good/notes.txt")
    assert len(folder(scans).open()) == 5
    write(scans / "good/photo.heic")
    refused(folder(scans), r"photo\.heic is no file of a type that is read here")
    refused(folder(tmp_path / "none"), "does not exist")
    (tmp_path / "empty").mkdir()
    assert len(folder(tmp_path / "empty").open()) == 0


def test_links_inside_and_one_file_under_two_names_are_refused_and_the_folder_may_be_a_link(
    scans, tmp_path
):
    (tmp_path / "link").symlink_to(scans)
    assert len(folder(tmp_path / "link").open()) == 5
    for name, target in (("again.png", scans / NAMES[0]), ("outside", tmp_path)):
        (scans / "good" / name).symlink_to(target)
        refused(folder(scans), f"good/{name} is a symbolic link")
        (scans / "good" / name).unlink()
    (scans / "bad/eve/2.png").hardlink_to(scans / NAMES[0])
    refused(folder(scans), "is the same file as")


def test_a_table_lists_the_records_in_its_order(scans):
    text = (
        "file,label,patient\ngood/bob/1.png,good,B\n./bad/eve/1.png, bad "
        ",A\ngood/ann/1.png,good,B\n"
    )
    write(
        scans / "labels.csv", b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()
    )  # as a spreadsheet writes it
    data = folder(scans, privacy_unit="patient").open()
    assert (data.labels.tolist(), data.units.tolist(), data.unit_name) == (
        [1, 0, 1],
        [0, 1, 0],
        "patient",
    )
    np.testing.assert_array_equal(read(data)[0], PIXELS[[4, 1, 2]])
    refused(folder(scans, privacy_unit="patent"), "has no column 'patent': did you mean 'patient'")
    write(scans / "labels.csv", b"file,label,patient\ngood/bob/1.png,good,\n")
    refused(folder(scans, privacy_unit="patient"), "Record 1 of .* has no usable patient")
    (scans / "labels.csv").unlink()
    refused(
        folder(scans, privacy_unit="patient"),
        "'patient' would be a column of .*labels.csv, which does not exist",
    )


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (
            "file,label\n../secret.png,good\n",
            "names '../secret.png', which is not inside the folder",
        ),
        ("file,label\n/etc/passwd,good\n", "not inside the folder"),
        ("file,label\nout/1.png,good\n", "out/1.png is a symbolic link"),
        ("file,label\n,good\n", "names no file"),
        ("filename,label\ngood/bob/1.png,good\n", "no column 'file'.* 'filename'"),
        (
            "file,Label\ngood/bob/1.png,good\n",
            r"no column 'label', but 'Label': rename .* classes: \[\]",
        ),
        ("file;label\ngood/bob/1.png;good\n", "semicolons: save it with commas"),
        ("file,label\ngood/bob/1.png,\n", "Record 1 of .* has no label"),
        ('file,label\ngood/bob/1.png,"good,bad"\n', "has several labels"),
        (
            "file,label\ngood/bob/1.png,goodly\n",
            "the label 'goodly', which the public class list lacks",
        ),
        ("file,label\ngood/bob/1.png,good\ngood//bob/./1.png,good\n", "listed twice"),
        ("file,label\ngood/none.png,good\n", r"none\.png is not a readable file"),
        (
            "file,label\ngood/bob/1.png,\udce9\n",
            "Record 1 of .* has a label that is not text in UTF-8",
        ),
    ],
)
def test_a_table_that_is_wrong(scans, tmp_path, text, part):
    (scans / "out").symlink_to(write(tmp_path / "secret/1.png", FILES[0]).parent)
    write(scans / "labels.csv", text.encode(errors="surrogateescape"))
    refused(folder(scans), part)


def test_the_metadata_of_hugging_face_are_named(tmp_path):
    for name in ("0.png", "images/2.png"):
        write(tmp_path / name, FILES[0])
    write(tmp_path / "metadata.jsonl", b'{"file_name": "images/2.png"}\n')
    for classes in (None, ["cat"]):
        refused(
            folder(tmp_path, classes=classes),
            "metadata.jsonl",
            "labels.csv",
            "file_name",
            r"classes: \[\]",
        )
    assert len(folder(tmp_path, classes=[]).open()) == 2


def test_a_bad_image_fails_the_preflight_by_name_or_is_skipped_where_told(scans):
    write(scans / "bad/eve/1.png", FILES[1][:90])
    refused(
        folder(scans),
        r"bad/eve/1\.png is truncated or damaged\. Repair or remove it, .* on_bad_record: skip",
    )
    data = folder(scans, on_bad_record="skip").open()
    (bad,) = data.check()
    assert (bad.index, "bad/eve/1.png" in bad.reason) == (1, True)
    images, valid = read(data)
    assert (valid.tolist(), len(images)) == ([True, False, True, True, True], 4)
    for path in scans.rglob("*.png"):
        path.write_bytes(b"")
    assert (
        len(folder(scans, on_bad_record="skip").open().check()) == 5
    )  # as good as none, and no error


def test_after_the_preflight_a_bad_record_is_never_an_error_and_a_folder_that_is_gone_is_one(
    scans, tmp_path
):
    data = folder(scans).open()
    assert data.check() == []
    (scans / "good/ann/1.png").unlink()
    write(scans / "good/ann/2.png", b"overwritten")
    write(scans / "good/bob/1.png", png(np.zeros((9, 9, 3), np.uint8)))
    assert read(data)[1].tolist() == [True, True, False, False, False]
    scans.rename(tmp_path / "moved")
    with pytest.raises(PrivateDataError, match="is gone"):
        next(data.blocks(2))


def test_other_sizes_need_a_rule(scans):
    Image.new("RGB", (9, 8)).save(scans / "good/ann/4.png")
    part = r"good/ann/4\.png is an image of 8×9×3 where 8×8×3 are .*resize"
    refused(folder(scans), part)
    (bad,) = folder(scans, on_bad_record="skip").open().check()
    assert re.search(part, bad.reason)
    data = folder(scans, size=(4, 6), resize="stretch", channels=1).open()
    assert (data.shape, read(data)[0].shape) == ((4, 6, 1), (6, 4, 6, 1))
