"""Public images that are private records are counted, whoever yields them learning nothing."""

import hashlib

import numpy as np
import pytest

from pe.data.images import Images
from pe.errors import ContractError
from pe.private.dataset import Overlap, find_overlap, sample_digest

SHAPE = (4, 4, 3)
NOTHING = np.empty((0, 32), np.uint8)


def images(count, seed):
    return np.random.default_rng(seed).integers(0, 256, (count, *SHAPE), dtype=np.uint8)


def digests(samples):
    return np.frombuffer(b"".join(map(sample_digest, samples)), np.uint8).reshape(-1, 32)


@pytest.mark.parametrize("together", [1, 2, 2**16])
def test_equal_images_are_counted_and_the_first_is_named(together, monkeypatch):
    monkeypatch.setattr("pe.private.dataset._PIECE", together)
    private, others = images(5, 0), images(4, 1)
    public = [("a", others[0]), ("b", private[4]), ("c", others[1]), ("d", private[0]), ("e", private[4])]
    whole = hashlib.sha256(b"".join(sample_digest(image) for _, image in public)).hexdigest()
    first = hashlib.sha256(sample_digest(others[0])).hexdigest()
    assert find_overlap(digests(private), public, Images, SHAPE) == Overlap(3, 5, "b", whole)
    assert find_overlap(digests(private), public[:1], Images, SHAPE) == Overlap(0, 1, "", first)
    assert find_overlap(NOTHING, public, Images, SHAPE) == Overlap(0, 5, "", whole)


def test_one_grey_level_makes_another_image():
    private = images(1, 0)
    near = private[0].copy()
    near[0, 0, 0] ^= 1
    assert find_overlap(digests(private), [("near", near)], Images, SHAPE).equal == 0


def test_whoever_yields_the_images_is_asked_for_all_of_them():
    taken = []

    def public(known):
        for i in range(6):
            taken.append(i)
            yield str(i), known[0]

    find_overlap(digests(images(1, 0)), public(images(1, 0)), Images, SHAPE)
    equal = taken.copy()
    taken.clear()
    find_overlap(digests(images(1, 0)), public(images(1, 1)), Images, SHAPE)
    assert taken == equal == list(range(6))


@pytest.mark.parametrize("wrong", [np.zeros((4, 4, 1), np.uint8), np.zeros((2, 4, 3), np.uint8), np.zeros(SHAPE)])
def test_an_image_that_was_decoded_otherwise_is_refused_rather_than_passed_over(wrong):
    with pytest.raises(ContractError, match="gave x as"):
        find_overlap(NOTHING, [("x", wrong)], Images, SHAPE)
