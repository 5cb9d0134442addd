"""Central images: their one release, what follows from it, and runs over it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.trained import central as means
from adapters.trained.central import CentralImages, Reading
from adapters.trained.fit import noisy_sums
from pe.data.images import Images
from pe.data.samples import Conditions
from pe.errors import APIError, RecipeError
from pe.fit.trainer import FitTerms, Fitting, PrivateRecords
from pe.plugins.protocols import RandomRequest, VariationRequest
from pe.privacy.accounting import epsilon
from pe.privacy.ledger import Budget, Ledger, MemoryStore
from pe.privacy.noise import grid_for
from pe.privacy.release import Poisson, Relation, Release
from tests.adapters.trained.clean import NoNoise

SHAPE = (5, 4, 1)
READING = Reading(2, 0.3, 0.4)
RELEASE = Release("fit/central_images", "discrete_gaussian", 1.0, 2.0, grid=grid_for(2.0, 1.0, fractional=True))
SAMPLED = dataclasses.replace(RELEASE, sampling=Poisson(0.5), count=4)
TERMS = FitTerms(("a", "b"), SHAPE, 400, Relation.ADD_REMOVE, "record", Budget(1.0, 1e-5), 0)


class Coins(NoNoise):
    """No noise; the i-th coin is heads by its own place, so that a unit's coins do not hang on the others."""

    def coins(self, count: int, rate: float) -> np.ndarray:
        return np.random.default_rng(1).random(count) < rate


def records(count: int, seed: int, per_unit: int = 1) -> PrivateRecords:
    rng = np.random.default_rng(seed)
    images = rng.choice(np.array([0, 40, 255], np.uint8), (count, *SHAPE))
    return PrivateRecords(images, rng.integers(0, 2, count).astype(np.int32), np.arange(count) // per_unit)


def only(private: PrivateRecords, kept: np.ndarray) -> PrivateRecords:
    return PrivateRecords(private.samples[kept], private.labels[kept], private.units[kept])


def clean(private: PrivateRecords, release: Release = RELEASE) -> np.ndarray:
    length = int(np.prod(READING.small(SHAPE))) + 1
    return noisy_sums(private, 2, READING, length, release, Coins())


def furthest(private: PrivateRecords, release: Release = RELEASE) -> float:
    """The most that the last unit moves one subset's clean sums, in sensitivities."""
    moved = clean(private, release) - clean(only(private, private.units < private.units.max()), release)
    return float(np.linalg.norm(moved.reshape(release.count, -1), axis=1).max()) / release.grid


@given(st.integers(2, 12), st.integers(0, 10**6), st.integers(1, 4), st.booleans())
def test_no_unit_moves_a_subset_s_sums_by_more_than_the_sensitivity(
    count: int, seed: int, per_unit: int, sampled: bool
) -> None:
    assert furthest(records(count, seed, per_unit), SAMPLED if sampled else RELEASE) <= RELEASE.sensitivity


def test_versions_that_cut_nothing_or_weigh_records_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    private = records(9, 1, per_unit=3)
    with monkeypatch.context() as broken:
        alone = np.unique
        broken.setattr(means.np, "unique", lambda v, **_: (alone(v), alone(v, return_inverse=True)[1], np.ones(9)))
        assert furthest(private) > RELEASE.sensitivity
    monkeypatch.setattr(means.np.linalg, "norm", lambda *_: 0.0)
    vector = READING(np.full(SHAPE, 255, np.uint8))
    assert float(np.sqrt(vector @ vector)) > 1


def test_a_record_s_part_depends_on_no_other_record() -> None:
    private = records(6, 2)
    alone = [clean(only(private, private.units == unit)) for unit in private.units]
    np.testing.assert_array_equal(clean(private), sum(alone))


def test_what_is_planned_is_what_is_done_and_costs_what_it_says() -> None:
    (release,) = CentralImages(subsets=4, rate=0.25).planned(TERMS)
    assert (release.sampling, release.count, release.sensitivity) == (Poisson(0.25), 4, 1)
    one_by_one = [dataclasses.replace(release, name=str(i), count=1) for i in range(4)]
    assert epsilon(one_by_one, 1e-5) == pytest.approx(1, abs=1e-3)
    assert epsilon([dataclasses.replace(one, sampling=None) for one in one_by_one], 1e-5) > 1.5
    replaced = dataclasses.replace(TERMS, relation=Relation.REPLACE_ONE)
    assert CentralImages().planned(replaced)[0].sensitivity == 2


def fitted(folder: Path, private: PrivateRecords, noise: Any = None, **settings: Any) -> CentralImages:
    api = CentralImages(**settings)
    ledger = Ledger(TERMS.budget, TERMS.relation, TERMS.unit, api.planned(TERMS), MemoryStore(), noise=noise or Coins())
    api.fit(Fitting(TERMS, lambda: private, ledger, folder))
    api.load(folder)
    return api


def shades(count: int) -> PrivateRecords:
    """Dark a's and light b's; three times as many a's."""
    labels = (np.arange(count) % 4 == 0).astype(np.int32)
    images = np.where(labels == 1, 200, 50).astype(np.uint8)[:, None, None, None] * np.ones(SHAPE, np.uint8)
    return PrivateRecords(images, labels, np.arange(count))


@pytest.mark.parametrize("settings", [{}, {"subsets": 3, "rate": 0.5}, {"shrink": 3, "centre": 0.0, "clip": 1.0}])
def test_the_central_images_are_the_labels_means_however_many_each_has(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    api = fitted(tmp_path, shades(400), bend=0, **settings)
    seeds = np.arange(6, dtype=np.uint64)
    found = api.random_api(RandomRequest(("a", "b") * 3, seeds)).samples.array
    assert np.abs(found[0::2].astype(int) - 50).max() <= 12
    assert np.abs(found[1::2].astype(int) - 200).max() <= 12


def test_a_variation_bends_its_parent_by_the_degree(tmp_path: Path) -> None:
    api = fitted(tmp_path, shades(40))
    parents = records(3, 4).samples
    moved = []
    for degree in (0.0, 0.2, 1.0):
        request = VariationRequest(
            Images(parents), ("a", "b", "a"), Conditions(), np.arange(3, dtype=np.uint64), degree
        )
        varied = api.variation_api(request).samples.array
        moved.append(float(np.abs(varied.astype(int) - parents).mean()))
    assert moved[0] == 0
    assert moved[0] < moved[1] < moved[2]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"subsets": 0}, "subsets is 0: it must be at least 1"),
        ({"subsets": 2}, "subsets is 2: it must be 1 where rate is 1"),
        ({"rate": 0.0}, "rate is 0.0: it must lie above 0"),
        ({"shrink": 0}, "shrink is 0"),
        ({"centre": 2.0}, "centre is 2.0"),
        ({"clip": 0.0}, "clip is 0.0"),
        ({"bend": 1.0}, "bend is 1.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        CentralImages(**settings)


def test_without_a_fit_or_with_a_damaged_one_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(APIError, match="answers once it is fitted"):
        CentralImages().random_api(RandomRequest(("a",), np.zeros(1, np.uint64)))
    fitted(tmp_path, shades(40))
    (tmp_path / "central.npy").write_bytes(b"cut off")
    with pytest.raises(RecipeError, match="holds no central images"):
        CentralImages().load(tmp_path)
