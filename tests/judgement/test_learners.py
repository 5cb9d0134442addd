"""Learners train on one set and are tested on another; all take soft labels."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_info, threadpool_limits

from pe.judgement import learners, network
from pe.judgement.learners import Learner, Lesson, guesses, panel
from pe.progress import Progress

WORDS = (["ship", "wave", "tide"], ["cloud", "wing", "star"], ["root", "leaf", "moss"])


def lesson(count: int, seed: int, classes: int = 3, side: int = 8) -> Lesson:
    """Class c is bright in its own third of the rows, and has words and codes of its own."""
    rng = np.random.default_rng(seed)
    labels = (np.arange(count) % classes).astype(np.int32)
    pixels = rng.integers(0, 90, (count, side, side, 1))
    for c in range(classes):
        pixels[labels == c, c * side // classes : (c + 1) * side // classes] += 120
    flat = pixels.reshape(count, -1) / np.float32(255)
    texts = [" ".join(rng.choice([*WORDS[label], "the", "a"], 8)) for label in labels]
    codes = np.stack([3 * labels + rng.integers(0, 3, count), rng.integers(0, 9, count)], axis=1)
    views = {
        "vectors": flat,
        "flat": flat,
        "pixels": pixels.astype(np.uint8),
        "strings": np.array(texts, dtype=object),
        "cells": np.eye(9, dtype=np.float32)[codes].reshape(count, -1),
        "codes": codes.astype(np.float32),
    }
    return Lesson(views, labels)


def taken(whole: Lesson, rows: np.ndarray, soft: np.ndarray | None = None) -> Lesson:
    views = {name: view[rows] for name, view in whole.views.items()}
    return Lesson(views, whole.labels[rows], soft)


def every() -> list[Learner]:
    found = [one for modality in ("images", "texts", "table") for one in panel(modality)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learners, "find_spec", lambda _: None)
        found += panel("images")  # without torch
    return [*{(one.name, one.view): one for one in found}.values()]


EVERY = pytest.mark.parametrize("learner", every(), ids=lambda one: f"{one.name}, {one.view}")


def test_each_modality_has_learners_of_its_own_and_any_other_the_linear_ones():
    assert {one.view for one in panel("images")} == {"vectors", "pixels"}
    assert {one.view for one in panel("texts")} == {"vectors", "strings"}
    assert {one.view for one in panel("table")} == {"cells", "codes"}
    assert {one.view for one in panel("somebody's")} == {"vectors"}
    assert "perceptron" in {one.name for one in every()}


@EVERY
def test_a_learner_learns_what_can_be_learned_and_never_a_class_that_training_lacks(learner):
    training, test = lesson(150, 0), lesson(90, 1)
    logits = learner.guess(training, test.views, 3, 0)
    assert logits.shape == (90, 3)
    assert (logits.argmax(axis=1) == test.labels).mean() > 0.9
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(np.exp(logits).sum(axis=1), 1, atol=1e-3)
    without = taken(training, np.flatnonzero(training.labels != 1))
    assert not (learner.guess(without, test.views, 3, 0).argmax(axis=1) == 1).any()


@EVERY
def test_a_learner_learns_from_soft_labels_of_which_the_most_probable_tells_nothing(learner):
    training, test = lesson(240, 0, 2), lesson(90, 1, 2)
    likely = np.where(training.labels == 1, 0.45, 0.05)
    soft = np.stack([1 - likely, likely], axis=1)
    blank = Lesson(training.views, np.zeros(240, np.int32), soft)
    logits = learner.guess(blank, test.views, 2, 0)
    first, second = (np.exp(logits[test.labels == label, 1]) for label in (0, 1))
    assert np.mean(first[:, None] < second) > 0.9
    assert first.mean() < 0.3 < second.mean() < 0.6


@EVERY
def test_a_training_is_repeatable_and_leaves_torch_s_own_randomness_alone(learner):
    training, test = lesson(45, 0), lesson(30, 1)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = learner.guess(training, test.views, 3, 7)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    np.testing.assert_array_equal(learner.guess(training, test.views, 3, 7), first)


def test_networks_of_two_seeds_differ():
    training, test = lesson(45, 0), lesson(30, 1)
    (learner,) = (one for one in panel("images") if one.name == "network")
    one, other = (learner.guess(training, test.views, 3, seed) for seed in (7, 8))
    assert not np.array_equal(one, other)


def test_trainings_side_by_side_give_what_they_give_one_after_the_other(monkeypatch):
    monkeypatch.setattr(network, "_PASSES", 1)  # so that they begin at once more often
    lessons, test = {"synthetic": lesson(60, 0), "real": lesson(45, 2)}, lesson(30, 1)
    own = [one for one in panel("images") if one.name in ("linear, C = 1", "network")]
    seeds = range(4)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    for _ in range(5):
        found = guesses(own, lessons, test.views, 3, seeds, Progress())
        for name, each in lessons.items():
            for learner in own:
                tried = seeds if learner.is_random else seeds[:1]
                for seed, logits in zip(tried, found[name][learner.name], strict=True):
                    alone = learner.guess(each, test.views, 3, seed) - each.log_shares(3)
                    np.testing.assert_array_equal(logits, alone)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_class_that_is_only_rarer_is_not_lost_and_one_that_is_lacking_is():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3, dtype=np.int32), [400, 40, 0])
    middles = np.array([0.0, 1.5, 9.0])

    def seen(of: np.ndarray) -> dict[str, np.ndarray]:
        return {"vectors": rng.normal(middles[of], 1)[:, None]}

    lessons, test = {"a": Lesson(seen(labels), labels)}, np.repeat([0, 1], 500)
    learners = panel("somebody's")
    views = seen(test)
    (found,) = guesses(learners, lessons, views, 3, [0], Progress()).values()
    for learner in learners:
        alone = learner.guess(lessons["a"], views, 3, 0)
        recalls = [
            (logits[test == 1].argmax(axis=1) == 1).mean()
            for logits in (alone, found[learner.name][0])
        ]
        assert recalls[0] < 0.4 < 0.7 < recalls[1]
        assert not (found[learner.name][0].argmax(axis=1) == 2).any()


def test_shares_count_a_sample_for_each_of_its_likely_labels():
    soft = np.array([[0.5, 0.5, 0.0], [0.99, 0.01, 0.0]])
    shares = np.exp(Lesson({}, np.zeros(2, np.int32), soft).log_shares(3))
    # One more of each class; what is unlikely is left out.
    np.testing.assert_allclose(shares, np.array([2.49, 1.5, 1]) / 4.99)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_training_leaves_the_process_s_settings_as_they_were(threads):
    with threadpool_limits(threads, "blas"):
        guesses(panel("other"), {"a": lesson(30, 0)}, lesson(9, 1).views, 3, [0], Progress())
        found = {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}
        assert found == {threads}  # the limit of each training is gone
    assert all(kind is not ConvergenceWarning for _, _, kind, _, _ in warnings.filters)


def test_a_network_is_trained_on_one_thread(monkeypatch):
    """More would wait for each other: layers this small take them three times as long."""
    (learner,) = (one for one in panel("images") if one.name == "network")
    threads = []
    monkeypatch.setattr(network, "guess", lambda *_: threads.append(torch.get_num_threads()))
    with threadpool_limits(2):
        before = torch.get_num_threads()
        learner.guess(lesson(9, 0), lesson(9, 1).views, 3, 0)
        assert (before, threads, torch.get_num_threads()) == (2, [1], 2)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (1, 40), (7, 9)])
def test_the_network_takes_images_of_any_size(shape):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, *shape, 3)).astype(np.uint8)
    targets = np.eye(2, dtype=np.float32)[np.arange(20) % 2]
    assert network.guess(images, targets, images[:5], 0).shape == (5, 2)
