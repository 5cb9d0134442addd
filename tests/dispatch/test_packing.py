"""Chunks on disk."""

from __future__ import annotations

import io

import numpy as np
import pytest

from pe.dispatch.answers import decode, encode

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(3, 8, 8, 1), (3, 64, 64, 3), (3, 65, 20, 3), (2, 100, 100, 1)])
def test_images_of_every_size_come_back_as_they_were(shape: tuple[int, ...]) -> None:
    images = RNG.integers(0, 256, shape).astype(np.uint8)
    columns = {
        "images": images,
        "items": np.arange(len(images)),
        "condition.turned": np.asfortranarray(RNG.normal(size=(len(images), 5))),
        "condition.prompt": np.array(["a", "bc", ""])[: len(images)],
    }
    found = decode(np.frombuffer(b"".join(encode(columns)), np.uint8))
    assert found.keys() == columns.keys()
    for name, column in columns.items():
        np.testing.assert_array_equal(found[name], column)
        assert found[name].dtype == column.dtype


def test_large_smooth_images_are_stored_compressed() -> None:
    ramp = np.broadcast_to(np.arange(128, dtype=np.uint8)[None, :, None, None], (4, 128, 128, 3))
    assert sum(map(len, encode({"images": ramp}))) < ramp.size / 10
    small = ramp[:, :64, :64]
    assert sum(map(len, encode({"images": small}))) >= small.size


def test_small_images_are_copied_neither_into_a_chunk_nor_out_of_it() -> None:
    images = RNG.integers(0, 256, (5, 8, 8, 3)).astype(np.uint8)
    pieces = encode({"images": images, "items": np.arange(5)})
    assert any(np.shares_memory(images, np.frombuffer(piece, np.uint8)) for piece in pieces)
    data = np.frombuffer(b"".join(pieces), np.uint8)
    assert np.shares_memory(decode(data)["images"], data)


def test_a_chunk_in_the_format_of_numpy_itself_is_read() -> None:
    columns = {"packed.images.pixels": RNG.integers(0, 256, (3, 8, 8, 1)).astype(np.uint8), "items": np.arange(3)}
    columns["condition.turned"] = np.asfortranarray(RNG.normal(size=(3, 5)))
    buffer = io.BytesIO()
    for array in (np.array(list(columns)), *columns.values()):
        np.save(buffer, array)
    found = decode(np.frombuffer(buffer.getvalue(), np.uint8))
    np.testing.assert_array_equal(found["images"], columns["packed.images.pixels"])
    np.testing.assert_array_equal(found["condition.turned"], columns["condition.turned"])
