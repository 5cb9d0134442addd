"""Folders of private images: which files are records, with which labels and units."""

import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pe.errors import PrivateDataError
from pe.private import ImageFolder, find_labels


def folder(root, **settings):
    return ImageFolder(root, **{"size": 8, "classes": ["bad", "good"]} | settings).open()


def refused(root, match, **settings):
    with pytest.raises(PrivateDataError, match=match) as caught:
        folder(root, **settings)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith((".", "?"))


def table(root, text):
    (root / "labels.csv").write_text(text, encoding="utf-8")


# class folders


def test_class_folders_give_labels_in_the_order_of_paths(scans, read):
    data = folder(scans)
    assert data.classes == ("bad", "good")
    assert data.labels.tolist() == [0, 0, 1, 1, 1]
    assert data.labels.dtype == np.int32
    assert data.shape == (8, 8, 3)
    expected = [np.asarray(Image.open(path)) for path in sorted(scans.rglob("*.png"))]
    images, valid = read(data)
    assert valid.all()
    np.testing.assert_array_equal(images, expected)


def test_the_order_does_not_depend_on_how_the_files_came_there(tmp_path, picture, read):
    answers = []
    for root, order in ((tmp_path / "a", range(30)), (tmp_path / "b", reversed(range(30)))):
        for number in order:
            picture(root / f"x/{number}.png", number)
        answers.append(read(folder(root, classes=["x"]))[0])
    np.testing.assert_array_equal(*answers)


def test_each_record_is_its_own_unit_unless_told(scans):
    data = folder(scans)
    assert data.unit_name == "record"
    assert data.units.dtype == np.int64
    assert len(set(data.units.tolist())) == 5


def test_a_subfolder_is_one_unit_across_classes(scans):
    data = folder(scans, privacy_unit="subfolder")
    assert data.unit_name == "subfolder"
    assert data.units.tolist() == [0, 1, 0, 0, 2]  # bad/ann, bad/eve, good/ann, good/ann, good/bob


def test_an_image_outside_any_subfolder_has_no_unit(scans, picture):
    picture(scans / "good" / "loose.png", 9)
    refused(
        scans,
        r"good/loose\.png lies in no subfolder of its class folder: put each unit's files",
        privacy_unit="subfolder",
    )


def test_an_image_outside_any_class_folder_has_no_label(scans, picture):
    picture(scans / "loose.png", 9)
    refused(scans, r"loose\.png lies in no subfolder")


def test_classes_are_public_and_never_derived(scans):
    refused(scans, r"confirm it with classes: \[bad, good\], or set classes: \[\]", classes=None)
    assert find_labels(scans) == ("bad", "good")


def test_numbers_are_proposed_in_their_order_and_may_be_given_as_numbers(tmp_path, picture):
    for number in range(11):
        picture(tmp_path / f"{number}/a.png", number)
    refused(tmp_path, r"\[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10\]", classes=None)
    assert folder(tmp_path, classes=list(range(11))).classes[10] == "10"


def test_a_label_off_the_class_list_is_named(scans):
    refused(scans, r"good/ann/1\.png has the label 'good', .* did you mean 'goods'\?", classes=["bad", "goods"])


def test_a_class_without_records_is_no_error(scans):
    data = folder(scans, classes=["good", "none", "bad"])
    assert data.classes == ("good", "none", "bad")
    assert 1 not in data.labels


def test_no_labels_are_one_label(tmp_path, picture):
    picture(tmp_path / "1.png", 1)
    assert folder(tmp_path, classes=None).classes == ("all",)
    assert folder(tmp_path, classes=["digit"]).classes == ("digit",)
    refused(tmp_path, "lists several classes, but the private records have no labels")


def test_an_empty_class_list_ignores_labels_and_makes_top_folders_the_units(scans):
    data = folder(scans, classes=[], privacy_unit="subfolder")
    assert data.classes == ("all",)
    assert data.units.tolist() == [0, 0, 1, 1, 1]


def test_names_in_other_unicode_forms_are_the_same_names(tmp_path, picture):
    composed, decomposed = (unicodedata.normalize(form, "santé") for form in ("NFC", "NFD"))
    picture(tmp_path / decomposed / "日本.png", 1)
    assert folder(tmp_path, classes=[composed]).labels.tolist() == [0]
    picture(tmp_path / composed / "2.png", 1)
    assert folder(tmp_path, classes=[decomposed]).labels.tolist() == [0, 0]
    assert find_labels(tmp_path) == (composed,)


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS refuses such names")
def test_a_file_name_that_is_not_text_can_still_be_reported(tmp_path):
    (tmp_path / "x").mkdir()
    with open(os.fsencode(tmp_path) + b"/x/\xff.png", "wb") as file:  # noqa: PTH123
        file.write(b"no image")
    with pytest.raises(PrivateDataError) as caught:
        folder(tmp_path, classes=["x"]).check()
    str(caught.value).encode()


