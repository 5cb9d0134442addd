"""Methods that release one noisy sum of the records' vectors: DP-MERF, DP-MEPF, central images,
DP-ImgSyn's moments.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adapters.trained import central, dp_imgsyn_networks, fit, noisy_mean
from adapters.trained.central import CentralImages
from adapters.trained.dp_imgsyn_networks import Aim, Reader, clip, factors_of
from adapters.trained.fit import noisy_sums, on_grid
from adapters.trained.noisy_mean import Perceptual, RandomFourier, frequencies
from pe.fit.trainer import PrivateRecords
from pe.plugins.protocols import RandomRequest
from pe.privacy.accounting import epsilon
from pe.privacy.ledger import Budget, MemoryStore
from pe.privacy.noise import grid_for
from pe.privacy.release import Poisson, Release
from tests.adapters.trained.public import NoNoise, only
from tests.contracts.fitted import COUNT, fitting, make, terms

SHAPE = (8, 8, 1)
RELEASE = Release(
    "fit/sums", "discrete_gaussian", 1.0, 2.0, grid=grid_for(2.0, 1.0, fractional=True)
)
SAMPLED = dataclasses.replace(RELEASE, sampling=Poisson(0.5), count=4)
Vector = Callable[[np.ndarray], np.ndarray]


def records(count: int, seed: int, per_unit: int = 1) -> PrivateRecords:
    """Images of every kind: noise, black, white, a single grey, one bright pixel."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, *SHAPE)) * rng.integers(0, 2, (count, 1, 1, 1))
    images[::5] = rng.choice([0, 127, 255])
    images += (rng.random((count, *SHAPE)) < 0.1) * 255
    labels = rng.integers(0, 2, count).astype(np.int32)
    return PrivateRecords(
        np.minimum(images, 255).astype(np.uint8), labels, np.arange(count) // per_unit
    )


def clean(private: PrivateRecords, vector: Vector, release: Release = RELEASE) -> np.ndarray:
    return noisy_sums(
        private, 2, vector, len(vector(np.zeros(SHAPE, np.uint8))), release, NoNoise()
    )


def furthest(private: PrivateRecords, vector: Vector, release: Release = RELEASE) -> float:
    """The most that the last unit moves one subset's clean sums, in sensitivities."""
    moved = clean(private, vector, release) - clean(
        only(private, private.units < max(private.units)), vector, release
    )
    return float(np.linalg.norm(moved.reshape(release.count, -1), axis=1).max()) / release.grid


def direction(image: np.ndarray) -> np.ndarray:
    """A vector of norm 1, in a direction of the image's own, or its opposite."""
    pixels = image.ravel() - 100.0
    return pixels / np.linalg.norm(pixels)


@given(st.integers(2, 12), st.integers(0, 10**6), st.integers(1, 4), st.booleans())
def test_no_unit_moves_a_subset_s_sums_by_more_than_the_sensitivity(
    count: int, seed: int, per_unit: int, sampled: bool
) -> None:
    assert furthest(records(count, seed, per_unit), direction, SAMPLED if sampled else RELEASE) <= 1


@pytest.mark.parametrize("broken", [10.0, np.inf, np.nan])
def test_a_vector_that_is_too_long_or_not_finite_moves_the_sums_no_further(broken: float) -> None:
    """A method that breaks its promise loses quality, and no privacy."""
    assert furthest(records(6, 1, per_unit=1), lambda image: direction(image) * broken) <= 1


def test_a_vector_that_keeps_its_promise_is_summed_to_the_bit_as_it_is() -> None:
    vector = direction(records(2, 1, per_unit=1).samples[0])
    assert np.array_equal(fit.in_ball(vector), vector)


def test_another_unit_in_its_place_moves_it_by_up_to_twice_as_far() -> None:
    private = PrivateRecords(np.full((2, *SHAPE), 0, np.uint8), np.zeros(2, np.int32), np.arange(2))
    private.samples[1] = 200
    first, second = (clean(only(private, np.array([i])), direction) for i in range(2))
    assert np.linalg.norm(first - second) / RELEASE.grid == pytest.approx(2, rel=1e-3)


def test_a_version_that_weighs_records_and_not_units_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = np.unique
    monkeypatch.setattr(
        fit.np, "unique", lambda v, **_: (alone(v), alone(v, return_inverse=True)[1], np.ones(9))
    )
    assert furthest(records(9, 1, per_unit=3), direction) > 1


