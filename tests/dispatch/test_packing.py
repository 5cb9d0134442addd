"""Chunks on disk."""

from __future__ import annotations

import numpy as np
import pytest

from pe.dispatch.packing import decode, encode

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(3, 8, 8, 1), (3, 64, 64, 3), (3, 65, 20, 3), (2, 100, 100, 1)])
def test_images_of_every_size_come_back_as_they_were(shape: tuple[int, ...]) -> None:
    images = RNG.integers(0, 256, shape).astype(np.uint8)
    columns = {
        "images": images,
        "items": np.arange(len(images)),
        "condition.prompt": np.array(["a", "bc", ""])[: len(images)],
    }
    found = decode(encode(columns))
    assert found.keys() == columns.keys()
    for name, column in columns.items():
        np.testing.assert_array_equal(found[name], column)
        assert found[name].dtype == column.dtype


def test_large_smooth_images_are_stored_compressed() -> None:
    ramp = np.broadcast_to(np.arange(128, dtype=np.uint8)[None, :, None, None], (4, 128, 128, 3))
    assert len(encode({"images": ramp})) < ramp.size / 10
    small = ramp[:, :64, :64]
    assert len(encode({"images": small})) >= small.size
