"""DP-Gaussian: what a unit moves in its one release, and the Gaussians that follow from it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.trained import dp_gaussian as sums
from adapters.trained.dp_gaussian import (
    GRID,
    Ball,
    DPGaussian,
    Gaussians,
    Layout,
    Shares,
    gaussians_of,
)
from adapters.trained.public import NoiseImages
from pe.errors import RecipeError
from pe.fit.trainer import PrivateRecords
from pe.privacy.release import Release
from tests.adapters.trained.diffusion.small import private_file as private_file
from tests.adapters.trained.public import NoNoise, only
from tests.contracts.fitted import terms
from tests.seeded_noise import UnsafeSeededNoise

RELEASE = Release("fit/sums", "discrete_gaussian", 1.0, 2.0, grid=GRID)
CUTTING = Ball(np.full(12, 0.4), 1.1)
SHARES = Shares()


def records(count: int, seed: int, per_unit: int = 1) -> PrivateRecords:
    """Images of every kind: black, white, faint and strong ones, one bright pixel."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, 3, 4, 1)) * rng.integers(0, 2, (count, 1, 1, 1))
    images += (rng.random(images.shape) < 0.1) * 255
    labels = rng.integers(0, 2, count).astype(np.int32)
    return PrivateRecords(
        np.minimum(images, 255).astype(np.uint8), labels, np.arange(count) // per_unit
    )


def clean(private: PrivateRecords, per_label: bool, shares: Shares = SHARES) -> np.ndarray:
    return sums.noisy_sum(private, CUTTING, Layout(2, 12, per_label, shares), RELEASE, NoNoise())


def furthest(private: PrivateRecords, per_label: bool, shares: Shares = SHARES) -> float:
    """The most that the removal of one unit moves the clean sum, in sensitivities; in exact
    arithmetic.
    """
    whole = clean(private, per_label, shares)
    moves = [
        whole - clean(only(private, private.units != unit), per_label, shares)
        for unit in set(private.units)
    ]
    return max(math.sqrt(sum(int(step) ** 2 for step in move)) for move in moves) / RELEASE.grid


