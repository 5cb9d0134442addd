"""The audit finds what it must find and nothing else: it is run on the shipped histogram and on
broken ones.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binomtest

import pe.histogram
from pe.evaluation import audit as worlds
from pe.evaluation.audit import BLOCKS, Claim, Rates, audit
from pe.histogram import Voting, count_votes
from pe.privacy.mechanisms import gaussian_epsilon
from pe.privacy.noise import SystemNoise
from pe.privacy.release import Relation
from tests.seeded_noise import UnsafeSeededNoise

ADD, REPLACE, ZERO = Relation.ADD_REMOVE, Relation.REPLACE_ONE, Relation.ZERO_OUT
KINDS = [(relation, *rest) for relation in Relation for rest in ((1, "record"), (3, "user"))]


class Scaled:
    """Noise of another size than it is asked for."""

    unsafe = False

    def __init__(self, noise, factor):
        self._noise, self._factor = noise, factor

    def discrete_gaussian(self, shape, scale):
        return self._noise.discrete_gaussian(shape, scale * self._factor)


def claim_of(relation=ADD, neighbors=1, unit="record", t=1):
    return Claim(1.0, 1e-5, t, relation, unit, neighbors).within(8.0)


def found(claim, noise=None, runs=500):
    return audit(claim, runs, 0.999, noise or UnsafeSeededNoise(7))


@pytest.mark.parametrize("factor", [2 / 3, 1.0, 1.5])
def test_with_the_system_s_noise_two_thirds_is_flagged_and_no_larger_one(factor):
    result = found(claim_of(), Scaled(SystemNoise(), factor), runs=1000)
    assert bool(result.violations) == (factor < 1)
    assert result.verdict.startswith(
        "VIOLATION: the noise is too small" if factor < 1 else "no violation found"
    )


@pytest.mark.parametrize(
    ("relation", "neighbors", "unit", "t"),
    [(ADD, 3, "user", 1), (REPLACE, 1, "record", 1), (ZERO, 3, "user", 1), (ADD, 1, "record", 3)],
)
def test_under_every_relation_vote_and_unit_alike_and_over_all_iterations(
    relation, neighbors, unit, t
):
    claim = claim_of(relation, neighbors, unit, t)
    right = found(claim)
    assert right.verdict == "no violation found"
    assert claim.epsilon == pytest.approx(8, rel=1e-6)
    assert 0.5 * claim.mu < right.mu < claim.mu
    assert found(claim, Scaled(UnsafeSeededNoise(7), 2 / 3)).violations


def test_a_replace_one_release_that_declares_sensitivity_1_is_flagged(monkeypatch):
    def declared(*arguments):
        return replace(pe.histogram.histogram_release(*arguments), sensitivity=1.0)

    monkeypatch.setattr(worlds, "histogram_release", declared)
    result = found(claim_of(REPLACE))
    assert result.influence == pytest.approx(np.sqrt(2))
    assert result.mu > result.claim.mu
    assert "1.414 times the declared sensitivity" in result.verdict


def more_than_once(*arguments):
    return (1.5 * count_votes(*arguments)).astype(np.int64)


def normalised_per_label(private, vectors, labels, *rest):
    parts = [private.labels == label for label in range(2)]
    kept = (
        replace(
            private,
            vectors=private.vectors[part],
            labels=private.labels[part],
            units=private.units[part],
        )
        for part in parts
    )
    return sum(count_votes(part, vectors, labels, *rest) for part in kept)


@pytest.mark.parametrize(
    ("count", "unit"), [(more_than_once, "record"), (normalised_per_label, "user")]
)
def test_votes_that_count_too_much_are_flagged_by_their_outcomes_alone(monkeypatch, count, unit):
    """The fault is in the mechanism, but not in what the audit knows of the canary."""
    monkeypatch.setattr(pe.histogram, "count_votes", count)
    result = found(claim_of(unit=unit))
    assert result.influence <= 1
    assert result.mu > result.claim.mu


def test_noise_that_comes_twice_is_flagged():
    class Seeded(UnsafeSeededNoise):
        """The fault of a public code: the noise has a fixed seed in every call."""

        def discrete_gaussian(self, shape, scale):
            return UnsafeSeededNoise(0).discrete_gaussian(shape, scale)

    result = found(claim_of(), Seeded(0), runs=500)
    assert result.repeats == 1000 - BLOCKS
    assert "blocks of noise came more than once" in result.verdict


def test_no_noise_at_all_is_flagged_without_any_assumption():
    result = found(claim_of(), Scaled(UnsafeSeededNoise(0), 1e-12), runs=200)
    assert result.epsilon_any > 1
    assert result.mu > 2 * result.claim.mu
    assert result.repeats == 399


def test_no_canary_reaches_another_block():
    """What makes the trials of one call neighbouring pairs, each by itself."""
    for relation, neighbors, unit in [*KINDS, (ADD, 3, "record"), (REPLACE, 50, "user")]:
        claim = Claim(1.0, 1e-5, 1, relation, unit, neighbors)
        present = np.random.default_rng(0).random(BLOCKS if neighbors < 50 else 30) < 0.5
        together = count_votes(
            worlds.records(claim, present),
            *worlds.candidates(claim, len(present)),
            claim.releases[0].grid,
            Voting(neighbors),
        )
        with_canary, without = worlds.clean_votes(claim)
        expected = np.where(present[:, None], with_canary, without)
        np.testing.assert_array_equal(together.reshape(expected.shape), expected)
        assert worlds.influence(claim) == pytest.approx(1, abs=2e-4)


def test_bounds_are_those_of_clopper_and_pearson():
    for hits, runs in ((0, 50), (3, 50), (50, 50), (1234, 20_000)):
        interval = binomtest(hits, runs).proportion_ci(0.98, method="exact")
        assert worlds.lower(hits, runs, 0.01) == pytest.approx(interval.low, abs=1e-12)
        assert worlds.upper(hits, runs, 0.01) == pytest.approx(interval.high, abs=1e-12)


@pytest.mark.parametrize("mu", [0.05, 2.0])
def test_a_right_mechanism_is_flagged_no_more_often_than_the_confidence_allows(mu):
    """Counts drawn from the claimed mechanism itself, at a confidence of 50 % so that errors would
    show.
    """
    rng, runs, delta = np.random.default_rng(1), 5000, 1e-5
    epsilon = gaussian_epsilon(mu, delta)
    tail = worlds.tail_threshold(mu, delta, runs, 0.5 / 8)
    alarms = 0
    for _ in range(500):
        middle, high, low = (
            Rates.of(
                *(int(rng.binomial(runs, ndtr(side * mu / 2 - at))) for side in (1, -1)),
                runs,
                error,
            )
            for at, error in ((0.0, 0.5 / 4), (tail, 0.5 / 8), (-tail, 0.5 / 8))
        )
        alarms += (
            middle.mu > mu or high.epsilon(delta) > epsilon or low.reverse.epsilon(delta) > epsilon
        )
    assert alarms < 0.5 * 500
