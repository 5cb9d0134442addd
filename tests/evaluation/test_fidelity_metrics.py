"""The fidelity numbers equal those of independent implementations, and of closed forms."""

import contextlib
import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prdc import compute_prdc
from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric
from torch_fidelity.metric_kid import kid_features_to_metric

from pe.evaluation.fidelity import frechet_distance, kernel_distance, moments_of
from pe.judgement.manifold import manifold


def two_sets(n, m, d):
    """Correlated, shifted, of unequal spread, with a mean that is large beside the spread: as
    features are.
    """
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((d, d)) / np.sqrt(d)
    first = rng.standard_normal((n, d)) @ mix + 5
    second = (rng.standard_normal((m, d)) * np.linspace(0.5, 1.5, d)) @ mix + 5.2
    return first.astype(np.float32), second.astype(np.float32)


def moments(vectors, block=37):
    return moments_of(vectors[start : start + block] for start in range(0, len(vectors), block))


def torch_fidelity_fid(first, second):
    one, other = (
        fid_features_to_statistics(torch.from_numpy(v.astype(np.float64))) for v in (first, second)
    )
    return fid_statistics_to_metric(one, other, False)["frechet_inception_distance"]


@pytest.mark.parametrize(("n", "m", "d"), [(500, 400, 16), (400, 900, 128)])
def test_frechet_distance_equals_torch_fidelitys(n, m, d):
    first, second = two_sets(n, m, d)
    ours = frechet_distance(moments(first), moments(second))
    assert ours == pytest.approx(torch_fidelity_fid(first, second), rel=1e-5)


def test_frechet_distance_with_fewer_samples_than_dimensions():
    """There tr (Σ₁Σ₂)^½ is the nuclear norm of the product of the two centred samples."""
    first, second = (v.astype(np.float64) for v in two_sets(20, 30, 64))
    x, y = ((v - v.mean(axis=0)) / np.sqrt(len(v) - 1) for v in (first, second))
    shift = first.mean(axis=0) - second.mean(axis=0)
    exact = shift @ shift + (x**2).sum() + (y**2).sum() - 2 * np.linalg.norm(x @ y.T, "nuc")
    assert frechet_distance(moments(first), moments(second)) == pytest.approx(exact, rel=1e-9)


def test_frechet_distance_keeps_its_digits_where_covariances_are_nearly_singular():
    """Eigenvalues over sixteen decades, as blurred pixels have them. A copy that is 1 % larger is
    at a known distance; by the eigenvalues of Σ₁Σ₂, as usual, it would come out wrong in the fourth
    digit.
    """
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.standard_normal((200, 200)))
    vectors = rng.standard_normal((2000, 200)) * np.logspace(0, -8, 200) @ basis
    found = moments(vectors)
    assert frechet_distance(found, found) < 1e-12
    exact = 1e-4 * (found.mean @ found.mean + np.trace(found.covariance))
    assert frechet_distance(found, moments(1.01 * vectors)) == pytest.approx(exact, rel=1e-8)


@given(st.integers(1, 100), st.integers(2, 60))
@settings(max_examples=20)
def test_streamed_moments_do_not_depend_on_the_blocks(block, n):
    vectors = (
        two_sets(n, 2, 5)[0].astype(np.float64) + 1e6
    )  # a mean that would cost a naive sum of squares its digits
    found = moments(vectors, block)
    np.testing.assert_allclose(found.mean, vectors.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(
        found.covariance, np.cov(vectors, rowvar=False), rtol=1e-6, atol=1e-9
    )


KID = {
    "verbose": False,
    "rng_seed": 0,
    "kid_kernel": "poly",
    "kid_kernel_poly_degree": 3,
    "kid_subset_size": 10,
}
KID |= {"kid_kernel_poly_gamma": None, "kid_kernel_poly_coef0": 1, "kid_subsets": 1}


def test_kernel_distance_is_the_mean_of_torch_fidelitys_on_disjoint_subsets_with_its_standard_error():
    first, second = two_sets(105, 250, 6)
    found = kernel_distance(first, second)
    assert (found.subsets, found.subset_size) == (10, 10)
    theirs = []
    for i in range(0, 100, 10):
        tensors = [
            torch.from_numpy(part[i : i + 10].astype(np.float64)) for part in (first, second)
        ]
        theirs.append(kid_features_to_metric(*tensors, **KID)["kernel_inception_distance_mean"])
    assert found.mean == pytest.approx(np.mean(theirs), rel=1e-5)
    assert found.standard_error == pytest.approx(np.std(theirs, ddof=1) / np.sqrt(10), rel=1e-5)


@pytest.mark.parametrize(("n", "m", "k"), [(60, 60, 1), (80, 50, 5)])
def test_precision_recall_density_and_coverage_equal_prdcs_in_whatever_blocks(monkeypatch, n, m, k):
    real, fake = two_sets(n, m, 7)
    fake[:10] = real[:10] + 0.01
    with contextlib.redirect_stdout(io.StringIO()):
        theirs = compute_prdc(real, fake, nearest_k=k)
    found = manifold(real, fake, k)
    assert vars(found) == pytest.approx(theirs, rel=1e-5)
    assert 0 < found.coverage < 1
    monkeypatch.setattr("pe.judgement.manifold._ROWS", 7)
    assert manifold(real, fake, k) == found
