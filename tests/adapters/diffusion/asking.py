"""What a run asks a local generator for, and how far two answers are apart."""

import numpy as np

from pe.plugins.protocols import RandomRequest, VariationRequest

LABELS = tuple("abc")
SEEDS = np.random.default_rng(3).integers(0, 2**64, len(LABELS), dtype=np.uint64)
ALL, BACKWARDS = slice(None), slice(None, None, -1)


def drawn(api, which=ALL):
    return api.random_api(RandomRequest(LABELS[which], SEEDS[which]))


def varied(api, parents, degree, which=ALL, salt=9, iteration=1):
    samples, conditions = parents.samples.take(which), parents.conditions.take(which)
    seeds = (SEEDS ^ np.uint64(salt))[which]
    return api.variation_api(
        VariationRequest(samples, LABELS[which], conditions, seeds, degree, iteration)
    )


def levels(answer):
    """Grey levels, float64 n×h×w×c, of an answer in which nothing is missing."""
    assert not answer.missing, answer.missing
    return answer.samples.array.astype(np.float64)


def apart(one, other):
    """The largest difference in grey levels."""
    return np.abs(levels(one) - levels(other)).max()


def moved(one, other):
    """The mean difference in grey levels."""
    return np.abs(levels(one) - levels(other)).mean()


def assert_same(one, other):
    np.testing.assert_array_equal(levels(one), levels(other))