@given(
    st.integers(1, 12),
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.booleans(),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_no_unit_moves_the_sum_by_more_than_its_sensitivity_whatever_the_shares(
    count: int, seed: int, per_unit: int, per_label: bool, first: float, second: float
) -> None:
    private, (low, high) = records(count, seed, per_unit), sorted((first, second))
    assert furthest(private, per_label) <= 1
    assert furthest(private, per_label, Shares(low, high - low, 1 - high)) <= 1


@pytest.mark.parametrize("per_label", [False, True])
def test_an_image_beyond_the_ball_takes_all_of_the_sensitivity(per_label: bool) -> None:
    white = PrivateRecords(
        np.full((1, 3, 4, 1), 255, np.uint8), np.zeros(1, np.int32), np.zeros(1, np.int64)
    )
    assert furthest(white, per_label) == pytest.approx(1, abs=1e-4)


def test_broken_versions_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert furthest(records(9, 1), False, Shares(1, 1, 1)) > 1  # each moment is cut by itself
    with monkeypatch.context() as broken:  # records are weighed, and not units
        broken.setattr(
            sums, "_blocks", lambda private: [(slice(None), np.ones(len(private.units)))]
        )
        assert furthest(records(9, 1, per_unit=3), False) > 1
    monkeypatch.setattr(
        Ball, "inside", lambda ball, images: (images.reshape(len(images), -1) / 255 - 0.4) / 1.1
    )
    assert furthest(records(9, 1), False) > 1  # no image is cut


@pytest.mark.parametrize("per_label", [False, True])
def test_a_record_adds_the_same_integers_whichever_are_beside_it(
    per_label: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = records(50, 2, per_unit=2)
    whole = clean(private, per_label)
    alone = [clean(only(private, private.units == unit), per_label) for unit in set(private.units)]
    np.testing.assert_array_equal(whole, sum(alone))
    monkeypatch.setattr(sums, "_BLOCK", 7)
    order = np.random.default_rng(0).permutation(50)
    np.testing.assert_array_equal(clean(only(private, order), per_label), whole)
    assert not clean(records(0, 0), per_label).any()


def test_the_ball_is_that_of_the_public_images() -> None:
    public = NoiseImages(count=200).read((6, 6, 1), 3).images
    ball = Ball.of_public(public, 0.25)
    pixels = public.reshape(200, -1) / 255
    np.testing.assert_allclose(ball.centre, pixels.mean(axis=0))
    assert (np.linalg.norm(pixels - ball.centre, axis=1) <= ball.radius).sum() == 50
    assert Ball.of_public(np.full((5, 6, 6, 1), 7, np.uint8), 0.25).radius == pytest.approx(
        1 / 255
    )  # all the same


# The Gaussians.

SHAPE, PIXELS = (5, 5, 1), 25
WHOLE = Ball(np.full(PIXELS, 0.5), 3.0)  # nothing is cut
DIRECTION = np.sin(np.arange(PIXELS)) / np.linalg.norm(np.sin(np.arange(PIXELS)))


def private(count: int = 1200) -> PrivateRecords:
    """Two labels: dark and light, which vary along one direction, the light twice as far."""
    rng, labels = np.random.default_rng(0), np.arange(count) % 2
    along = rng.standard_normal((count, 1)) * (0.2 + 0.2 * labels[:, None]) * DIRECTION
    pixels = 0.35 + 0.3 * labels[:, None] + along + 0.01 * rng.standard_normal((count, PIXELS))
    images = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8).reshape(-1, *SHAPE)
    return PrivateRecords(images, labels.astype(np.int32), np.arange(count))


def fitted(per_label: bool, deviation: float, records: PrivateRecords, noise: Any) -> Gaussians:
    layout = Layout(2, PIXELS, per_label)
    release = Release("fit/sums", "discrete_gaussian", 1.0, deviation, grid=GRID)
    total = sums.noisy_sum(records, WHOLE, layout, release, noise)
    return gaussians_of(
        total, layout, WHOLE, release, terms(classes=("dark", "light"), shape=SHAPE)
    )


@pytest.mark.parametrize("per_label", [True, False])
def test_without_noise_they_have_the_mean_and_the_covariance_of_each_label_or_that_within_all(
    per_label: bool,
) -> None:
    records = private()
    model = fitted(per_label, 1e-6, records, NoNoise())
    pixels = records.samples.reshape(-1, PIXELS) / 255
    means = np.stack([pixels[records.labels == label].mean(axis=0) for label in range(2)])
    np.testing.assert_allclose(model.means, means, atol=1e-5)
    within = pixels - means[records.labels]
    groups = [within[records.labels == label] for label in range(2)] if per_label else [within]
    for factor, group in zip(model.factors, groups, strict=True):
        np.testing.assert_allclose(factor @ factor.T, np.cov(group.T, bias=True), atol=3e-5)


@pytest.mark.parametrize("per_label", [False, True])
def test_of_noise_alone_no_direction_is_kept_and_of_a_strong_one_that_one(per_label: bool) -> None:
    records, none = private(), private(0)
    for seed in range(10):
        empty = fitted(per_label, 2.0, none, UnsafeSeededNoise(seed))
        assert empty.code_length <= 2  # the edge holds for large images, and nearly for small ones
        assert np.isfinite(empty.means).all()
        found = fitted(per_label, 0.3, records, UnsafeSeededNoise(seed))
        assert found.code_length <= 2
        strongest = found.factors[-1, :, 0]
        assert abs(strongest @ DIRECTION) > 0.9 * np.linalg.norm(strongest)


def test_a_damaged_model_is_refused(tmp_path: Path) -> None:
    file, model = tmp_path / "gaussians.npz", fitted(False, 1e-6, private(), NoNoise())
    Gaussians(("dark",), SHAPE, model.means, model.factors).write(file)
    for content in (b"", b"no archive", b"PK\x05\x06" + bytes(18), file.read_bytes()):
        file.write_bytes(content)
        with pytest.raises(RecipeError, match="holds no fitted Gaussians"):
            DPGaussian(public=NoiseImages()).load(tmp_path)
