"""Private images in .npz files: streamed, never unpickled."""

import io
import os
import tracemalloc
import zipfile

import numpy as np
import pytest

from pe.errors import PrivateDataError
from pe.private import ImageNpz

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (7, 8, 8, 3), dtype=np.uint8)
LABELS = np.array(["cat", "dog", "cat", "dog", "cat", "cat", "dog"])


def source(path, **settings):
    return ImageNpz(path, **{"size": 8, "classes": ["cat", "dog"]} | settings)


def refused(path, match, **settings):
    with pytest.raises(PrivateDataError, match=match):
        source(path, **settings).open().check()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_images_labels_and_units(tmp_path, save, read):
    save(tmp_path / "a.npz", images=PIXELS, labels=LABELS, patient=np.array([9, 9, 4, 4, 4, 7, 9]))
    data = source(tmp_path / "a.npz", privacy_unit="patient", declared_size=10).open()
    assert data.labels.tolist() == [0, 1, 0, 1, 0, 0, 1]
    assert data.units.tolist() == [0, 0, 1, 1, 1, 2, 0]
    assert (data.unit_name, data.declared_size) == ("patient", 10)
    np.testing.assert_array_equal(read(data)[0], PIXELS)
    np.testing.assert_array_equal(read(data)[0], PIXELS)


@pytest.mark.parametrize(
    "labels", [np.arange(7) % 2, (np.arange(7) % 2).astype(np.uint8), np.array(list("0101010"), "S")]
)
def test_labels_may_be_numbers_or_bytes(tmp_path, labels):
    np.savez(tmp_path / "a.npz", images=PIXELS, labels=labels)
    assert source(tmp_path / "a.npz", classes=[0, 1]).open().labels.tolist() == [0, 1] * 3 + [0]


def test_no_labels_are_one_label_and_labels_need_a_class_list(tmp_path):
    np.savez(tmp_path / "a.npz", images=PIXELS)
    assert source(tmp_path / "a.npz", classes=None).open().classes == ("all",)
    np.savez(tmp_path / "b.npz", images=PIXELS, labels=LABELS)
    refused(tmp_path / "b.npz", r"classes: \[cat, dog\]", classes=None)
    assert source(tmp_path / "b.npz", classes=[]).open().classes == ("all",)


def test_grey_wide_transparent_and_bilevel_images(tmp_path, read):
    cases = {
        "grey": (PIXELS[..., 0], PIXELS[..., :1]),
        "wide": (PIXELS[..., 0].astype(">u2") * 256 + 3, PIXELS[..., :1]),
        "clear": (np.zeros((7, 8, 8, 4), np.uint8), np.full((7, 8, 8, 1), 255)),
        "bits": (PIXELS[..., 0] > 99, (PIXELS[..., :1] > 99) * 255),
    }
    for name, (images, expected) in cases.items():
        np.savez(tmp_path / f"{name}.npz", images=images)
        answer = read(source(tmp_path / f"{name}.npz", classes=None, channels=1).open())[0]
        np.testing.assert_array_equal(answer, expected, err_msg=name)


@pytest.mark.parametrize(
    ("shape", "channels"), [((7, 8, 8, 3), 3), ((7, 8, 8, 1), 1), ((7, 8, 8), 1), ((7, 8, 9, 3), 3)]
)
@pytest.mark.parametrize("resize", [None, "crop"])
def test_images_of_the_declared_form_are_not_decoded_one_by_one(tmp_path, monkeypatch, shape, channels, resize):
    pixels = RNG.integers(0, 256, shape, dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels)
    size = shape[1:3]
    data = source(tmp_path / "a.npz", classes=None, channels=channels, size=size, resize=resize).open()
    monkeypatch.delattr("pe.private.modalities.convert_pixels")
    np.testing.assert_array_equal(np.stack(list(data.first(7))), pixels.reshape(7, *size, channels))


def test_other_sizes_need_a_rule(tmp_path, read):
    np.savez(tmp_path / "a.npz", images=PIXELS)
    refused(tmp_path / "a.npz", r"Record 1 of .*a\.npz is an image of .* set private\.resize", classes=None, size=4)
    assert read(source(tmp_path / "a.npz", classes=None, size=4, resize="fit").open())[0].shape == (7, 4, 4, 3)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_pickled_arrays_are_refused_and_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bomb = np.array([Bomb()] * 7, dtype=object)
    np.savez(tmp_path / "a.npz", images=bomb)
    np.savez(tmp_path / "b.npz", images=PIXELS, labels=bomb)
    refused(tmp_path / "a.npz", "Python objects", classes=None)
    refused(tmp_path / "b.npz", "Python objects")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"image": PIXELS}, "no array 'images': did you mean 'image'"),
        ({"images": PIXELS[0, 0]}, "is not n×h×w"),
        ({"images": PIXELS[:, :, :, :2]}, "is not n×h×w"),
        ({"images": np.zeros((7, 0, 8), np.uint8)}, "no pixels"),
        ({"images": PIXELS.astype(np.float32)}, "are float32: scale them"),
        ({"images": np.asfortranarray(PIXELS)}, "C order"),
        ({"images": PIXELS, "labels": LABELS[:6]}, "differ in length"),
        ({"images": PIXELS, "labels": np.eye(7)}, "several values per image"),
        ({"images": PIXELS, "labels": np.zeros(7)}, "label of type float"),
        ({"images": PIXELS, "labels": LABELS == "cat"}, "label of type bool"),
        ({"images": PIXELS, "labels": np.array(["cow"] * 7)}, "Record 1 of .* 'cow'"),
        ({"images": PIXELS, "labels": np.array([""] * 7)}, "has no label"),
        ({"images": PIXELS, "labels": np.array(["x" * 2000] * 7)}, "too long"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, arrays, match):
    np.savez(tmp_path / "a.npz", **arrays)
    refused(tmp_path / "a.npz", match)


def test_units_must_be_there(tmp_path):
    np.savez(tmp_path / "a.npz", images=PIXELS, patient=np.zeros(7))
    refused(tmp_path / "a.npz", "no array 'doctor'", classes=None, privacy_unit="doctor")
    refused(tmp_path / "a.npz", "no subfolders", classes=None, privacy_unit="subfolder")
    refused(tmp_path / "a.npz", "no usable patient", classes=None, privacy_unit="patient")


def test_damaged_archives(tmp_path):
    path = tmp_path / "a.npz"
    refused(path, "does not exist")
    refused(tmp_path, "not a file")
    path.write_bytes(b"not a zip")
    refused(path, "cannot be read as an .npz file")
    np.savez(path, images=PIXELS)
    data = bytearray(path.read_bytes())
    data[400] ^= 255
    path.write_bytes(data)
    refused(path, "damaged", classes=None)
    path.write_bytes(data[: len(data) // 2])
    refused(path, "damaged", classes=None)


def test_a_header_that_promises_more_than_the_archive_holds(tmp_path):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": (10**9, 8, 8, 3)})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", buffer.getvalue() + b"\0" * 100)
    with pytest.raises(PrivateDataError, match="truncated"):
        source(tmp_path / "a.npz", classes=None).open()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_reading_does_not_hold_the_images(tmp_path, save):
    save(tmp_path / "a.npz", images=np.zeros((400, 256, 256, 3), np.uint8))
    tracemalloc.start()
    for _ in source(tmp_path / "a.npz", classes=None, size=256).open().blocks(8):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * 2**20  # 400 images are 75 MiB
