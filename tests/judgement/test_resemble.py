"""How a set differs from the real records, where the answer is known."""

import numpy as np
import pytest
from scipy.stats import norm

from pe.judgement.heldout import compare_populations
from pe.judgement.resemble import (
    SURE,
    areas_of,
    effective_number,
    noticed_after,
    telling_features,
    two_sample,
)


def test_sets_that_are_alike_are_not_told_apart_and_others_by_what_no_feature_tells_alone():
    rng = np.random.default_rng(0)
    real, fresh = rng.normal(size=(2, 400, 2))
    assert two_sample(fresh, real, 0) == pytest.approx(0.5, abs=0.06)
    together = np.repeat(fresh[:, :1], 2, axis=1)
    assert two_sample(together, real, 0) > 0.9
    both = np.concatenate([together, real])
    assert areas_of(both, np.arange(800) < 400).max() < 0.6


@pytest.mark.parametrize("area", [0.55, 0.6, 0.8])
def test_an_expert_who_sees_so_many_records_of_each_set_is_sure(area):
    count = noticed_after(area)
    apart = np.sqrt(2) * norm.ppf(area)
    rng = np.random.default_rng(0)
    ours, real = rng.normal(size=(2, 20_000, count))
    right = ((ours + apart).mean(axis=1) > real.mean(axis=1)).mean()
    assert right > SURE - 0.01
    fewer = count - 1
    assert not fewer or norm.cdf(apart * np.sqrt(fewer / 2)) < SURE


def test_nothing_is_noticed_where_nothing_differs():
    assert noticed_after(0.5) is None
    assert noticed_after(0.45) is None
    assert noticed_after(0.505) is None  # not within a thousand
    assert noticed_after(1.0) == 1


def test_a_feature_tells_by_its_middle_or_by_its_spread():
    rng = np.random.default_rng(0)
    real, ours = rng.normal(size=(2, 2000, 3))
    ours[:, 0] += 1
    ours[:, 1] *= 2
    (first, shift), (second, spread), (third, none) = telling_features("abc", ours, real)
    assert (first, second, third) == ("a", "b", "c")
    assert shift == pytest.approx(norm.cdf(1 / np.sqrt(2)), abs=0.02)
    assert spread == pytest.approx(2 / np.pi * np.arctan(2), abs=0.02)
    assert none == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(("different", "copies"), [(60, 1), (6, 10), (1, 60)])
def test_the_effective_number_is_that_of_the_different_samples(different, copies):
    vectors = np.repeat(np.eye(different), copies, axis=0)
    assert effective_number(vectors, 0.1) == pytest.approx(different)


def test_records_of_one_population_are_seldom_said_to_differ():
    rng = np.random.default_rng(0)
    names = ["a", "b", "c"]
    alarms = 0
    for draw in range(60):
        private, test = (rng.normal(size=(count, 3)) for count in (60, 30))
        alarms += compare_populations(names, private, test, draw) is not None
    assert alarms <= 2


def test_of_populations_that_differ_only_the_feature_is_told_in_which_they_differ_most():
    rng = np.random.default_rng(0)
    private, test = rng.normal(size=(2, 200, 3))
    test[:, 1] += 1
    test[:, 2] += 0.2
    found = compare_populations(["a", "b", "c"], private, test, 0)
    assert found is not None
    assert found.column == "b"
    assert "not measured" in str(found)
    assert "in 'b', so the two cannot be compared" in str(found)