# which files are records


def test_hidden_files_and_texts_are_passed_over_and_other_files_are_not(scans):
    for name in (".DS_Store", "Thumbs.db", "README.md", "good/.hidden/a.png", "good/notes.txt", "__MACOSX/good/a.png"):
        (scans / name).parent.mkdir(parents=True, exist_ok=True)
        (scans / name).write_bytes(b"?")
    assert len(folder(scans)) == 5
    (scans / "good" / "photo.heic").write_bytes(b"?")
    refused(scans, r"photo\.heic is no file of a type that is read here")


def test_missing_and_empty_folders(tmp_path):
    refused(tmp_path / "none", "does not exist")
    assert len(folder(tmp_path)) == 0
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "is not a folder")
    with pytest.raises(PrivateDataError):
        find_labels(tmp_path / "none")


def test_symbolic_links_inside_are_refused_and_the_folder_may_be_one(scans, tmp_path):
    (tmp_path / "link").symlink_to(scans)
    assert len(folder(tmp_path / "link")) == 5
    (scans / "good" / "again.png").symlink_to(scans / "good/ann/1.png")
    refused(scans, r"again\.png is a symbolic link")
    (scans / "good" / "again.png").unlink()
    (scans / "good" / "outside").symlink_to(tmp_path)
    refused(scans, "outside is a symbolic link")


def test_one_file_under_two_names_is_refused(scans):
    (scans / "bad/eve/2.png").hardlink_to(scans / "good/ann/1.png")
    refused(scans, "is the same file as")


# labels.csv


def test_a_table_lists_the_records_in_its_order(scans, read):
    table(scans, "file,label,patient\ngood/bob/1.png,good,B\n./bad/eve/1.png, bad ,A\ngood/ann/1.png,good,B\n")
    data = folder(scans, privacy_unit="patient")
    assert data.labels.tolist() == [1, 0, 1]
    assert data.units.tolist() == [0, 1, 0]
    assert data.unit_name == "patient"
    assert (read(data)[0][1] == np.asarray(Image.open(scans / "bad/eve/1.png"))).all()
    assert folder(scans, privacy_unit="subfolder").units.tolist() == [0, 1, 0]
    assert find_labels(scans) == ("bad", "good")


def test_a_table_without_labels_is_one_label(scans):
    table(scans, "file\ngood/bob/1.png\n")
    assert folder(scans, classes=None).classes == ("all",)
    assert find_labels(scans) == ()


def test_a_table_from_a_spreadsheet_is_read(scans):
    (scans / "labels.csv").write_bytes(b"\xef\xbb\xbffile,label\r\ngood/bob/1.png,good\r\n")
    assert len(folder(scans)) == 1


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("file,label\n../secret.png,good\n", "names '../secret.png', which is not inside the folder"),
        ("file,label\ngood/../../secret.png,good\n", "not inside the folder"),
        ("file,label\n/etc/passwd,good\n", "not inside the folder"),
        ("file,label\n,good\n", "names no file"),
        ("path,label\ngood/bob/1.png,good\n", "no column 'file'"),
        ("", "has no first row that names its columns"),
        ("file,label,label\nx,good,bad\n", "two columns of the same name"),
        ("file,label\ngood/bob/1.png,\n", "Record 1 of .* has no label"),
        ("file,label\ngood/bob/1.png\n", "Row 1 of .* has 1 cells, and the header 2"),
        ("file,label\ngood/bob/1.png,good,bad\n", "has 3 cells, and the header 2"),
        ('file,label\ngood/bob/1.png,"good,bad"\n', "has several labels"),
        ("file,label\ngood/bob/1.png,good;bad\n", "has several labels"),
        ("file,label\ngood/bob/1.png,goodly\n", "the label 'goodly', which the public class list lacks"),
        ("file,label\ngood/bob/1.png,good\ngood/bob/1.png,bad\n", "listed twice"),
        ("file,label\ngood/bob/1.png,good\ngood//bob/./1.png,good\n", "listed twice"),
        ('file,label\n"good', "its quotes do not match"),
    ],
)
def test_a_table_that_is_wrong(scans, text, match):
    table(scans, text)
    refused(scans, match)


def test_a_table_in_another_encoding(scans):
    (scans / "labels.csv").write_bytes("file,label\ngood/bob/1.png,é\n".encode("latin-1"))
    refused(scans, "Record 1 of .* has a label that is not text in UTF-8")


def test_a_table_cannot_lead_out_of_the_folder_by_a_link(scans, tmp_path, picture):
    picture(tmp_path / "secret/1.png", 1)
    (scans / "out").symlink_to(tmp_path / "secret")
    table(scans, "file,label\nout/1.png,good\n")
    refused(scans, "symbolic link")


