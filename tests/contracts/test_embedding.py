"""What every embedding must do; all implementations in the repository are run through it."""

from __future__ import annotations

import numpy as np
import pytest

from embeddings.pixels import Pixels
from pe.data.images import Images
from pe.plugins.protocols import Embedding, check_vectors
from tests.embeddings.networks import networks
from tests.generators import Mean

EMBEDDINGS: dict[str, Embedding] = {
    "pixels": Pixels(size=12, batch_size=8),
    "pyramid": Pixels(features="pyramid", size=12, batch_size=8),
    "gradients": Pixels(features="gradients", size=12, cells=3, batch_size=8),
    "the tests' own": Mean(),
}


NETWORKS = ("dinov2", "efficientnet_lite", "inception", "open_clip")


@pytest.fixture(scope="module")
def random_networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Embedding]:
    return networks(tmp_path_factory.mktemp("weights"))


@pytest.fixture(params=[*EMBEDDINGS, *NETWORKS])
def embedding(request: pytest.FixtureRequest) -> Embedding:
    name = request.param
    found: Embedding = request.getfixturevalue("random_networks")[name] if name in NETWORKS else EMBEDDINGS[name]
    return found


def images(count: int, seed: int = 0) -> Images:
    return Images(np.random.default_rng(seed).integers(0, 256, (count, 12, 12, 3)).astype(np.uint8))


def test_it_answers_float32_rows(embedding: Embedding) -> None:
    assert isinstance(embedding, Embedding)
    vectors = check_vectors(embedding, embedding.embed(images(5)), 5)
    assert np.isfinite(vectors).all()
    assert len(np.unique(vectors, axis=0)) == 5


def test_a_row_does_not_depend_on_the_others_in_its_block(embedding: Embedding) -> None:
    size = embedding.batch_size
    one, other = images(size), images(size, seed=1)
    mixed = Images(np.concatenate([one.pixels[:3], other.pixels[3:]]))
    np.testing.assert_array_equal(embedding.embed(one)[:3], embedding.embed(mixed)[:3])


def test_a_row_does_not_depend_on_its_place_in_a_full_block(embedding: Embedding) -> None:
    """Removing a record moves those after it up by one place."""
    block = images(embedding.batch_size)
    vectors = embedding.embed(block)
    moved = np.roll(np.arange(len(block)), -1)
    np.testing.assert_array_equal(embedding.embed(block.take(moved)), vectors[moved])


def test_images_are_left_as_they_were(embedding: Embedding) -> None:
    samples = images(4)
    embedding.embed(samples)
    np.testing.assert_array_equal(samples.pixels, images(4).pixels)


def test_nothing_is_kept_between_calls(embedding: Embedding) -> None:
    first = embedding.embed(images(4))
    embedding.embed(images(4, seed=9))
    np.testing.assert_array_equal(embedding.embed(images(4)), first)
