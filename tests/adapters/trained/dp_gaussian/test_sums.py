"""DP-Gaussian's one release: what a unit moves, what the plan charges for it, and what is refused before."""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.trained import dp_gaussian as sums
from adapters.trained.dp_gaussian import GRID, Ball, DPGaussian, Layout, Shares, noisy_sum
from adapters.trained.public import Noise
from pe.errors import PrivacyError, RecipeError
from pe.fit.trainer import FitTerms, PrivateRecords
from pe.privacy.accounting import epsilon
from pe.privacy.ledger import Budget
from pe.privacy.release import Relation, Release
from tests.adapters.trained.clean import NoNoise

SHAPE, CLASSES = (3, 4, 1), 2
PIXELS = math.prod(SHAPE)
BALL = Ball(np.full(PIXELS, 0.4), 1.1)
SHARES = Shares()
RELEASE = Release("fit/sums", "discrete_gaussian", 1.0, 2.0, grid=GRID)
TERMS = FitTerms(tuple("0123456789"), (14, 14, 1), 4000, Relation.ADD_REMOVE, "record", Budget(1.0, 1e-5), seed=0)


def records(count: int, seed: int, per_unit: int = 1) -> PrivateRecords:
    """Images of every kind: black, white, faint and strong ones, one bright pixel."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, *SHAPE)) * rng.integers(0, 2, (count, 1, 1, 1))
    images += (rng.random((count, *SHAPE)) < 0.1) * 255
    labels = rng.integers(0, CLASSES, count).astype(np.int32)
    return PrivateRecords(np.minimum(images, 255).astype(np.uint8), labels, np.arange(count) // per_unit)


def clean(private: PrivateRecords, per_label: bool, shares: Shares = SHARES) -> np.ndarray:
    return noisy_sum(private, BALL, Layout(CLASSES, PIXELS, per_label, shares), RELEASE, NoNoise())


def those(private: PrivateRecords, kept: np.ndarray) -> PrivateRecords:
    return PrivateRecords(private.samples[kept], private.labels[kept], private.units[kept])


def furthest(private: PrivateRecords, per_label: bool, shares: Shares = SHARES) -> float:
    """The most that the removal of one unit moves the clean sum, in sensitivities; in exact arithmetic."""
    whole = clean(private, per_label, shares)
    moves = [whole - clean(those(private, private.units != unit), per_label, shares) for unit in set(private.units)]
    return max(math.sqrt(sum(int(step) ** 2 for step in move)) for move in moves) / RELEASE.grid


@given(st.integers(1, 12), st.integers(0, 10**6), st.integers(1, 4), st.booleans())
def test_no_unit_moves_the_sum_by_more_than_its_sensitivity(
    count: int, seed: int, per_unit: int, per_label: bool
) -> None:
    assert furthest(records(count, seed, per_unit), per_label) <= RELEASE.sensitivity


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 10**6))
def test_nor_with_other_shares(first: float, second: float, seed: int) -> None:
    low, high = sorted((first, second))
    assert furthest(records(4, seed), True, Shares(low, high - low, 1 - high)) <= RELEASE.sensitivity


@pytest.mark.parametrize("per_label", [False, True])
def test_an_image_beyond_the_ball_takes_all_of_the_sensitivity(per_label: bool) -> None:
    white = PrivateRecords(np.full((1, *SHAPE), 255, np.uint8), np.zeros(1, np.int32), np.zeros(1, np.int64))
    assert furthest(white, per_label) == pytest.approx(1, abs=1e-4)


def test_a_version_that_cuts_no_image_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Ball, "inside", lambda ball, images: (images.reshape(len(images), -1) / 255 - ball.centre) / ball.radius
    )
    assert furthest(records(9, 1), False) > RELEASE.sensitivity


def test_a_version_that_weighs_records_and_not_units_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "_blocks", lambda private: [(slice(None), np.ones(len(private.units)))])
    assert furthest(records(9, 1, per_unit=3), False) > RELEASE.sensitivity


def test_a_version_that_cuts_each_moment_by_itself_is_caught() -> None:
    assert furthest(records(9, 1), False, Shares(1, 1, 1)) > RELEASE.sensitivity


@pytest.mark.parametrize("per_label", [False, True])
def test_a_record_adds_the_same_integers_whichever_are_beside_it(
    per_label: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = records(50, 2, per_unit=2)
    whole = clean(private, per_label)
    alone = [clean(those(private, private.units == unit), per_label) for unit in set(private.units)]
    np.testing.assert_array_equal(whole, sum(alone))
    monkeypatch.setattr(sums, "_BLOCK", 7)
    order = np.random.default_rng(0).permutation(50)
    np.testing.assert_array_equal(clean(those(private, order), per_label), whole)


def test_no_record_at_all_adds_nothing() -> None:
    none = records(0, 0)
    assert not clean(none, True).any()
    assert len(clean(none, False)) == CLASSES * (1 + PIXELS) + PIXELS * (PIXELS + 1) // 2


def test_the_ball_is_that_of_the_public_images() -> None:
    public = Noise(count=200).read((6, 6, 1), 3).images
    ball = Ball.of_public(public, 0.25)
    pixels = public.reshape(200, -1) / 255
    assert np.linalg.norm(pixels - pixels.mean(axis=0), axis=1) == pytest.approx(
        np.linalg.norm(pixels - ball.centre, axis=1)
    )
    assert (np.linalg.norm(pixels - ball.centre, axis=1) <= ball.radius).sum() == 50
    assert Ball.of_public(np.full((5, 6, 6, 1), 7, np.uint8), 0.25).radius == pytest.approx(1 / 255)  # all the same


@pytest.mark.parametrize(
    ("relation", "sensitivity"), [(Relation.ADD_REMOVE, 1), (Relation.ZERO_OUT, 1), (Relation.REPLACE_ONE, 2)]
)
@pytest.mark.parametrize("budget", [0.5, 1.0, 10.0])
def test_the_plan_is_one_gaussian_release_whose_cost_can_be_computed_by_hand(
    relation: Relation, sensitivity: float, budget: float
) -> None:
    terms = dataclasses.replace(TERMS, relation=relation, budget=Budget(budget, 1e-5))
    (release,) = DPGaussian(public=Noise()).planned(terms)
    assert (release.sensitivity, release.grid, release.count, release.sampling) == (sensitivity, 2**30, 1, None)
    mu, phi = 1 / release.noise_multiplier, NormalDist().cdf
    delta = phi(mu / 2 - budget / mu) - math.exp(budget) * phi(-mu / 2 - budget / mu)  # Balle and Wang 2018
    assert delta == pytest.approx(1e-5, rel=1e-6)
    assert epsilon([release], 1e-5) <= budget


def layouts(**changes: Any) -> bool:
    """Whether `auto` has each label take its own covariance."""
    api, terms = DPGaussian(public=Noise()), dataclasses.replace(TERMS, **changes)
    (release,) = api.planned(terms)
    return api._layout(terms, release).per_label


def test_each_label_has_its_own_covariance_where_records_and_budget_suffice() -> None:
    five = Budget(5.0, 1e-5)
    assert not layouts()
    assert layouts(budget=five)
    assert layouts(declared_size=40_000)
    assert not layouts(budget=five, shape=(28, 28, 1))
    assert not layouts(budget=five, relation=Relation.REPLACE_ONE)
    assert not layouts(budget=five, shape=(64, 64, 1), declared_size=10**9)  # too many numbers


@pytest.mark.parametrize(
    ("settings", "changes", "error", "sentence"),
    [
        (
            {"covariance": "per_label"},
            {"shape": (64, 64, 1)},
            RecipeError,
            "4,096 pixel values with 10 labels",
        ),
        ({}, {"shape": (64, 64, 3)}, RecipeError, "more than 33,554,432: make private.size smaller"),
        ({}, {"declared_size": 10}, PrivacyError, "noise of 17 to the number of records, of which 10 are declared"),
    ],
)
def test_what_cannot_be_released_is_refused_in_one_sentence(
    settings: dict[str, Any], changes: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        DPGaussian(public=Noise(), **settings).planned(dataclasses.replace(TERMS, **changes))
