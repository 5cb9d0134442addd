"""Private images in .tar files, as WebDataset has them."""

import json
import tarfile

import pytest

from pe.private import webdataset
from pe.private.webdataset import WebDataset
from tests.private.records import FILES, LABELS, UNITS, read, refused, tar

SETTINGS = {"size": 8, "classes": ["cat", "dog"], "label_column": "label", "privacy_unit": "who"}


def source(path, **settings):
    return WebDataset(path, **SETTINGS | settings)


def sample(number):
    entry = json.dumps({"who": UNITS[number], "label": "not this one"}).encode()
    return [
        (f"../x/{number}.png", FILES[number]),
        (f"../x/{number}.label", LABELS[number].encode()),
        (f"../x/{number}.json", entry),
    ]


def header(kind, size=0):
    member = tarfile.TarInfo("1.png")
    member.type, member.linkname, member.size = kind, "/etc/passwd", size
    return member


ONE = ("1.png", FILES[1])


@pytest.mark.parametrize(
    ("members", "part"),
    [
        (
            [*sample(0), *sample(1), *sample(0)],
            r"Sample '\.\./x/0' of .*a\.tar comes twice, apart: put",
        ),
        (
            [*sample(0), *sample(1)[1:3]],
            r"x/1' of .* has no image \('label', 'json'\): name the suffix",
        ),
        ([*sample(0), ("../x/0.png", b"")], r"x/0' of .* has two members 'png'"),
        (
            [*sample(0), ("1.png", header(tarfile.SYMTYPE))],
            r"'1\.png' in .* is a link, a device or sparse",
        ),
        ([*sample(0), ONE, ("1.json", b'{"who": "a"}')], r"Sample 2 of .*a\.tar has no label"),
        (
            [*sample(0), ONE, ("1.label", b"cat"), ("1.json", b"{")],
            r"'1' of .* has a \.json that is not JSON",
        ),
        (
            [*sample(0), ONE, ("1.label", b"c" * 2**21)],
            r"'1' of .* has a \.label of more than 1,048,576",
        ),
        ([ONE, ("1.label", b"cat")], "'1' of .* has no 'who': known are 'label', 'png'"),
    ],
)
def test_samples_that_do_not_fit_are_refused(tmp_path, members, part):
    refused(source(tar(tmp_path / "a.tar", members)), part)


def test_samples_that_dots_run_together_are_refused(tmp_path):
    for names, column in (
        ("p.000.png p.000.cls p.001.png", None),
        ("p.1.2.jpg p.1.3.jpg q.1.2.jpg", "1.2.jpg"),
    ):
        path = tar(tmp_path / "a.tar", [(name, FILES[0]) for name in names.split()])
        refused(WebDataset(path, size=8, image_column=column), "first dot", "rename")


def test_several_views_of_a_sample_are_kept_apart_by_their_suffix(tmp_path):
    views = ["1.left.png", "1.right.png", "2.left.png", "2.right.png"]
    path = tar(tmp_path / "a.tar", [(name, FILES[0]) for name in views])
    assert len(WebDataset(path, size=8, image_column="left.png").open()) == 2
    path = tar(tmp_path / "b.tar", [(name, FILES[0]) for name in ["1.png", "1.mask.png", "2.png"]])
    assert len(WebDataset(path, size=8, image_column="PNG").open()) == 2


def test_columns_that_are_not_there_and_compressed_files_are_refused(tmp_path):
    path = tar(tmp_path / "a.tar", sample(0))
    refused(source(path, label_column="labl"), "has no 'labl': did you mean 'label'")
    with tarfile.open(path, "w:gz"):
        pass
    refused(
        source(tmp_path),
        r"a\.tar cannot be read as a \.tar file: it is damaged, compressed \(unpack it\)",
    )


def test_an_archive_that_is_cut_off_or_damaged_anywhere_is_refused(tmp_path):
    path = tar(tmp_path / "a.tar", [*sample(0), *sample(1)])
    data = path.read_bytes()
    for size in range(0, len(data.rstrip(b"\0")), 256):
        path.write_bytes(data[:size])
        refused(source(path), "cannot be read as a|truncated")
    second = data.rindex(b"../x/1.png")
    for damaged in (
        data[:second] + b"\xff" + data[second + 1 :],
        data + data,
    ):  # or two archives joined
        path.write_bytes(damaged)
        refused(source(path), "cannot be read as a")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.parametrize("rule", ["fail", "skip"])
def test_a_member_is_not_taken_for_the_name_of_the_next_by_a_damaged_type(tmp_path, kind, rule):
    path = tar(tmp_path / "a.tar", [*sample(0), *sample(1), *sample(2)])
    data = bytearray(path.read_bytes())
    data[data.index(b"../x/1.png") + 156] = kind[0]
    path.write_bytes(data)
    refused(source(path, on_bad_record=rule), "cannot be read as a")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.REGTYPE])
def test_a_header_that_announces_a_huge_length_takes_no_memory(tmp_path, kind):
    (tmp_path / "a.tar").write_bytes(header(kind, 2**40).tobuf(tarfile.GNU_FORMAT) + bytes(10240))
    refused(source(tmp_path / "a.tar"), "cannot be read as a")


def test_bad_and_huge_images_are_bad_records(tmp_path, monkeypatch):
    monkeypatch.setattr(webdataset, "_LONGEST_IMAGE", 2**16)
    members = [
        ("0.png", b"none"),
        ONE,
        ("2.png", bytes(2**16 + 1)),
        ("3.png", FILES[3][:99]),
        ("4.png", bytes(2**16)),
    ]
    data = WebDataset(tar(tmp_path / "a.tar", members), size=8, on_bad_record="skip").open()
    bad = data.check()
    assert [one.index for one in bad] == [0, 2, 3, 4]
    assert ["more than 65,536 bytes and was not read" in one.reason for one in bad] == [
        False,
        True,
        False,
        False,
    ]
    assert read(data)[1].tolist() == [False, True, False, False, False]
