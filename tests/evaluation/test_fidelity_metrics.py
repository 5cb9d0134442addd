"""The fidelity numbers equal those of independent implementations, and of closed forms."""

from __future__ import annotations

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
from torch_fidelity.metric_prc import calculate_precision_recall_full

from pe.evaluation.fidelity import Moments, StreamedMoments, frechet_distance, kernel_distance, manifold, squared_mmd


def two_sets(n: int, m: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Correlated, shifted, of unequal spread, with a mean that is large beside the spread: as features are."""
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((d, d)) / np.sqrt(d)
    first = rng.standard_normal((n, d)) @ mix + 5
    second = (rng.standard_normal((m, d)) * np.linspace(0.5, 1.5, d)) @ mix + 5.2
    return first.astype(np.float32), second.astype(np.float32)


def moments(vectors: np.ndarray, block: int = 37) -> Moments:
    streamed = StreamedMoments(vectors.shape[1])
    for start in range(0, len(vectors), block):
        streamed.add(vectors[start : start + block])
    return streamed.moments()


def torch_fidelity_fid(first: np.ndarray, second: np.ndarray) -> float:
    one, other = (fid_features_to_statistics(torch.from_numpy(v.astype(np.float64))) for v in (first, second))
    return fid_statistics_to_metric(one, other, False)["frechet_inception_distance"]


@pytest.mark.parametrize(("n", "m", "d"), [(500, 400, 16), (2000, 900, 128), (700, 3000, 300)])
def test_frechet_distance_equals_torch_fidelitys(n: int, m: int, d: int) -> None:
    first, second = two_sets(n, m, d)
    ours = frechet_distance(moments(first), moments(second))
    assert ours == pytest.approx(torch_fidelity_fid(first, second), rel=1e-5)


@given(st.lists(st.floats(0.1, 3), min_size=3, max_size=3), st.lists(st.floats(0.1, 3), min_size=3, max_size=3))
def test_frechet_distance_of_two_gaussians_in_closed_form(first: list[float], second: list[float]) -> None:
    """Covariances that commute: ‖μ₁ − μ₂‖² + Σ (σ₁ − σ₂)², in whatever orthonormal basis."""
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
    one, other = (basis @ np.diag(np.square(s)) @ basis.T for s in (first, second))
    distance = frechet_distance(Moments(9, np.zeros(3), one), Moments(9, np.array([1.0, 2.0, 0.0]), other))
    assert distance == pytest.approx(5 + np.square(np.subtract(first, second)).sum(), rel=1e-9)


def test_frechet_distance_of_correlated_gaussians_in_two_dimensions() -> None:
    """tr (AB)^½ = √(tr AB + 2 √(det A det B)) for 2×2 matrices."""
    a, b = np.array([[2.0, 0.7], [0.7, 1.0]]), np.array([[1.0, -0.4], [-0.4, 3.0]])
    root = np.sqrt(np.trace(a @ b) + 2 * np.sqrt(np.linalg.det(a) * np.linalg.det(b)))
    ours = frechet_distance(Moments(9, np.zeros(2), a), Moments(9, np.zeros(2), b))
    assert ours == pytest.approx(np.trace(a) + np.trace(b) - 2 * root, rel=1e-12)


def test_frechet_distance_with_fewer_samples_than_dimensions() -> None:
    """There tr (Σ₁Σ₂)^½ is the nuclear norm of the product of the two centred samples."""
    first, second = (v.astype(np.float64) for v in two_sets(20, 30, 64))
    x, y = ((v - v.mean(axis=0)) / np.sqrt(len(v) - 1) for v in (first, second))
    shift = first.mean(axis=0) - second.mean(axis=0)
    exact = shift @ shift + (x**2).sum() + (y**2).sum() - 2 * np.linalg.norm(x @ y.T, "nuc")
    assert frechet_distance(moments(first), moments(second)) == pytest.approx(exact, rel=1e-9)


def test_frechet_distance_where_dimensions_are_constant_or_copies_of_others() -> None:
    first, second = two_sets(300, 300, 8)
    wide = [np.hstack([v, v, np.zeros((300, 4), np.float32)]) for v in (first, second)]
    doubled = 2 * frechet_distance(moments(first), moments(second))
    assert frechet_distance(*map(moments, wide)) == pytest.approx(doubled, rel=1e-6)


def test_frechet_distance_keeps_its_digits_where_covariances_are_nearly_singular() -> None:
    """Eigenvalues over sixteen decades, as blurred pixels have them. A copy that is 1 % larger is at a known distance;
    by the eigenvalues of Σ₁Σ₂, as usual, it would come out wrong in the fourth digit."""
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.standard_normal((200, 200)))
    vectors = rng.standard_normal((2000, 200)) * np.logspace(0, -8, 200) @ basis
    found = moments(vectors)
    assert frechet_distance(found, found) < 1e-12
    exact = 1e-4 * (found.mean @ found.mean + np.trace(found.covariance))
    assert frechet_distance(found, moments(1.01 * vectors)) == pytest.approx(exact, rel=1e-8)
    assert torch_fidelity_fid(vectors, 1.01 * vectors) != pytest.approx(exact, rel=1e-5)


def test_constant_images_have_the_distance_of_their_means() -> None:
    first, second = np.zeros((5, 3), np.float32), np.full((4, 3), 2, np.float32)
    assert frechet_distance(moments(first), moments(second)) == pytest.approx(12)


@given(st.integers(1, 100), st.integers(2, 60))
@settings(max_examples=20)
def test_streamed_moments_do_not_depend_on_the_blocks(block: int, n: int) -> None:
    vectors = two_sets(n, 2, 5)[0].astype(np.float64) + 1e6  # a mean that would cost a naive sum of squares its digits
    found = moments(vectors, block)
    np.testing.assert_allclose(found.mean, vectors.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.covariance, np.cov(vectors, rowvar=False), rtol=1e-6, atol=1e-9)


def test_one_vector_has_no_covariance() -> None:
    with pytest.raises(ValueError, match="two vectors"):
        moments(np.zeros((1, 3)))


KID = {"verbose": False, "rng_seed": 0, "kid_kernel": "poly", "kid_kernel_poly_degree": 3}
KID |= {"kid_kernel_poly_gamma": None, "kid_kernel_poly_coef0": 1, "kid_subsets": 1}


def test_kernel_distance_of_a_subset_equals_torch_fidelitys() -> None:
    first, second = two_sets(200, 200, 64)
    tensors = [torch.from_numpy(v.astype(np.float64)) for v in (first, second)]
    theirs = kid_features_to_metric(*tensors, **KID, kid_subset_size=200)["kernel_inception_distance_mean"]
    assert squared_mmd(first, second) == pytest.approx(theirs, rel=1e-5)


def test_kernel_distance_is_the_mean_of_disjoint_subsets_with_its_standard_error() -> None:
    first, second = two_sets(105, 250, 6)
    found = kernel_distance(first, second)
    assert (found.subsets, found.subset_size) == (10, 10)
    parts = [(first[i : i + 10], second[i : i + 10]) for i in range(0, 100, 10)]
    theirs = []
    for part in parts:
        tensors = [torch.from_numpy(v.astype(np.float64)) for v in part]
        theirs.append(kid_features_to_metric(*tensors, **KID, kid_subset_size=10)["kernel_inception_distance_mean"])
    assert found.mean == pytest.approx(np.mean(theirs), rel=1e-5)
    assert found.standard_error == pytest.approx(np.std(theirs, ddof=1) / np.sqrt(10), rel=1e-5)


def test_kernel_distance_of_equal_distributions_is_zero_within_its_standard_error() -> None:
    rng = np.random.default_rng(3)
    draws = [kernel_distance(*rng.standard_normal((2, 200, 4)).astype(np.float32)) for _ in range(200)]
    scores = [draw.mean / draw.standard_error for draw in draws]
    assert abs(np.mean([draw.mean for draw in draws])) < 3 * np.std([draw.mean for draw in draws]) / np.sqrt(200)
    assert 0.8 < np.std(scores) < 1.4  # Student's t with 9 degrees of freedom: 1.13


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize(("n", "m"), [(60, 60), (80, 50)])
def test_precision_recall_density_and_coverage_equal_prdcs(n: int, m: int, k: int) -> None:
    real, fake = two_sets(n, m, 7)
    fake[:10] = real[:10] + 0.01
    with contextlib.redirect_stdout(io.StringIO()):
        theirs = compute_prdc(real, fake, nearest_k=k)
    found = manifold(real, fake, k)
    assert vars(found) == pytest.approx(theirs, rel=1e-5)
    assert 0 < found.coverage < 1


def test_precision_and_recall_equal_torch_fidelitys() -> None:
    real, fake = (v.astype(np.float64) for v in two_sets(90, 70, 9))
    theirs = calculate_precision_recall_full(torch.from_numpy(fake), torch.from_numpy(real), neighborhood=3)
    found = manifold(real, fake, 3)
    assert (found.precision, found.recall) == pytest.approx(theirs, rel=1e-5)


def test_neighbourhoods_across_blocks_are_those_of_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    real, fake = two_sets(90, 70, 9)
    whole = manifold(real, fake)
    monkeypatch.setattr("pe.evaluation.fidelity._ROWS", 7)
    assert manifold(real, fake) == whole


def test_as_many_vectors_as_neighbours_are_refused() -> None:
    real, fake = two_sets(5, 9, 2)
    with pytest.raises(ValueError, match="need 6 vectors"):
        manifold(real, fake, 5)
