"""The audit finds what it must find and nothing else: it is run on the shipped histogram and on broken ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binomtest

import pe.histogram
from pe.errors import PrivacyError
from pe.evaluation import audit as audit_worlds
from pe.evaluation.audit import (
    BLOCKS,
    Audit,
    Claim,
    Rates,
    audit,
    candidates,
    chance_to_flag,
    clean_votes,
    influence,
    lower,
    records,
    runs_to_flag,
    tail_threshold,
    upper,
)
from pe.histogram import Voting, count_votes
from pe.privacy.mechanisms import gaussian_epsilon
from pe.privacy.noise import Noise, SystemNoise, UnsafeSeededNoise
from pe.privacy.release import Relation

KINDS = [(relation, neighbors, unit) for relation in Relation for neighbors, unit in ((1, "record"), (3, "user"))]
KINDS.append((Relation.ADD_REMOVE, 3, "record"))
RUNS, CONFIDENCE = 500, 0.999


class Scaled:
    """Noise of another size than it is asked for."""

    unsafe = False

    def __init__(self, noise: Noise, factor: float) -> None:
        self._noise, self._factor = noise, factor

    def discrete_gaussian(self, shape: int | tuple[int, ...], scale: float) -> np.ndarray:
        return self._noise.discrete_gaussian(shape, scale * self._factor)

    def discrete_laplace(self, shape: int | tuple[int, ...], scale: float) -> np.ndarray:
        raise AssertionError("a histogram draws no Laplace noise")


def claim_of(relation: Relation = Relation.ADD_REMOVE, neighbors: int = 1, unit: str = "record", t: int = 1) -> Claim:
    return Claim(1.0, 1e-5, t, relation, unit, neighbors).within(8.0)


def found(claim: Claim, noise: Noise | None = None, runs: int = RUNS) -> Audit:
    return audit(claim, runs, CONFIDENCE, UnsafeSeededNoise(7) if noise is None else noise)


@pytest.mark.parametrize("factor", [1.0, 2 / 3])
def test_with_the_system_s_noise_two_thirds_is_flagged_and_the_right_size_is_not(factor: float) -> None:
    result = found(claim_of(), Scaled(SystemNoise(), factor), runs=1000)
    assert bool(result.violations) == (factor < 1)
    assert result.verdict.startswith("VIOLATION: the noise is too small" if factor < 1 else "no violation found")


@pytest.mark.parametrize(("relation", "neighbors", "unit"), KINDS)
def test_under_every_relation_vote_and_unit_alike(relation: Relation, neighbors: int, unit: str) -> None:
    claim = claim_of(relation, neighbors, unit)
    right = found(claim)
    assert right.verdict == "no violation found"
    assert 0.6 * claim.mu < right.mu < claim.mu
    assert 0.9999 < right.influence <= 1 + 1e-9
    assert found(claim, Scaled(UnsafeSeededNoise(7), 2 / 3)).violations


def test_several_iterations_are_judged_together() -> None:
    claim = claim_of(t=3)
    assert claim.epsilon == pytest.approx(8, rel=1e-9)
    assert claim.noise_multiplier == pytest.approx(np.sqrt(3) / claim.mu, rel=1e-6)
    assert 0.5 * claim.mu < found(claim).mu < claim.mu
    assert found(claim, Scaled(UnsafeSeededNoise(7), 2 / 3)).violations


def test_larger_noise_is_no_violation() -> None:
    assert found(claim_of(), Scaled(UnsafeSeededNoise(7), 1.5)).violations == []


def test_a_replace_one_release_that_declares_sensitivity_1_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    def declared(*arguments: object) -> object:
        return replace(pe.histogram.histogram_release(*arguments), sensitivity=1.0)

    monkeypatch.setattr(audit_worlds, "histogram_release", declared)
    result = found(claim_of(Relation.REPLACE_ONE))
    assert result.influence == pytest.approx(np.sqrt(2))
    assert result.mu > result.claim.mu
    assert "1.414 times the declared sensitivity" in result.verdict


def test_votes_normalised_per_label_are_flagged_by_their_outcomes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault of the authors' library: here in the mechanism, but not in what the audit knows of the canary."""

    def per_label(private, vectors, labels, *rest):  # type: ignore[no-untyped-def]
        parts = [private.labels == label for label in range(2)]
        kept = (
            replace(private, vectors=private.vectors[part], labels=private.labels[part], units=private.units[part])
            for part in parts
        )
        return sum(count_votes(part, vectors, labels, *rest) for part in kept)

    monkeypatch.setattr(pe.histogram, "count_votes", per_label)
    result = found(claim_of(unit="user"))
    assert result.influence <= 1
    assert result.mu > result.claim.mu


@pytest.mark.parametrize("votes", [2, 1.5])
def test_a_vote_that_counts_more_than_once_is_flagged(monkeypatch: pytest.MonkeyPatch, votes: float) -> None:
    def more(*arguments: object) -> np.ndarray:
        return (votes * count_votes(*arguments)).astype(np.int64)  # type: ignore[arg-type]

    monkeypatch.setattr(pe.histogram, "count_votes", more)
    assert found(claim_of()).mu > claim_of().mu


