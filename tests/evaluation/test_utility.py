"""Classifiers train on one set and are judged on another, which chooses nothing."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from pe.data.images import Images
from pe.data.samples import SOFT_LABEL, Conditions
from pe.evaluation.classifiers import STRENGTHS, Classifier, at_once, fit_linear_probe
from pe.evaluation.labelled import Labelled, NetworkSettings, hold_out, label_samples
from pe.evaluation.utility import ClassifierTrial, Utility, choose_classifiers, utility
from pe.progress import Progress

NAMES = ("logistic_regression", "mlp")


def stripes(count, seed, classes=3, side=8):
    """Class c is bright in its own third of the rows."""
    rng = np.random.default_rng(seed)
    labels = (np.arange(count) % classes).astype(np.int32)
    pixels = rng.integers(0, 90, (count, side, side, 1))
    for c in range(classes):
        pixels[labels == c, c * side // classes : (c + 1) * side // classes] += 120
    return Labelled(Images(pixels.astype(np.uint8)), labels)


def named(name, epochs=2):
    return Classifier(name, NetworkSettings(epochs, device="cpu"))


@pytest.mark.parametrize("name", [*NAMES, pytest.param("resnet9", marks=pytest.mark.slow)])
def test_a_classifier_learns_what_can_be_learned_and_never_a_class_that_training_lacks(name):
    training = stripes(150, 0)
    sets = {"synthetic": training}
    if name != "resnet9":
        sets["without"] = training.take(np.flatnonzero(training.labels != 1))
    found = utility(
        [ClassifierTrial(name, named(name, 3), sets, stripes(90, 1))], 3, [0], Progress()
    )[name]
    assert found["synthetic"].accuracy.mean() > 0.9
    assert found["synthetic"].validation.mean() > 0.9
    assert found["synthetic"].images == 150
    assert name == "resnet9" or found["without"].confusion[:, 1].sum() == 0


def test_trainings_side_by_side_give_what_they_give_one_after_the_other():
    sets, results = {"synthetic": stripes(120, 0), "real": stripes(90, 2)}, []
    for threads in (1, 2):
        with threadpool_limits(threads, "blas"):
            trials = [ClassifierTrial(name, named(name), sets, stripes(60, 1)) for name in NAMES]
            results.append(utility(trials, 3, [0, 1], Progress()))
            assert at_once(6, 1) == threads  # the limit of each training is gone
    assert all(kind is not ConvergenceWarning for _, _, kind, _, _ in warnings.filters)
    one, other = (
        {
            name: {to: each.to_dict("abc") for to, each in by_set.items()}
            for name, by_set in found.items()
        }
        for found in results
    )
    assert one == other


def test_the_test_set_chooses_nothing():
    """With test labels turned round, everything that was chosen and all that the classifiers say
    stays.
    """
    training, test = {"synthetic": stripes(60, 0)}, stripes(30, 1)
    turned = Labelled(test.images, (test.labels + 1).astype(np.int32) % 3)
    one, other = (
        utility(
            [ClassifierTrial(name, named(name), training, each) for name in NAMES],
            3,
            [0],
            Progress(),
        )
        for each in (test, turned)
    )
    for name, by_set in one.items():
        np.testing.assert_array_equal(
            by_set["synthetic"].validation, other[name]["synthetic"].validation
        )
        rows = np.roll(
            by_set["synthetic"].confusion, 1, axis=0
        )  # the same predictions under other true labels
        np.testing.assert_array_equal(rows, other[name]["synthetic"].confusion)

    def scored(right, validation):
        return {
            "real": Utility(
                9, np.full((1, 9), right), np.ones(1), np.array([validation]), np.zeros((3, 3))
            )
        }

    assert choose_classifiers(
        {"by test": scored(True, 0.1), "by validation": scored(False, 0.9)}
    ) == {"real": "by validation"}


@pytest.mark.parametrize("name", ["mlp", "resnet9"])
def test_a_training_is_repeatable_and_leaves_torchs_own_randomness_alone(name):
    rest, held = hold_out(stripes(30, 0), 0.1, 0)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = named(name, 1).fit(rest, held, 3, 7)(rest)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    np.testing.assert_array_equal(named(name, 1).fit(rest, held, 3, 7)(rest), first)
    assert not np.array_equal(named(name, 1).fit(rest, held, 3, 8)(rest), first)


def test_a_part_is_held_out_of_every_class():
    whole = stripes(100, 0)
    rest, held = hold_out(whole, 0.1, 3)
    assert np.bincount(held.labels).tolist() == [3, 3, 3]
    images = [image.tobytes() for part in (rest, held) for image in part.images.pixels]
    assert sorted(images) == sorted(image.tobytes() for image in whole.images.pixels)
    single = hold_out(stripes(4, 0), 0.1, 3)  # classes of two, one and one
    assert [np.bincount(part.labels, minlength=3).tolist() for part in single] == [
        [1, 1, 1],
        [1, 0, 0],
    ]


def test_copies_stay_together_and_so_the_penalty_is_strong_where_many_copies_have_wrong_labels():
    """Pixels give the class, but a third of the different images have another label; each comes
    eight times.
    """
    rng = np.random.default_rng(0)
    truth = (np.arange(60) % 2).astype(np.int32)
    labels = np.where(rng.random(60) < 0.3, 1 - truth, truth).astype(np.int32)
    pixels = rng.integers(0, 200, (60, 8, 8, 1)) + 25 * truth[:, None, None, None]
    vectors = pixels.reshape(60, -1).astype(np.float32)
    whole = Labelled(Images(pixels.astype(np.uint8)), labels, None, vectors).take(
        np.tile(np.arange(60), 8)
    )
    rest, held = hold_out(whole, 0.1, 0)
    assert not {image.tobytes() for image in held.images.pixels} & {
        image.tobytes() for image in rest.images.pixels
    }
    assert fit_linear_probe(rest, held, 2, 0).strength == STRENGTHS[0]
    half = np.arange(len(whole)) < len(whole) // 2  # every image on both sides
    assert (
        fit_linear_probe(
            whole.take(half.nonzero()[0]), whole.take((~half).nonzero()[0]), 2, 0
        ).strength
        == STRENGTHS[-1]
    )


def test_what_a_generator_says_of_its_samples_takes_the_place_of_the_label_asked_for():
    images, asked = Images(np.zeros((3, 4, 4, 1), np.uint8)), np.array([0, 0, 1], np.int32)
    soft = np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], np.float32)
    whole = label_samples(images, asked, Conditions({SOFT_LABEL: soft}))
    assert whole.labels.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(whole.take(np.array([2])).soft, soft[2:])
    assert label_samples(images, asked, Conditions()).labels is asked
