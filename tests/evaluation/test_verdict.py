"""The verdict says that the votes helped only if the test images show it, and else what to
change.
"""

import numpy as np
import pytest

from pe.evaluation import verdict as verdicts
from pe.evaluation.utility import Utility
from pe.evaluation.verdict import HELPED, HURT, NOT_SHOWN, compare_with_controls, verdict

CLASSES = 4
LABELS = np.arange(400, dtype=np.int32) % CLASSES
PROBE = "linear_probe on pixels"


def scored(right):
    """Three seeds that give the same."""
    zeros = np.zeros((CLASSES, CLASSES), np.int64)
    return Utility(100, np.tile(right, (3, 1)), np.ones(3), np.ones(3), zeros)


def results(classifier=PROBE, **rates):
    """Each set is right on the same first share of the test images, in the order of a fixed
    shuffle.
    """
    order = np.random.default_rng(0).permutation(len(LABELS))
    return {classifier: {name: scored(order < rate * len(LABELS)) for name, rate in rates.items()}}


def judged(**rates):
    return verdict(results(**rates), {}, LABELS)


@pytest.mark.parametrize(
    ("unevolved", "random_selection", "outcome"),
    [
        (0.4, 0.45, HELPED),
        (0.4, 0.6, NOT_SHOWN),
        (0.59, 0.4, NOT_SHOWN),
        (0.4, 0.8, HURT),
        (0.8, 0.4, HURT),
    ],
)
def test_it_takes_both_controls_to_help_and_one_to_hurt(unevolved, random_selection, outcome):
    found = judged(synthetic=0.6, unevolved=unevolved, random_selection=random_selection)
    assert found.outcome == outcome
    assert found.differences["unevolved"].difference == pytest.approx(0.6 - unevolved)
    assert found.differences["chance"].accuracy == 0.25
    assert "chance" not in found.sentence
    assert ("The votes helped" in found.sentence) == (outcome == HELPED)


@pytest.mark.parametrize(
    ("one_vote", "outcome", "words"),
    [
        (0.4, HELPED, "Evolving beat one vote: +20.0 points"),
        (0.59, NOT_SHOWN, "The evaluation does not show that evolving beat one vote: +1.0 points"),
        (0.8, HURT, "One vote beat evolving: -20.0 points"),
    ],
)
def test_it_says_apart_whether_evolving_beat_one_vote(one_vote, outcome, words):
    found = judged(synthetic=0.6, unevolved=0.4, one_vote=one_vote)
    assert (found.outcome, found.evolving) == (
        HELPED,
        outcome,
    )  # one vote is a vote: it tells nothing of votes at all
    assert words in found.sentence
    assert found.sentence.endswith(" against as much data chosen by one vote and not varied.")


def test_the_sentence_says_what_is_no_better_than_chance_and_without_a_control_there_is_none():
    assert judged(synthetic=0.26, unevolved=0.1).sentence.endswith(
        "un-evolved samples, which is no better than chance."
    )
    assert judged(synthetic=0.6, real=0.9, one_vote=0.1) is None


def test_the_linear_probe_judges_and_without_it_the_classifier_that_held_out_parts_chose():
    good, bad = {"synthetic": 0.9, "unevolved": 0.2}, {"synthetic": 0.2, "unevolved": 0.9}
    both = results("mlp", **good) | results(PROBE, **bad) | results("linear_probe on other", **good)
    without = results("mlp", **good) | results("wrn", **bad)
    for given, judge, outcome in ((both, PROBE, HURT), (without, "mlp", HELPED)):
        found = verdict(given, {"synthetic": "mlp"}, LABELS)
        assert (found.classifier, found.outcome) == (judge, outcome)


def recalls(*shares):
    """Right on the first `shares[c]` of the hundred test images of class c."""
    place = np.arange(len(LABELS)) // CLASSES
    return scored(place < 100 * np.array(shares)[LABELS])


def test_a_class_is_lost_if_its_recall_falls_below_half_of_a_control_or_the_records():
    names = ["ant", "bee", "cat", "dog"]
    by_set = {
        "synthetic": recalls(0.02, 0.9, 0.3, 0.04),
        "unevolved": recalls(0.5, 0.5, 0.5, 0.06),
        "real": recalls(0.9, 0.9, 0.55, 0.08),
    }
    # cat has more than half, and of dog four images are not enough to tell
    lost = verdicts.find_lost_classes(by_set, LABELS, "images", names)
    assert lost.keys() == {"ant"}
    assert lost["ant"] == (
        "The class 'ant' collapsed: 2.0 % of its 100 test images are labelled rightly, against "
        "50.0 % after un-evolved samples and 90.0 % after the private records."
    )
    by_set["synthetic"] = recalls(0.02, 0.03, 0.01, 0)
    by_set["real"] = recalls(1, 1, 1, 1)
    *named, rest = verdicts.first_named(
        [*verdicts.find_lost_classes(by_set, LABELS, "images", names).values()]
    )
    assert [sentence.split("'")[1] for sentence in named] == ["dog", "cat", "ant"]
    assert len(named) == verdicts.NAMED
    assert rest == "So did 1 more class."
    assert (
        verdicts.find_lost_classes({"synthetic": recalls(0, 0, 0, 0)}, LABELS, "images", names)
        == {}
    )


@pytest.mark.parametrize(
    ("images", "seeds", "spread"), [(20, 1, 0.0), (200, 3, 0.0), (1000, 3, 0.03)]
)
def test_the_interval_holds_the_true_difference_as_often_as_it_says(images, seeds, spread):
    """Images that are hard for both, one set better by 10 points, and luck of every training."""
    rng = np.random.default_rng(images + seeds)
    held, repetitions = 0, 1000
    for _ in range(repetitions):
        hard = rng.beta(2, 2, images) * 0.8
        luck = rng.normal(0, spread, (seeds, 1))
        found = compare_with_controls(
            rng.random((seeds, images)) < hard + 0.1 + luck, rng.random((seeds, images)) < hard
        )
        held += found.low <= 0.1 <= found.high
    assert 0.93 < held / repetitions < 0.995
