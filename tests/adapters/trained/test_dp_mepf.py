"""DP-MEPF: what its features promise of a record, its one release, and a run that fits it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch

from adapters.trained import noisy_mean
from adapters.trained.fit import noisy_sums
from adapters.trained.noisy_mean import DPMEPF, DPMERF, NoisyMean, Perceptual
from pe.engine.execution import Surroundings, run_recipe
from pe.errors import RecipeError
from pe.fit.trainer import FitTerms, PrivateRecords
from pe.privacy.ledger import Budget
from pe.privacy.noise import grid_for
from pe.privacy.release import Relation, Release
from tests.adapters.trained.clean import NoNoise
from tests.adapters.trained.test_dp_merf import private_file, recipe, shades

SHAPE = (8, 8, 1)
RELEASE = Release("fit/mean_features", "discrete_gaussian", 1.0, 2.0, grid=grid_for(2.0, 1.0, fractional=True))
FAST = {"side": 16, "stages": [1, 2], "steps": 60, "batch": 32}


@pytest.fixture(scope="module")
def features() -> Perceptual:
    return Perceptual.of(16, [1, 2], 0.5, SHAPE, seed=3, images=10)


def images(count: int, seed: int = 0) -> np.ndarray:
    """Some at random, one black, one white, and one of a single grey."""
    made = np.random.default_rng(seed).integers(0, 256, (count, *SHAPE)).astype(np.uint8)
    made[0], made[1], made[2] = 0, 255, 127
    return made


def records(count: int, per_unit: int) -> PrivateRecords:
    labels = np.arange(count, dtype=np.int32) % 2
    return PrivateRecords(images(count), labels, np.arange(count, dtype=np.int64) // per_unit)


def clean(private: PrivateRecords, features: Perceptual) -> np.ndarray:
    return noisy_sums(private, 2, features.of_record, features.size, RELEASE, NoNoise())


def furthest(private: PrivateRecords, features: Perceptual) -> float:
    """The most that the removal of one unit moves the clean sum, in sensitivities."""
    whole, moves = clean(private, features), []
    for unit in np.unique(private.units):
        kept = private.units != unit
        rest = PrivateRecords(private.samples[kept], private.labels[kept], private.units[kept])
        moves.append(np.linalg.norm(whole - clean(rest, features)))
    return max(moves) / RELEASE.grid


@pytest.mark.parametrize("per_unit", [1, 3])
def test_no_unit_moves_the_sum_by_more_than_its_sensitivity(features: Perceptual, per_unit: int) -> None:
    assert 0.5 < furthest(records(9, per_unit), features) <= RELEASE.sensitivity


def test_a_version_whose_blocks_keep_their_norms_is_caught(
    features: Perceptual, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noisy_mean, "_unit", lambda block: block)
    assert furthest(records(9, 1), features) > RELEASE.sensitivity


def test_a_version_whose_weights_sum_to_more_than_1_is_caught(features: Perceptual) -> None:
    heavy = replace(features, weights=tuple(2 * weight for weight in features.weights))
    assert furthest(records(9, 1), heavy) > RELEASE.sensitivity


def test_a_record_s_features_depend_on_no_other_record(features: Perceptual) -> None:
    some = images(6)
    forwards = [features.of_record(image) for image in some]
    backwards = [features.of_record(image) for image in some[::-1]]
    np.testing.assert_array_equal(forwards, backwards[::-1])


def test_the_features_of_made_images_are_those_of_records(features: Perceptual) -> None:
    some = images(6)
    made = features.of_batch(torch.from_numpy(some / np.float32(255))).numpy()
    np.testing.assert_allclose(made, [features.of_record(image) for image in some], atol=1e-4)
    assert made.shape[1] == features.size
    np.testing.assert_allclose(np.linalg.norm(made, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_a_block_that_is_not_finite_or_is_zero_counts_as_zero(
    features: Perceptual, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Perceptual, "_centred", lambda self, _: [torch.full_like(c, value) for c in self.centres])
    assert not features.of_record(images(3)[0]).any()


def test_a_gradient_reaches_every_pixel_through_the_network(features: Perceptual) -> None:
    some = torch.from_numpy(images(4)[3:] / np.float32(255)).requires_grad_()
    features.of_batch(some)[:, ::7].sum().backward()
    assert some.grad is not None
    assert (some.grad != 0).all()


def test_without_squares_there_are_half_as_many_features_of_colour_images_too(features: Perceptual) -> None:
    plain = Perceptual.of(16, [1, 2], 0, (8, 8, 3), seed=3, images=4)
    assert 2 * plain.size == features.size
    assert np.linalg.norm(plain.of_record(np.full((8, 8, 3), 9, np.uint8))) == pytest.approx(1)


@pytest.mark.parametrize("api", [DPMEPF(), DPMERF()])
@pytest.mark.parametrize(("relation", "sensitivity"), [(Relation.ADD_REMOVE, 1), (Relation.REPLACE_ONE, 2)])
def test_its_one_release_costs_the_whole_budget_by_the_gaussian_s_closed_form(
    api: NoisyMean, relation: Relation, sensitivity: int
) -> None:
    """Balle and Wang 2018, Theorem 8, for a sum whose noise has the standard deviation σ·Δ."""
    (release,) = api.planned(FitTerms(("a", "b"), SHAPE, 40, relation, "record", Budget(2.0, 1e-5)))
    assert release.sensitivity == sensitivity
    sigma, below = release.noise_multiplier, NormalDist().cdf
    delta = below(1 / (2 * sigma) - 2 * sigma) - math.exp(2) * below(-1 / (2 * sigma) - 2 * sigma)
    assert delta == pytest.approx(1e-5, rel=0.02)


def test_fitted_it_makes_images_like_those_of_each_label(tmp_path: Path) -> None:
    run = run_recipe(recipe(private_file(tmp_path), api={"kind": "dp_mepf", **FAST}), tmp_path / "run", Surroundings())
    dark, light = shades(run)
    assert light - dark > 90
    assert [release["name"] for release in run.guarantee["releases"]] == ["fit/mean_features"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"side": 8}, "side is 8: it must be at least 16"),
        ({"squares": 1}, "squares is 1: it must lie from 0 to below 1"),
        ({"stages": []}, r"stages is \[\]: it must be a list of different numbers from 1 to 7, ascending"),
        ({"stages": [3, 2]}, r"stages is \[3, 2\]: it must be"),
        ({"stages": [2, 2]}, r"stages is \[2, 2\]: it must be"),
        ({"stages": [5, 8]}, r"stages is \[5, 8\]: it must be"),
    ],
)
def test_settings_out_of_range_are_one_sentence(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        DPMEPF(**settings)  # type: ignore[arg-type]
