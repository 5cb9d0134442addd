"""No matrix or weight that the project builds or ships holds a denormal number, which slows some
processors down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import adapters
from embeddings.pixels import Pixels, _reduction, _resampling
from embeddings.torch_model import _filter, _legacy
from pe.data.images import Images

LEAST = float(np.finfo(np.float32).tiny)
SIDES = (4, 28, 64, 224, 1000)


def blurs() -> Iterator[np.ndarray]:
    for size, length, blur in product(SIDES[:-2], SIDES, (0.3, 1.0, 4.0)):
        if blur < size:
            yield _reduction(size, length, blur)
            yield _resampling(size, length).astype(np.float32)


def resizes() -> Iterator[np.ndarray]:
    for size, length in product(SIDES, SIDES):
        yield from (
            _filter(size, length, "bicubic"),
            _filter(size, length, "bilinear"),
            _legacy(size, length),
        )


def weights() -> Iterator[np.ndarray]:
    files = list(Path(adapters.__file__).parent.rglob("*.safetensors"))
    assert files
    for file in files:
        yield from load_file(file).values()


@pytest.mark.parametrize("built", [blurs, resizes, weights])
def test_no_number_is_denormal(built: Callable[[], Iterator[np.ndarray]]) -> None:
    arrays = [
        np.abs(np.asarray(array, np.float64)) for array in built()
    ]  # as float32 computes with them
    assert sum(array.size for array in arrays) > 1000
    assert sum(int(((array > 0) & (array < LEAST)).sum()) for array in arrays) == 0


@pytest.mark.parametrize("features", ["pixels", "pyramid", "gradients"])
@pytest.mark.parametrize("side", [28, 200])
def test_no_image_makes_the_pixels_embedding_compute_a_denormal_number(
    features: str, side: int
) -> None:
    spots = np.zeros((64, side, side, 1), np.uint8)
    spots[np.arange(64), np.arange(64) % side, np.arange(64) * 7 % side] = (
        1 + np.arange(64)[:, None]
    )
    for size in (16, 28, 64):
        with np.errstate(under="raise"):
            vectors = Pixels(features=features, size=size).embed(Images(spots))
        squares = np.square(vectors.astype(np.float64))  # as a search for neighbours makes them
        assert not ((squares > 0) & (squares < LEAST)).any()
