"""Samples of another size than the network draws: reduced for the votes and the result, and varied
as drawn.
"""

import numpy as np
import pytest
import torch

from pe.data.decoding import decode_image
from pe.data.samples import DRAWN
from tests.adapters.diffusion.asking import assert_same, drawn, moved, varied
from tests.adapters.diffusion.test_improved import SMALL, improved_of, weights

SIDE, DRAWN_SIDE = 4, 8


@pytest.fixture
def file(tmp_path):
    torch.save(weights(SMALL), tmp_path / "small.pt")
    return str(tmp_path / "small.pt")


def smaller(images):
    return np.stack(
        [decode_image(one, size=(SIDE, SIDE), resize="stretch", channels=3) for one in images]
    )


def assert_smaller(small, large):
    np.testing.assert_array_equal(small.conditions[DRAWN], large.samples.array)
    np.testing.assert_array_equal(small.samples.array, smaller(large.samples.array))
    np.testing.assert_array_equal(small.conditions["api_class"], large.conditions["api_class"])


def test_samples_are_what_is_drawn_made_smaller_and_variations_are_of_what_was_drawn(file):
    plain, api, same = (
        improved_of(file),
        improved_of(file, image_size=SIDE),
        improved_of(file, image_size=DRAWN_SIDE),
    )
    large, small = drawn(plain), drawn(api)
    assert_smaller(small, large)
    assert moved(varied(plain, large, 0.6), large) > 1
    assert_smaller(varied(api, small, 0.6), varied(plain, large, 0.6))
    assert_same(varied(api, small, 0.0), small)
    assert list(drawn(same).conditions) == ["api_class"]
    assert (api.info.shape, api.info.drawn, api.info.kept) == ((4, 4, 3), (8, 8), (8, 8))
    assert (same.info.shape, same.info.kept) == ((8, 8, 3), None)
