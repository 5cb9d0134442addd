"""The embeddings of candidates."""

from __future__ import annotations

import numpy as np

from embeddings.pixels import Pixels
from pe.data.images import Images
from pe.lookahead import embed
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
