"""The verdict says that the votes helped only if the test images show it, and else what to change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pe.data.images import Images
from pe.data.population import NO_PARENT, Population
from pe.data.samples import Conditions
from pe.evaluation.utility import Utility
from pe.evaluation.verdict import (
    HELPED,
    HURT,
    MOST,
    NAMED,
    NOT_SHOWN,
    collapsed,
    compare,
    first_named,
    remedies,
    verdict,
)
from pe.planning.layout import lay_out
from pe.recipe.schema import Recipe
from tests.generators import Shades

CLASSES = 4
LABELS = np.arange(400, dtype=np.int32) % CLASSES
PROBE = "linear_probe on pixels"


def results(classifier: str = PROBE, **rates: float) -> dict[str, dict[str, Utility]]:
    """Three seeds, each right on the same first share of the test images, in the order of a fixed shuffle."""
    order = np.random.default_rng(0).permutation(len(LABELS))
    zeros = np.zeros((CLASSES, CLASSES), np.int64)
    sets = {name: np.tile(order < rate * len(LABELS), (3, 1)) for name, rate in rates.items()}
    return {classifier: {name: Utility(100, right, np.ones(3), np.ones(3), zeros) for name, right in sets.items()}}


@pytest.mark.parametrize(
    ("unevolved", "random_selection", "outcome"),
    [(0.4, 0.45, HELPED), (0.4, 0.6, NOT_SHOWN), (0.59, 0.4, NOT_SHOWN), (0.4, 0.8, HURT), (0.8, 0.4, HURT)],
)
def test_it_takes_both_controls_to_help_and_one_to_hurt(
    unevolved: float, random_selection: float, outcome: str
) -> None:
    found = verdict(
        results(synthetic=0.6, unevolved=unevolved, random_selection=random_selection), {}, LABELS, "images"
    )
    assert found is not None
    assert found.outcome == outcome
    assert found.differences["unevolved"].difference == pytest.approx(0.6 - unevolved)
    assert found.differences["chance"].accuracy == 0.25
    assert found.sentence.endswith("; always saying the largest class gives 25.0 %.")
    assert ("The votes helped" in found.sentence) == (outcome == HELPED)


@pytest.mark.parametrize(
    ("one_vote", "outcome", "words"),
    [
        (0.4, HELPED, "Evolving beat one vote: +20.0 points"),
        (0.59, NOT_SHOWN, "The evaluation does not show that evolving beat one vote: +1.0 points"),
        (0.8, HURT, "One vote beat evolving: -20.0 points"),
    ],
)
def test_it_says_apart_whether_evolving_beat_one_vote(one_vote: float, outcome: str, words: str) -> None:
    sets = {"synthetic": 0.6, "unevolved": 0.4, "one_vote": one_vote}
    found = verdict(results(**sets), {}, LABELS, "images")
    assert found is not None
    assert (found.outcome, found.evolving) == (HELPED, outcome)  # one vote is a vote: it tells nothing of votes at all
    assert words in found.sentence
    assert found.sentence.endswith(" against as much data chosen by one vote and not varied.")
    alone = verdict(results(synthetic=0.6, one_vote=one_vote), {}, LABELS, "images")
    assert alone is None


def test_the_sentence_says_what_it_lacks() -> None:
    found = verdict(results(synthetic=0.26, unevolved=0.1), {}, LABELS, "images")
    assert found is not None
    assert "there is no control by random selection to compare with" in found.sentence
    assert found.sentence.endswith("that is no better than chance: always saying the largest class gives 25.0 %.")
    assert verdict(results(synthetic=0.6, real=0.9), {}, LABELS, "images") is None


def test_the_linear_probe_judges_and_without_it_the_classifier_that_held_out_parts_chose() -> None:
    good, bad = {"synthetic": 0.9, "unevolved": 0.2}, {"synthetic": 0.2, "unevolved": 0.9}
    both = results("mlp", **good) | results(PROBE, **bad) | results("linear_probe on other", **good)
    judged = verdict(both, {"synthetic": "mlp"}, LABELS, "images")
    assert judged is not None
    assert (judged.classifier, judged.outcome) == (PROBE, HURT)
    without = verdict(results("mlp", **good) | results("wrn", **bad), {"synthetic": "mlp"}, LABELS, "images")
    assert without is not None
    assert (without.classifier, without.outcome) == ("mlp", HELPED)


@pytest.mark.parametrize(
    ("lost", "headline"), [(0, ":"), (1, " over all classes, but 1 class collapsed:"), (5, " over all classes, but 5 ")]
)
def test_a_headline_of_success_names_the_classes_that_collapsed(lost: int, headline: str) -> None:
    helped = verdict(results(synthetic=0.9, unevolved=0.2), {}, LABELS, "images")
    hurt = verdict(results(synthetic=0.2, unevolved=0.9), {}, LABELS, "images")
    assert helped is not None
    assert hurt is not None
    assert replace(helped, collapsed=lost).sentence.startswith(f"The votes helped{headline}")
    assert replace(hurt, collapsed=lost).sentence == hurt.sentence


def recalls(*shares: float) -> Utility:
    """Three seeds, right on the first `shares[c]` of the hundred test images of class c."""
    right = np.zeros(len(LABELS), bool)
    for label, share in enumerate(shares):
        right[np.flatnonzero(label == LABELS)[: round(100 * share)]] = True
    return Utility(100, np.tile(right, (3, 1)), np.ones(3), np.ones(3), np.zeros((CLASSES, CLASSES), np.int64))


def test_a_class_is_lost_if_its_recall_falls_below_half_of_a_control_or_the_records() -> None:
    names = ["ant", "bee", "cat", "dog"]
    by_set = {
        "synthetic": recalls(0.02, 0.9, 0.3, 0.04),
        "unevolved": recalls(0.5, 0.5, 0.5, 0.06),
        "real": recalls(0.9, 0.9, 0.55, 0.08),
    }
    (ant,) = collapsed(
        by_set, LABELS, "images", names
    )  # cat has more than half, and of dog four images are not enough to tell
    assert ant == (
        "The class 'ant' collapsed: 2.0 % of its 100 test images are labelled rightly, against 50.0 % after un-evolved "
        "samples and 90.0 % after the private records."
    )
    by_set["synthetic"] = recalls(0.02, 0.03, 0.01, 0)
    by_set["real"] = recalls(1, 1, 1, 1)
    *named, rest = first_named(collapsed(by_set, LABELS, "images", names))
    assert [sentence.split("'")[1] for sentence in named] == ["dog", "cat", "ant"]
    assert len(named) == NAMED
    assert rest == "So did 1 more class."
    assert collapsed({"synthetic": recalls(0, 0, 0, 0)}, LABELS, "images", names) == []


@pytest.mark.parametrize(("images", "seeds", "spread"), [(20, 1, 0.0), (300, 1, 0.0), (200, 3, 0.0), (2000, 3, 0.03)])
def test_the_interval_holds_the_true_difference_as_often_as_it_says(images: int, seeds: int, spread: float) -> None:
    """Images that are hard for both, one set better by 10 points, and luck of every training."""
    rng = np.random.default_rng(images + seeds)
    held, repetitions = 0, 1500
    for _ in range(repetitions):
        hard = rng.beta(2, 2, images) * 0.8
        luck = rng.normal(0, spread, (seeds, 1))
        ours = rng.random((seeds, images)) < hard + 0.1 + luck
        others = rng.random((seeds, images)) < hard
        found = compare(ours, others)
        held += found.low <= 0.1 <= found.high
    assert 0.93 < held / repetitions < 0.995


def test_equal_predictions_on_few_images_are_no_proof_of_equality() -> None:
    found = compare(np.ones((1, 10), bool), np.ones((1, 10), bool))
    assert found.difference == 0
    assert found.low < -0.1
    assert found.high > 0.1


def recipe(**changes: object) -> Recipe:
    content = {
        "private": {"kind": "npz", "path": "p.npz", "size": 8, "classes": ["a", "b"], "declared_size": 100_000},
        "api": {"kind": "public_images", "path": "pool"},
        "embedding": {"kind": "inception"},
        "privacy": {"epsilon": 4.0, "delta": 1e-6},
        "evolution": {"iterations": 2, "population": 40, "degree": [0.5, 0.4], "lookahead": 0},
    }
    for place, value in changes.items():
        section, key = place.split("__")
        content[section] = {k: v for k, v in (content[section] | {key: value}).items() if v is not None}
    return Recipe.parse(content, "recipe")


def advice(test_images: int = 5000, finest: float = 0.4, **changes: object) -> list[str]:
    read = recipe(**changes)
    size = read.evolution.population
    assert isinstance(size, int)
    blank = Images(np.zeros((size, 8, 8, 3), np.uint8))
    labels = np.arange(size, dtype=np.int32) % 2
    populations = [Population(blank, labels, Conditions(), np.full(size, NO_PARENT))] * 3
    api = Shades()
    api.info = replace(api.info, degrees=(finest,))
    return remedies(read, lay_out(read), populations, api, test_images)


def test_remedies_come_from_public_numbers_the_most_probable_first() -> None:
    (nothing,) = advice()
    assert nothing.startswith("No public number explains it")
    (noise,) = advice(private__declared_size=20)
    assert noise.startswith("The population is too large for the private set")
    (colour,) = advice(embedding__kind="pixels")
    assert "The votes compared pixels" in colour
    assert advice(embedding__kind="pixels", private__channels=1) == [nothing]
    for degree, finest in ((0.0, 0.0), (0.3, 0.0), (0.0, 0.4)):
        assert advice(evolution__degree=degree, finest=finest) == [nothing]
    (wide,) = advice(evolution__degree=0.9)
    assert "their degree is 0.9, and this generator's own finest is 0.4" in wide
    (unknown,) = advice(private__declared_size=None)
    assert "state private.declared_size" in unknown
    (few,) = advice(200)
    assert "The test set has 200 images" in few
    everything = advice(200, private__declared_size=20, embedding__kind="pixels", evolution__degree=0.9)
    assert everything == [advice(private__declared_size=20, evolution__degree=0.9)[0], colour, wide]
    assert len(everything) == MOST
