"""DP-ImgSyn's release of moments: what an image moves it by, and what it says without noise."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adapters.trained import dp_imgsyn as moments
from adapters.trained.dp_imgsyn_moments import Moments, Scale, clipped
from adapters.trained.dp_imgsyn_networks import Reader
from adapters.trained.fit import Sum, noisy_sums, on_grid
from pe.fit.trainer import FitTerms, PrivateRecords
from pe.privacy.ledger import Budget
from pe.privacy.release import Relation, Release
from tests.adapters.trained.clean import NoNoise

SHAPE = (8, 8, 1)
CPU = torch.device("cpu")


@cache
def release(relation: Relation = Relation.ADD_REMOVE) -> Release:
    return Sum("moments").release(FitTerms(("a", "b"), SHAPE, 100, relation, "record", Budget(1.0, 1e-5)))


def mixed_layers(seed: int, widths: list[int]) -> nn.Module:
    """A classifier of any mix of layers, with weights of any size."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    before = 1
    for width in widths:
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.GroupNorm(2, width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 2))


def vectors_of(model: nn.Module, images: np.ndarray, public: np.ndarray) -> np.ndarray:
    """Each image's vector, as the fit makes it."""
    reader = Reader(model, CPU)
    scale = Scale.of(*reader.moments(public), reader.widths)
    return np.stack([np.hstack(reader.moments(image[None]))[0] * scale.factors for image in images])


def summed(vectors: np.ndarray) -> np.ndarray:
    """The clean sum of images that have these vectors, in grid steps."""
    images = np.arange(len(vectors), dtype=np.uint8)[:, None, None, None]
    private = PrivateRecords(images, np.zeros(len(vectors), dtype=np.int32), np.arange(len(vectors)))

    def vector(image: np.ndarray) -> np.ndarray:
        return moments.clipped(vectors[int(image.item())])

    return noisy_sums(private, 1, vector, vectors.shape[1], release(), NoNoise())[0, 0]


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.lists(st.sampled_from([2, 4, 6]), min_size=1, max_size=3), st.floats(1e-3, 1e3))
def test_no_image_moves_the_sum_by_more_than_one_and_none_in_its_place_by_more_than_two(
    seed: int, widths: list[int], gain: float
) -> None:
    rng = np.random.default_rng(seed)
    private, public = (rng.integers(0, 256, (6, *SHAPE)).astype(np.uint8) for _ in range(2))
    vectors = vectors_of(mixed_layers(seed, widths), private, public) * gain
    whole, grid = summed(vectors), release().grid
    for i in range(len(vectors)):
        gone = np.linalg.norm(whole - summed(np.delete(vectors, i, axis=0))) / grid
        other = vectors.copy()
        other[i] = -vectors[i]
        assert gone <= 1
        assert np.linalg.norm(whole - summed(other)) / grid <= 2


def test_the_published_fault_clipping_each_element_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "clipped", lambda vector: np.clip(vector, -1, 1))
    vectors = np.ones((3, 8))
    moved = np.linalg.norm(summed(vectors) - summed(vectors[1:])) / release().grid
    assert moved > 1


def test_what_is_not_finite_counts_as_zero_and_nothing_grows_by_rounding() -> None:
    assert not clipped(np.array([1.0, np.nan])).any()
    assert not clipped(np.array([1.0, np.inf])).any()
    vector = clipped(np.array([3.0, -4.0]))
    np.testing.assert_allclose(vector, [0.6, -0.8])
    steps = on_grid(vector, 2**20)
    assert int(np.square(steps).sum()) <= 2**40
    assert summed(np.zeros((0, 4))).tolist() == [0, 0, 0, 0]


def test_an_image_s_moments_depend_on_no_other_image_and_are_those_of_its_channels() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, *SHAPE)).astype(np.uint8)
    reader = Reader(mixed_layers(0, [4]), CPU)
    alone = [np.hstack(reader.moments(image[None])) for image in images]
    again = [np.hstack(reader.moments(image[None])) for image in images[::-1]][::-1]
    np.testing.assert_array_equal(alone, again)
    means, squares = reader.moments(images)
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    entering = reader.teacher[0](x).detach().numpy()
    np.testing.assert_allclose(means, entering.mean(axis=(2, 3)), atol=1e-5)
    np.testing.assert_allclose(squares, np.square(entering).mean(axis=(2, 3)), atol=1e-5)


def test_without_noise_the_moments_are_those_of_the_private_set() -> None:
    rng = np.random.default_rng(1)
    means, squares = rng.random((50, 4)), 1 + rng.random((50, 4))
    scale = Scale.of(means, squares, (4,))
    total = sum(on_grid(one * scale.factors * 0.5, 2**30) for one in np.hstack([means, squares]))
    found = Moments.of_sum(total * 2, scale, 2**30, 50)
    np.testing.assert_allclose(found.means, means.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(found.deviations, np.sqrt(squares.mean(axis=0) - means.mean(axis=0) ** 2), rtol=1e-6)
    negative = Moments.of_sum(-total, scale, 2**30, 50)
    assert np.isfinite(negative.deviations).all()
