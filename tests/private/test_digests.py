"""Public images that are private records are counted, whoever yields them learning nothing."""

import hashlib

import numpy as np
import pytest

from pe.data.images import Images
from pe.errors import ContractError
from pe.private.dataset import Overlap, find_overlap, sample_digest

SHAPE = (4, 4, 3)
PRIVATE, OTHERS = np.random.default_rng(0).integers(0, 256, (2, 5, *SHAPE), dtype=np.uint8)
NOTHING = np.empty((0, 32), np.uint8)
DIGESTS = np.frombuffer(b"".join(map(sample_digest, PRIVATE)), np.uint8).reshape(-1, 32)


@pytest.mark.parametrize("together", [1, 2, 2**16])
def test_equal_images_are_counted_and_the_first_is_named(together, monkeypatch):
    monkeypatch.setattr("pe.private.dataset._PIECE", together)
    near = PRIVATE[0].copy()
    near[0, 0, 0] ^= 1
    public = [("a", OTHERS[0]), ("b", PRIVATE[4]), ("near", near), ("d", PRIVATE[0]), ("e", PRIVATE[4])]
    whole = hashlib.sha256(b"".join(sample_digest(image) for _, image in public)).hexdigest()
    first = hashlib.sha256(sample_digest(OTHERS[0])).hexdigest()
    assert find_overlap(DIGESTS, public, Images, SHAPE) == Overlap(3, 5, "b", whole)
    assert find_overlap(DIGESTS, public[:1], Images, SHAPE) == Overlap(0, 1, "", first)
    assert find_overlap(NOTHING, public, Images, SHAPE) == Overlap(0, 5, "", whole)


@pytest.mark.parametrize("image", [PRIVATE[0], OTHERS[0]])
def test_whoever_yields_the_images_is_asked_for_all_of_them(image):
    taken = []

    def public():
        for number in range(6):
            taken.append(number)
            yield str(number), image

    find_overlap(DIGESTS, public(), Images, SHAPE)
    assert taken == list(range(6))


@pytest.mark.parametrize("wrong", [np.zeros((4, 4, 1), np.uint8), np.zeros((2, 4, 3), np.uint8), np.zeros(SHAPE)])
def test_an_image_that_was_decoded_otherwise_is_refused_rather_than_passed_over(wrong):
    with pytest.raises(ContractError, match="gave x as"):
        find_overlap(NOTHING, [("x", wrong)], Images, SHAPE)
