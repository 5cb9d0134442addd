"""The embeddings of candidates."""

from __future__ import annotations

import numpy as np

from embeddings.pixels import Pixels
from pe.data.images import Images
from pe.data.population import Members
from pe.lookahead import KeptVectors, embed
from pe.plugins.protocols import Vectors


class Counting(Pixels):
    """Pixels that remember how many images they were given."""

    seen = 0

    def embed(self, samples: Images) -> Vectors:
        self.seen += len(samples)
        return super().embed(samples)


def test_equal_samples_are_embedded_once_and_each_has_its_vector() -> None:
    different = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    drawn = np.random.default_rng(1).integers(0, 40, 300)
    embedding = Counting(size=8)
    vectors = embed(embedding, Images(different[drawn]))
    assert np.array_equal(vectors, Pixels(size=8).embed(Images(different[drawn])))
    assert embedding.seen == len(np.unique(drawn)) < 300


def test_a_member_that_is_kept_is_embedded_once_and_has_the_vector_of_a_run_that_remembers_nothing() -> None:
    rng = np.random.default_rng(0)
    first = Images(rng.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8))
    known = KeptVectors(embedding := Counting(size=8))
    known.embed(first)
    for _ in range(2):
        parents, kept = np.array([4, 1, 1, 3]), np.array([True, True, False, False])
        known.follow(Members(parents, kept))
        pixels = np.where(kept[:, None, None, None], first.array[parents], rng.integers(0, 256, (4, 8, 8, 3))).astype(
            np.uint8
        )
        first, before = Images(np.concatenate([pixels, pixels[:2] ^ 1])), embedding.seen
        known.follow(Members(np.array([0, 1, 2, 3, 0, 0]), np.arange(6) < 4))  # as if a resumed run skipped a vote
        vectors = known.embed(first)
        assert embedding.seen - before == 4
        assert np.array_equal(vectors, embed(Pixels(size=8), first))
    known.follow(Members(np.arange(6), np.ones(6, np.bool_)))
    assert np.array_equal(known.embed(first), vectors)
    assert embedding.seen - before == 4
