"""PrivateDataset: blocks of one shape, and nothing confidential on display."""

import tracemalloc
from functools import partial
from itertools import repeat

import numpy as np
import pytest

from pe.data.images import Images
from pe.errors import PrivateDataError
from pe.private import PrivateDataset
from pe.private.naming import LabelNumbers, UnitNumbers

PIXELS = np.random.default_rng(0).integers(1, 256, (10, 2, 3, 1), dtype=np.uint8)


def dataset(count=10, **settings):
    return PrivateDataset.of(Images(PIXELS[:count]), np.zeros(count, int), **{"classes": ["a", "b"]} | settings)


@pytest.mark.parametrize("size", [1, 3, 5, 10, 16])
@pytest.mark.parametrize("count", [1, 9, 10])
def test_blocks_are_full_in_order_and_padded(size, count):
    blocks = list(dataset(count).blocks(size))
    assert len(blocks) == -(-count // size)
    assert all(images.pixels.shape == (size, 2, 3, 1) and valid.shape == (size,) for images, valid in blocks)
    pixels, valid = np.concatenate([b.pixels for b, _ in blocks]), np.concatenate([v for _, v in blocks])
    assert valid.dtype == bool
    assert valid.tolist() == [True] * count + [False] * (len(valid) - count)
    np.testing.assert_array_equal(pixels[:count], PIXELS[:count])
    assert not pixels[count:].any()


def test_blocks_can_be_read_again_and_do_not_share_memory():
    data = dataset()
    first, second = list(data.blocks(4)), list(data.blocks(4))
    first[0][0].pixels[:] = 0
    np.testing.assert_array_equal(second[0][0].pixels, PIXELS[:4])
    np.testing.assert_array_equal(next(data.blocks(4))[0].pixels, PIXELS[:4])


def test_no_record_is_no_block():
    data = dataset(0)
    assert list(data.blocks(4)) == []
    assert data.check() == []


def test_the_repr_shows_public_values_only():
    assert repr(dataset(7, declared_size=1000)) == (
        "PrivateDataset(classes=('a', 'b'), unit_name='record', declared_size=1000, shape=(2, 3, 1))"
    )
    assert repr(dataset(7)) == repr(dataset(8))


def test_what_does_not_fit_is_refused():
    images = Images(PIXELS)
    with pytest.raises(PrivateDataError, match="Samples and labels differ"):
        PrivateDataset.of(images, np.zeros(9, int), classes=["a"])
    with pytest.raises(PrivateDataError, match="units differ"):
        PrivateDataset.of(images, np.zeros(10, int), classes=["a"], units=np.zeros(9, int))
    with pytest.raises(PrivateDataError, match="no index into the class list"):
        PrivateDataset.of(images, np.full(10, 2), classes=["a", "b"])
    with pytest.raises(PrivateDataError, match="twice"):
        PrivateDataset.of(images, np.zeros(10, int), classes=["a", "a"])
    with pytest.raises(ValueError, match="size"):
        next(dataset().blocks(0))


def test_a_source_that_ends_early_is_an_error():
    data = PrivateDataset(
        PIXELS[:4], np.zeros(5, np.int32), np.arange(5), classes=["a"], modality=Images, shape=(2, 3, 1)
    )
    with pytest.raises(PrivateDataError, match="changed while they were read"):
        list(data.blocks(2))


def peak(function):
    """The most bytes that a call has in memory at one time."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_check_holds_a_digest_of_each_record_and_no_object():
    count = 20_000
    zeros = np.zeros(count, np.int32)
    data = PrivateDataset(
        repeat(np.zeros((1, 1, 1), np.uint8), count), zeros, zeros, classes=["a"], modality=Images, shape=(1, 1, 1)
    )
    assert peak(lambda: data.preflight(b"")) < 34 * count


def test_labels_and_units_are_held_as_numbers():
    count = 20_000
    for numbers, size in (LabelNumbers(["0", "1", "2"], str), 4), (UnitNumbers("patient", str), 8):
        assert peak(partial(numbers.take, (f"{i % 3} " for i in range(count)))) < 1.2 * size * count
