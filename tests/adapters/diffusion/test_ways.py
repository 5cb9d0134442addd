"""Kinds of pipelines, tiny and random, draw and vary through the adapter, by each of the
four ways.
"""

from functools import cache

import numpy as np
import pytest

from pe.data.images import Images
from pe.plugins.protocols import Answer, RandomRequest
from tests.adapters.diffusion.asking import (
    LABELS,
    SEEDS,
    apart,
    assert_same,
    drawn,
    levels,
    moved,
    varied,
)
from tests.adapters.diffusion.kinds import EACH, KINDS, QUIET, SIDE

pytestmark = QUIET
TOLD = {
    "noise": "noised",
    "instruction": "worded as",
    "meaning": "what the parent shows",
    "structure": "structure",
}


@pytest.fixture(scope="module")
def loaded(api_of):
    """The adapter over a kind, loaded once."""
    return cache(api_of)


@pytest.mark.parametrize("name", EACH)
def test_it_draws_and_varies_by_seeds_alone_whatever_the_batch(name, loaded, api_of):
    api, alone = loaded(name), api_of(name, batch_size=1)
    parents = drawn(api)
    assert levels(parents).shape == (3, SIDE, SIDE, 3)
    assert levels(parents).std(axis=0).mean() > 1  # three different images
    assert apart(drawn(alone), parents) <= 1
    children = varied(api, parents, 0.5)
    assert apart(varied(alone, parents, 0.5), children) <= 1
    assert_same(varied(api, parents, 0.0), parents)
    assert_same(
        varied(api, parents, 1.0), api.random_api(RandomRequest(LABELS, SEEDS ^ np.uint64(9)))
    )


@pytest.mark.parametrize("name", EACH)
def test_the_parent_is_heeded_and_less_so_at_a_larger_degree_as_the_plan_says(name, loaded):
    """How much a variation differs between two parents, all else being equal."""
    api, kind = loaded(name), KINDS[name]
    conditions = api.draw_conditions(LABELS, SEEDS)
    ramp = np.linspace(0, 100, SIDE, dtype=np.uint8)[:, None, None]
    dark, bright = (
        np.broadcast_to(ramp + np.uint8(grey), (len(LABELS), SIDE, SIDE, 3)) for grey in (0, 150)
    )
    parents = [Answer(Images(pixels.copy()), conditions) for pixels in (dark, bright)]
    heeded = [moved(*(varied(api, each, degree) for each in parents)) for degree in (0.25, 0.75)]
    assert heeded[0] > 0.1
    if kind.grows:
        assert heeded[1] < heeded[0]
    assert api.capabilities.degree == ("wording" if kind.way == "instruction" else "exact")
    assert TOLD[kind.way] in api.describe_degree(0.5)