def test_a_record_adds_the_same_integers_whichever_are_beside_it_and_none_adds_nothing() -> None:
    private = records(6, 2)
    alone = [clean(only(private, private.units == unit), direction) for unit in private.units]
    np.testing.assert_array_equal(clean(private, direction), sum(alone))
    assert not clean(only(private, np.zeros(0, int)), direction).any()


# The vectors that are summed: of norm 1 at most, and functions of one image.


def mixed_layers(seed: int, widths: list[int]) -> nn.Module:
    """A classifier of any mix of layers."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, width in zip([1, *widths], widths, strict=False):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.GroupNorm(2, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 2))


@cache
def perceptual() -> Perceptual:
    return Perceptual.of(16, [1, 2], 0.5, SHAPE, seed=3, images=10)


@cache
def moments_of(gain: float) -> Vector:
    """The fit's vector of DP-ImgSyn; a gain of 1 is as shipped, a larger one is for images unlike
    the public ones.
    """
    reader = Reader(mixed_layers(0, [4, 6]), torch.device("cpu"))
    factors = factors_of(*reader.moments(records(6, 3).samples), reader.widths)
    return lambda image: clip(gain * np.hstack(reader.moments(image[None]))[0] * factors)


FOURIER = RandomFourier(frequencies(20, 64, [0.8], seed=3))
VECTORS: dict[str, Callable[[], Vector]] = {
    "dp_merf": lambda: FOURIER.of_record,
    "dp_mepf": lambda: perceptual().of_record,
    "central_images": lambda: CentralImages(centre=0.3, clip=0.4).vector,
    "dp_imgsyn": lambda: moments_of(1),
    "dp_imgsyn, far from public": lambda: moments_of(1000),
}


@pytest.mark.parametrize("name", VECTORS)
@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_a_record_s_vector_has_a_norm_of_1_at_most_and_depends_on_no_other_record(
    name: str, seed: int
) -> None:
    images, vector = records(6, seed).samples, VECTORS[name]()
    forwards = [vector(image) for image in images]
    assert all(
        math.sqrt(sum(int(step) ** 2 for step in on_grid(one, 2**20))) <= 2**20 for one in forwards
    )
    np.testing.assert_array_equal(forwards, [vector(image) for image in images[::-1]][::-1])
    assert max(np.linalg.norm(one) for one in forwards) > 0.3


def test_broken_versions_of_these_vectors_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    image = records(6, 1).samples[1]
    heavy = dataclasses.replace(
        perceptual(), weights=tuple(2 * weight for weight in perceptual().weights)
    )
    assert np.linalg.norm(heavy.of_record(image)) > 1
    with monkeypatch.context() as broken:
        broken.setattr(noisy_mean, "_unit", lambda block: block)
        assert np.linalg.norm(perceptual().of_record(image)) > 1
    monkeypatch.setattr(central.np.linalg, "norm", lambda *_: 0.0)
    vector = CentralImages(centre=0.3, clip=0.4).vector(np.full(SHAPE, 255, np.uint8))
    assert float(np.sqrt(vector @ vector)) > 1


def test_dp_imgsyn_cuts_a_record_s_moments_as_a_whole_and_not_each_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms: list[float] = []

    def summing(private: PrivateRecords, classes: int, vector: Vector, *rest: Any) -> np.ndarray:
        norms.extend(np.linalg.norm(vector(image)) for image in private.samples)
        return noisy_sums(private, classes, vector, *rest)

    monkeypatch.setattr(
        dp_imgsyn_networks, "factors_of", lambda *public: 1000 * factors_of(*public)
    )
    monkeypatch.setattr(fit, "noisy_sums", summing)
    api = make("dp_imgsyn")
    api.fit(fitting(api, tmp_path))
    assert norms == pytest.approx(np.ones(COUNT))  # so far out is every record


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_what_is_not_finite_or_zero_counts_as_zero(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not clip(np.array([0.0, value])).any()
    monkeypatch.setattr(
        Perceptual, "_centre", lambda self, _: [torch.full_like(c, value) for c in self.centres]
    )
    assert not perceptual().of_record(records(3, 0).samples[1]).any()


SUBSETS = {"subsets": 4, "rate": 0.25, "bend": 0}
TERMS = terms(classes=("0", "1"), shape=(4, 4, 1), declared_size=400, budget=Budget(1, 1e-5))


def test_the_plan_of_a_sampled_sum_is_what_is_drawn_and_costs_what_its_draws_do() -> None:
    (release,) = make("central_images", SUBSETS).plan_releases(TERMS)
    assert (release.sampling, release.count, release.sensitivity) == (Poisson(0.25), 4, 1)
    one_by_one = [dataclasses.replace(release, name=str(i), count=1) for i in range(4)]
    assert epsilon(one_by_one, 1e-5) == pytest.approx(1, abs=1e-3)
    assert epsilon([dataclasses.replace(one, sampling=None) for one in one_by_one], 1e-5) > 1.5


# What follows from the sums.


def shades(count: int, every: int = 2) -> PrivateRecords:
    """Dark 0's and light 1's, of which there is one in so many."""
    labels = (np.arange(count) % every == 0).astype(np.int32)
    noise = np.random.default_rng(0).integers(0, 40, (count, 4, 4, 1))
    images = np.where(labels == 1, 215, 0)[:, None, None, None] + noise
    return PrivateRecords(images.astype(np.uint8), labels, np.arange(count))


@pytest.mark.parametrize(
    ("kind", "settings", "every"),
    [
        ("dp_merf", {"features": 40, "bandwidth": 0.3, "steps": 200, "batch": 32}, 2),
        ("dp_mepf", {"side": 16, "stages": [1, 2], "steps": 60, "batch": 32}, 2),
        ("central_images", SUBSETS, 4),
        ("central_images", {"shrink": 3, "centre": 0.0, "clip": 1.0, "bend": 0}, 4),
        ("dp_gaussian", {"public": {"kind": "noise", "count": 50}}, 4),
    ],
)
def test_samples_of_a_label_look_like_its_records(
    kind: str, settings: dict[str, Any], every: int, tmp_path: Path
) -> None:
    api = make(kind, settings)
    api.fit(fitting(api, tmp_path, MemoryStore(), lambda: shades(400, every), TERMS, NoNoise()))
    api.load(tmp_path)
    found = api.random_api(
        RandomRequest(("0", "1") * 12, np.arange(24, dtype=np.uint64))
    ).samples.array
    dark, light = found[0::2].mean(), found[1::2].mean()
    assert light - dark > 60
    if kind == "central_images":
        assert abs(dark - 20) <= 12
        assert abs(light - 235) <= 12


def test_the_random_features_are_those_of_the_gaussian_kernel_or_the_mean_of_several() -> None:
    x, y = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 1)).astype(np.uint8)
    squared = ((x / 255 - y / 255) ** 2).sum()
    for bandwidths in ([0.8], [0.4, 1.6]):
        phi = RandomFourier(frequencies(20_000, 16, bandwidths, seed=0))
        wanted = np.mean([np.exp(-squared / (2 * bandwidth**2)) for bandwidth in bandwidths])
        assert phi.of_record(x) @ phi.of_record(y) == pytest.approx(wanted, abs=0.02)


def test_dp_imgsyn_s_moments_are_those_of_the_channels_and_without_noise_of_the_private_set() -> (
    None
):
    images = records(3, 0).samples
    reader = Reader(mixed_layers(0, [4]), torch.device("cpu"))
    means, squares = reader.moments(images)
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    entering = reader.teacher[0](x).detach().numpy()
    np.testing.assert_allclose(means, entering.mean(axis=(2, 3)), atol=1e-5)
    np.testing.assert_allclose(squares, np.square(entering).mean(axis=(2, 3)), atol=1e-5)

    rng = np.random.default_rng(1)
    means, squares = rng.random((50, 4)), 1 + rng.random((50, 4))
    factors = factors_of(means, squares, (4,))
    total = sum(on_grid(one * factors * 0.5, 2**30) for one in np.hstack([means, squares]))
    found = Aim.of_sum(reader, total * 2, factors, 2**30, 50)
    np.testing.assert_allclose(found.means, means.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(
        found.deviations, np.sqrt(squares.mean(axis=0) - means.mean(axis=0) ** 2), rtol=1e-6
    )
    assert Aim.of_sum(reader, -total, factors, 2**30, 50).deviations.isfinite().all()