def test_noise_that_comes_twice_is_flagged() -> None:
    class Seeded(UnsafeSeededNoise):
        """The fault of a public code: the noise has a fixed seed in every call."""

        def discrete_gaussian(self, shape: int | tuple[int, ...], scale: float) -> np.ndarray:
            return UnsafeSeededNoise(0).discrete_gaussian(shape, scale)

    result = found(claim_of(), Seeded(0), runs=1000)
    assert result.repeated == 2000 - BLOCKS
    assert "blocks of noise came more than once" in result.verdict


def test_no_noise_at_all_is_flagged_without_any_assumption() -> None:
    class Silent(UnsafeSeededNoise):
        def discrete_gaussian(self, shape: int | tuple[int, ...], scale: float) -> np.ndarray:
            return np.zeros(shape, np.int64)

    result = found(claim_of(), Silent(0), runs=200)
    assert result.epsilon_any > 1
    assert result.mu > 2 * result.claim.mu
    assert result.repeated == 399


def test_no_canary_reaches_another_block() -> None:
    """What makes the trials of one call neighbouring pairs, each by itself."""
    for relation, neighbors, unit in [*KINDS, (Relation.REPLACE_ONE, 50, "user")]:
        claim = Claim(1.0, 1e-5, 1, relation, unit, neighbors)
        present = np.random.default_rng(0).random(BLOCKS if neighbors < 50 else 30) < 0.5
        together = count_votes(
            records(claim, present), *candidates(claim, len(present)), claim.releases[0].grid, Voting(neighbors)
        )
        with_canary, without = clean_votes(claim)
        expected = np.where(present[:, None], with_canary, without)
        np.testing.assert_array_equal(together.reshape(expected.shape), expected)
        assert influence(claim) == pytest.approx(1, abs=2e-4)


def test_bounds_are_those_of_clopper_and_pearson() -> None:
    for hits, runs in ((0, 50), (3, 50), (50, 50), (1234, 20_000)):
        interval = binomtest(hits, runs).proportion_ci(0.98, method="exact")
        assert lower(hits, runs, 0.01) == pytest.approx(interval.low, abs=1e-12)
        assert upper(hits, runs, 0.01) == pytest.approx(interval.high, abs=1e-12)


@pytest.mark.parametrize("mu", [0.05, 0.268, 2.0, 6.0])
def test_a_right_mechanism_is_flagged_no_more_often_than_the_confidence_allows(mu: float) -> None:
    """Counts drawn from the claimed mechanism itself, at a confidence of 50 % so that errors would show."""
    rng, runs, delta = np.random.default_rng(1), 5000, 1e-5
    epsilon = gaussian_epsilon(mu, delta)
    tail = tail_threshold(mu, delta, runs, 0.5 / 8)
    alarms = 0
    for _ in range(500):
        middle, high, low = (
            Rates.of(*(int(rng.binomial(runs, ndtr(side * mu / 2 - at))) for side in (1, -1)), runs, error)
            for at, error in ((0.0, 0.5 / 4), (tail, 0.5 / 8), (-tail, 0.5 / 8))
        )
        alarms += middle.mu > mu or high.epsilon(delta) > epsilon or low.mirrored.epsilon(delta) > epsilon
    assert alarms < 0.5 * 500


def test_how_much_it_can_see_is_stated_as_it_is() -> None:
    """At ε = 1, 99.9 %: 10,000 runs flag ⅔σ nearly always, the likelihood ratio needs about a million."""
    mu = claim_of().within(1.0).mu
    assert chance_to_flag(mu, 1.5 * mu, 10_000, 0.001 / 4) > 0.98
    assert chance_to_flag(mu, 1.5 * mu, 1_000, 0.001 / 4) < 0.05
    assert chance_to_flag(mu, mu, 10_000, 0.001 / 4) == 0
    needed = runs_to_flag(1.5 * mu, 1.0, 1e-5, 0.001 / 8)
    assert 500_000 < needed < 2_000_000
    rng, error = np.random.default_rng(0), 0.001 / 8
    threshold = tail_threshold(1.5 * mu, 1e-5, int(needed), error)
    tpr, fpr = ndtr(0.75 * mu - threshold), ndtr(-0.75 * mu - threshold)
    hits, alarms = (rng.binomial(int(needed), rate, 200) for rate in (tpr, fpr))
    flags = [Rates.of(int(k), int(f), int(needed), error).epsilon(1e-5) > 1 for k, f in zip(hits, alarms, strict=True)]
    assert np.mean(flags) > 0.9


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"iterations": 0}, "1 iteration or more"),
        ({"neighbors": 51}, "1 to 50 neighbors"),
        ({"delta": 0.0}, "delta lies strictly between"),
        ({"runs": 99}, "100 runs a world or more"),
        ({"confidence": 1.0}, "strictly between 0 and 1"),
        ({"noise_multiplier": 0.0}, "above 0"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, float], sentence: str) -> None:
    settings = {"noise_multiplier": 1.0, "delta": 1e-5, "runs": 100, "confidence": 0.9} | change
    with pytest.raises(PrivacyError, match=sentence):
        audit(runs=settings.pop("runs"), confidence=settings.pop("confidence"), claim=Claim(**settings))  # type: ignore[arg-type]
