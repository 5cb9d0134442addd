"""The embeddings of candidates."""

import numpy as np
import pytest

from embeddings.pixels import Pixels
from pe.data.images import Images
from pe.data.population import Members, Population
from pe.data.samples import Conditions
from pe.lookahead import EmbeddingCache, embed, lookahead_embeddings
from pe.progress import Progress


class Counting(Pixels):
    """Pixels that remember how many images they were given."""

    seen = 0

    def embed(self, samples):
        self.seen += len(samples)
        return super().embed(samples)


def test_equal_samples_are_embedded_once_and_each_has_its_vector():
    different = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    drawn = np.random.default_rng(1).integers(0, 40, 300)
    embedding = Counting(size=8)
    vectors = embed(embedding, Images(different[drawn]))
    assert np.array_equal(vectors, Pixels(size=8).embed(Images(different[drawn])))
    assert embedding.seen == len(np.unique(drawn)) < 300


def test_a_member_that_is_kept_is_embedded_once_and_has_the_vector_of_a_run_that_remembers_nothing():
    rng = np.random.default_rng(0)
    first = Images(rng.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8))
    known = EmbeddingCache(embedding := Counting(size=8), Progress())
    known.embed(first)
    for _ in range(2):
        parents, kept = np.array([4, 1, 1, 3]), np.array([True, True, False, False])
        known.follow(Members(parents, kept))
        pixels = rng.integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
        pixels[kept] = first.array[parents[kept]]
        first, before = Images(np.concatenate([pixels, pixels[:2] ^ 1])), embedding.seen
        known.follow(
            Members(np.array([0, 1, 2, 3, 0, 0]), np.arange(6) < 4)
        )  # as if a resumed run skipped a vote
        vectors = known.embed(first)
        assert embedding.seen - before == 4
        assert np.array_equal(vectors, embed(Pixels(size=8), first))
    known.follow(Members(np.arange(6), np.ones(6, np.bool_)))
    assert np.array_equal(known.embed(first), vectors)
    assert embedding.seen - before == 4


class Blind(Pixels):
    """Pixels that give an image no finite vector whose first value is 0."""

    def embed(self, samples):
        vectors = super().embed(samples)
        vectors[samples.pixels[:, 0, 0, 0] == 0, 3] = np.nan
        return vectors


class Parts:
    """Answers a lookahead with the given parts."""

    def __init__(self, *parts):
        self._parts = parts

    def lookahead(self, t, population, k, degree):
        for members, samples in self._parts:
            yield np.array(members, np.int64), samples


@pytest.mark.parametrize("batch_size", [1, 4, 256])
def test_a_candidate_is_the_mean_of_its_own_variations_that_have_a_vector_at_every_iteration(
    batch_size,
):
    rng = np.random.default_rng(0)
    known = EmbeddingCache(Blind(size=8, batch_size=batch_size), Progress())
    for count in (6, 9, 5):  # the second needs more memory than the first, the third less
        members = [
            *np.repeat(np.arange(count - 1), 3).tolist()[:-1],
            1,
        ]  # of the last there is none; one came late
        pixels = rng.integers(1, 256, (len(members), 8, 8, 3), dtype=np.uint8)
        pixels[[4, 6, 7, 8], 0, 0, 0] = 0  # of the third all
        own = Images(rng.integers(1, 256, (count, 8, 8, 3), dtype=np.uint8))
        none = np.full(count, -1)
        population = Population(own, np.zeros(count, np.int32), Conditions(), none)
        parts = Parts(
            (members[:5], Images(pixels[:5])),
            (members[5:-1], Images(pixels[5:-1])),
            ([1], Images(pixels[-1:])),
        )
        found = lookahead_embeddings(population, 1, 3, 0.5, parts, known)

        expected, vectors = Pixels(size=8).embed(own), Pixels(size=8).embed(Images(pixels))
        seen = np.isin(np.arange(len(members)), [4, 6, 7, 8], invert=True)
        for member in range(count):
            of = vectors[seen & (np.array(members) == member)]
            if len(of):
                expected[member] = of.mean(axis=0, dtype=np.float64)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
