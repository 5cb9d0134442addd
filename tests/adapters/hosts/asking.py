"""One image of a host, new or varied."""

from __future__ import annotations

import numpy as np

from pe.data.images import Images
from pe.data.samples import Conditions
from pe.plugins.protocols import Answer, RandomRequest, VariationRequest
from tests.endpoints.hosts import Generator

SIDE = 64


def random(api: Generator, seed: int = 40, count: int = 1) -> Answer:
    seeds, labels = np.arange(seed, seed + count, dtype=np.uint64), ("cat",) * count
    return api.random_api(RandomRequest(labels, seeds, api.draw_conditions(labels, seeds)))


def varied(api: Generator, degree: float, shade: int = 10, seed: int = 3) -> Answer:
    parents = Images(np.full((1, SIDE, SIDE, 3), shade, dtype=np.uint8))
    conditions, seeds = Conditions({"prompt": np.array(["a cat"])}), np.array([seed], dtype=np.uint64)
    return api.variation_api(VariationRequest(parents, ("cat",), conditions, seeds, degree))
