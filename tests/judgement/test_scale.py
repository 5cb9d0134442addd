"""The scale: its measures are those of their definitions, its ends are constant, and the test
records choose no learner that they score.
"""

import math

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from pe.judgement.scale import (
    BEST,
    MOST_BETWEEN_RUNS,
    Scale,
    area,
    between_runs,
    gain,
    mean_recall,
    measure_for,
)


def drawn(classes: int, count: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and logits that tell something of them, with ties."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count).astype(np.int32)
    logits = rng.normal(size=(count, classes))
    logits[np.arange(count), labels] += 0.7
    return labels, np.round(logits, 1)


def sure(labels: np.ndarray, classes: int) -> np.ndarray:
    return np.eye(classes)[labels] * 5


def test_the_area_is_that_of_the_roc_curve_of_each_draw():
    labels, logits = drawn(2)
    odds = logits[:, 1] - logits[:, 0]
    assert len(np.unique(odds)) < len(odds) / 2
    weights = np.random.default_rng(1).multinomial(300, np.full(300, 1 / 300), size=3)
    whole, *each = area(logits, labels, np.concatenate([np.ones((1, 300)), weights]))
    assert whole == pytest.approx(roc_auc_score(labels, odds))
    for found, counts in zip(each, weights, strict=True):
        again = np.repeat(np.arange(300), counts)
        assert found == pytest.approx(roc_auc_score(labels[again], odds[again]))


@pytest.mark.parametrize("classes", [3, 10])
def test_the_mean_recall_is_that_of_the_classes_of_each_draw(classes):
    labels, logits = drawn(classes)
    weights = np.random.default_rng(1).multinomial(300, np.full(300, 1 / 300), size=3)
    for found, counts in zip(mean_recall(logits, labels, weights), weights, strict=True):
        again = np.repeat(np.arange(300), counts)
        guessed = logits.argmax(axis=1)[again]
        assert found == pytest.approx(balanced_accuracy_score(labels[again], guessed))


def test_a_class_that_a_draw_lacks_counts_neither_as_right_nor_as_wrong():
    labels = np.array([0, 0, 1, 2], np.int32)
    weights = np.array([[1.0, 1, 1, 0], [1, 1, 1, 1]])
    np.testing.assert_allclose(mean_recall(sure(labels, 4), labels, weights), 1)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_whoever_guesses_the_same_for_all_is_at_the_floor(classes):
    labels, _ = drawn(classes)
    measure = measure_for(classes)
    constant = np.tile(np.arange(classes, dtype=float), (300, 1))
    assert measure.of(constant, labels, np.ones((1, 300))) == pytest.approx(measure.floor)


@pytest.mark.parametrize("classes", [2, 5])
def test_the_ends_are_a_guess_and_the_private_records(classes):
    labels, logits = drawn(classes)
    scale = Scale.of(classes, labels, {"a": [logits]}, 0)
    top, scores = scale.place({"a": [logits]})
    assert (top.score, top.low, top.high) == (BEST, BEST, BEST)
    assert (scores == BEST).all()
    assert scale.place({"a": [np.zeros_like(logits)]})[0].score == pytest.approx(0, abs=1e-9)
    wrong = scale.place({"a": [-logits]})[0]
    assert (wrong.score, wrong.low) == (0, 0)
    assert scale.place({"a": [sure(labels, classes)]})[0].score == BEST  # no better than best


def test_a_learner_is_chosen_on_one_half_of_the_test_records_and_scored_on_the_other():
    labels, logits = drawn(5)
    scale = Scale.of(5, labels, {"a": [logits]}, 0)
    right, wrong = sure(labels, 5), sure((labels + 1) % 5, 5)
    halves = {
        f"right on half {half}": [np.where((scale.halves == half)[:, None], right, wrong)]
        for half in (0, 1)
    }
    place, _ = scale.place(halves)
    assert place.value == 0  # each is chosen where it is right, and scored where it is wrong
    assert place.learner == "right on half 1 and right on half 0"
    counts = [np.bincount(labels[scale.halves == half]) for half in (0, 1)]
    assert np.abs(counts[0] - counts[1]).max() <= 1


def test_many_learners_that_guess_do_not_make_a_set_look_better():
    rng = np.random.default_rng(0)
    labels, logits = drawn(2, 200)
    scale = Scale.of(2, labels, {"a": [logits]}, 0)
    values, best = [], []
    for _ in range(40):
        guesses = {str(i): [rng.normal(size=(200, 2))] for i in range(30)}
        values.append(scale.values(guesses)[0][0])
        best.append(max(area(one, labels, np.ones((1, 200)))[0] for (one,) in guesses.values()))
    assert np.mean(best) > 0.57
    assert np.mean(values) == pytest.approx(0.5, abs=0.02)


def test_what_other_runs_would_differ_by_widens_the_interval_alone():
    labels, logits = drawn(2)
    scale = Scale.of(2, labels, {"a": [sure(labels, 2)]}, 0)
    alone, wide = (scale.place({"a": [logits]}, spread)[0] for spread in (0.0, 0.1))
    assert (alone.value, alone.score) == (wide.value, wide.score)
    assert wide.high - wide.low > 1.5 * (alone.high - alone.low)


def test_a_gain_is_between_sets_on_the_same_test_records():
    labels, logits = drawn(2)
    scale = Scale.of(2, labels, {"a": [sure(labels, 2)]}, 0)
    _, ours = scale.place({"a": [logits]})
    noisy = logits + np.random.default_rng(1).normal(size=logits.shape) * 0.3
    place, others = scale.place({"a": [noisy]})
    found = gain(ours, others)
    assert found.score == pytest.approx(ours[0] - others[0])
    assert found.low < found.score < found.high
    # Both are tested on the same records, whose luck is not the gain's.
    assert found.high - found.low < place.high - place.low
    nothing = gain(ours, ours)
    assert (nothing.score, nothing.low, nothing.high) == (0, 0, 0)


def test_runs_of_one_recipe_differ_less_with_more_votes_and_not_at_all_without_noise_or_votes():
    spreads = [between_runs(records, 10, 1.0) for records in (10, 1000, 10_000, 10**6)]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[0] == MOST_BETWEEN_RUNS / 10
    assert 0 < spreads[-1] < 0.001
    assert between_runs(1000, 10, 1.0) > between_runs(1000, 10, 4.0) > between_runs(1000, 2, 4.0)
    assert between_runs(1000, 10, math.inf) == between_runs(1000, 10, 0.0) == 0