def test_units_from_a_table(scans):
    refused(scans, "'patient' would be a column of .*labels.csv, which does not exist", privacy_unit="patient")
    table(scans, "file,label,patient\ngood/bob/1.png,good,\n")
    refused(scans, "has no column 'patent': did you mean 'patient'", privacy_unit="patent")
    refused(scans, "Record 1 of .* has no usable patient", privacy_unit="patient")


def test_a_listed_file_that_is_missing_is_a_bad_image(scans, read):
    table(scans, "file,label\ngood/bob/1.png,good\ngood/none.png,good\n")
    with pytest.raises(PrivateDataError, match=r"none\.png is not a readable file"):
        folder(scans).check()
    data = folder(scans, on_bad_record="skip")
    assert [bad.index for bad in data.check()] == [1]
    assert read(data)[1].tolist() == [True, False]


# bad images


def test_a_bad_image_fails_the_preflight_by_name(scans):
    path = scans / "good/ann/2.png"
    path.write_bytes(path.read_bytes()[:90])
    data = folder(scans)
    with pytest.raises(PrivateDataError, match=r"good/ann/2\.png is truncated or damaged\. .* on_bad_record: skip"):
        data.check()


def test_a_bad_image_is_skipped_where_told(scans, read):
    (scans / "bad/eve/1.png").write_bytes(b"")
    data = folder(scans, on_bad_record="skip")
    (bad,) = data.check()
    assert bad.index == 1
    assert "bad/eve/1.png" in bad.reason
    images, valid = read(data)
    assert valid.tolist() == [True, False, True, True, True]
    assert len(images) == 4


def test_after_the_preflight_a_bad_record_is_never_an_error(scans, read):
    data = folder(scans)
    assert data.check() == []
    (scans / "good/ann/1.png").unlink()
    (scans / "good/ann/2.png").write_bytes(b"overwritten")
    Image.new("RGB", (9, 9)).save(scans / "good/bob/1.png")
    assert read(data)[1].tolist() == [True, True, False, False, False]


def test_a_folder_that_is_gone_is_an_error(scans, tmp_path):
    data = folder(scans)
    scans.rename(tmp_path / "moved")
    with pytest.raises(PrivateDataError, match="is gone"):
        next(data.blocks(2))


def test_not_one_readable_image_is_as_good_as_none_with_skip(scans):
    for path in scans.rglob("*.png"):
        path.write_bytes(b"")
    data = folder(scans, on_bad_record="skip")
    assert len(data.check()) == len(data)


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_other_sizes_need_a_rule_and_are_never_skipped(scans, picture, policy, read):
    picture(scans / "good/ann/4.png", 4, 8, 9)
    with pytest.raises(PrivateDataError, match=r"good/ann/4\.png is an image of 8×9×3 where 8×8×3 are .*resize"):
        folder(scans, on_bad_record=policy).check()
    assert read(folder(scans, resize="crop"))[1].all()


def test_size_and_channels_are_as_declared(scans, read):
    data = folder(scans, size=(4, 6), resize="stretch", channels=1)
    assert data.shape == (4, 6, 1)
    assert read(data)[0].shape == (5, 4, 6, 1)


# memory


def test_reading_does_not_hold_the_images(tmp_path):
    (tmp_path / "x").mkdir()
    whole = Image.fromarray(np.zeros((256, 256, 3), np.uint8))
    whole.save(tmp_path / "x" / "0.png")
    data = (tmp_path / "x" / "0.png").read_bytes()
    for number in range(1, 400):
        (tmp_path / "x" / f"{number}.png").write_bytes(data)

    # in a process of its own, where nothing else takes memory
    code = f"""
import tracemalloc
from pathlib import Path
from pe.private.folder import ImageFolder

records = ImageFolder(path=Path({str(tmp_path)!r}), classes=("x",), size=256, channels=3).open()
blocks = records.blocks(8)
next(blocks)
tracemalloc.start()
assert sum(1 for _ in blocks) == 49
print(tracemalloc.get_traced_memory()[1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 8 * 2**20  # 400 images are 75 MiB, two blocks 3


def test_the_labels_csv_of_the_documentation_is_read_as_it_says(tmp_path, picture):
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```text\n(.*?)```", page, re.S)
    for line in text.splitlines()[1:]:
        picture(tmp_path / line.partition(",")[0], 1)
    table(tmp_path, text)
    data = folder(tmp_path, classes=["benign", "malignant"], privacy_unit="patient")
    assert (data.labels.tolist(), data.units.tolist()) == ([0, 1, 0], [0, 0, 1])
    years = folder(tmp_path, classes=["benign", "malignant"], privacy_unit="subfolder")
    assert years.units.tolist() == [0, 0, 1]
