"""Votes of every neighbour search that is here against float64, while TF32 is on for all of
torch.
"""

import time

import numpy as np
import pytest
import torch

from pe.nearest import nearest
from pe.nearest.exact import exact_nearest, settle
from pe.nearest.search import _choose
from tests.gpu.models import GPU

pytestmark = GPU
VOTES = 4
CLOSE = 4
"""Candidates for each query that are all but equally near: only float64 tells them apart."""
FLOAT32 = 2.0**-19
"""Largest error of a float32 distance, relative to (|x| + |c|)²: about 2^-23 in float32, 2^-16 in
TF32."""


@pytest.fixture(autouse=True)
def tf32():
    """TF32, as a program around ours may have it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(scope="module")
def problem(tiny):
    """Gaussian queries and candidates, of which some are nearly at one distance of each query; the
    votes by float64.
    """
    n, m, d = (40, 800, 96) if tiny else (2_048, 100_000, 768)
    rng = np.random.default_rng(0)
    queries, candidates = (rng.standard_normal((count, d), dtype=np.float32) for count in (n, m))
    ways = rng.standard_normal((n, CLOSE, d))
    ways *= (3 + 1e-6 * np.arange(CLOSE)[:, None]) / np.linalg.norm(ways, axis=2, keepdims=True)
    candidates[: n * CLOSE] = (queries[:, None] + ways).reshape(-1, d)
    return (
        queries,
        candidates,
        exact_nearest(queries, candidates, VOTES, "l2", candidates.mean(axis=0, dtype=float)),
    )


@pytest.mark.parametrize("backend", ["faiss", "torch"])
def test_votes_are_those_of_float64_and_distances_none_of_tf32(backend, problem, tell):
    queries, candidates, wanted = problem
    begun = time.perf_counter()
    votes = nearest(queries, candidates, VOTES, backend=backend)
    tell(f"{_choose(backend)[0]}, s", time.perf_counter() - begun)
    some = queries[:64]
    found = _choose(backend)[1](candidates)(some, VOTES)
    rows, columns = (
        np.repeat(np.arange(len(some)), found.positions.shape[1]),
        found.positions.ravel(),
    )
    reach = np.linalg.norm(some, axis=1)[rows] + np.linalg.norm(candidates, axis=1)[columns]
    error = (
        np.abs(found.distances.ravel() - settle(some, candidates, rows, columns, "l2")) / reach**2
    )
    tell("largest relative error of a distance", float(error.max()))
    np.testing.assert_array_equal(votes, wanted)
    assert error.max() < FLOAT32
