"""Classifiers train on one set and are judged on another, which chooses nothing."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from threading import Barrier
from time import sleep

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from pe.data.images import Images
from pe.data.samples import SOFT_LABEL, Conditions
from pe.errors import Interrupted, RecipeError
from pe.evaluation.classifiers import MEMORY, Classifier, at_once, fit_linear_probe, side_by_side
from pe.evaluation.labelled import Labelled, NetworkSettings, hold_out, label_samples
from pe.evaluation.methods import shrink
from pe.evaluation.training import MovingAverage, _Batches, _loss, resnet9
from pe.evaluation.utility import Trial, accuracy, choose_classifiers, seconds_left, utility
from pe.progress import Progress

EASY = ("logistic_regression", "mlp", "resnet9")


def stripes(count: int, seed: int, classes: int = 3, side: int = 8) -> Labelled:
    """Class c is bright in its own third of the rows."""
    rng = np.random.default_rng(seed)
    labels = (np.arange(count) % classes).astype(np.int32)
    pixels = rng.integers(0, 90, (count, side, side, 1))
    for c in range(classes):
        pixels[labels == c, c * side // classes : (c + 1) * side // classes] += 120
    return Labelled(Images(pixels.astype(np.uint8)), labels)


def named(name: str, epochs: int = 6) -> Classifier:
    return Classifier(name, NetworkSettings(epochs, device="cpu"))


@pytest.mark.parametrize("name", EASY)
def test_a_classifier_learns_what_can_be_learned(name: str) -> None:
    found = utility([named(name, 3)], {"synthetic": stripes(150, 0)}, stripes(90, 1), 3, [0], Progress())
    result = found[name]["synthetic"]
    assert result.accuracy.mean() > 0.9
    assert result.validation.mean() > 0.9
    assert result.images == 150


@pytest.mark.parametrize("name", ["logistic_regression", "mlp", "resnet9"])
def test_labels_that_tell_nothing_give_chance(name: str) -> None:
    training = stripes(300, 0)
    shuffled = Labelled(training.images, np.random.default_rng(5).permutation(training.labels))
    found = utility([named(name, 2)], {"synthetic": shuffled}, stripes(300, 1), 3, [0], Progress())
    assert found[name]["synthetic"].accuracy.mean() < 0.6


def test_trainings_side_by_side_give_what_they_give_one_after_the_other() -> None:
    trials = [named("logistic_regression"), named("mlp")]
    sets = {"synthetic": stripes(120, 0), "real": stripes(90, 2)}
    results = []
    for threads in (1, 2):
        with threadpool_limits(threads, "blas"):
            results.append(utility(trials, sets, stripes(60, 1), 3, [0, 1], Progress()))
            assert at_once(6, 1) == threads  # the limit of each training is gone
    assert all(kind is not ConvergenceWarning for _, _, kind, _, _ in warnings.filters)
    for name, by_set in results[0].items():
        for to, result in by_set.items():
            assert results[1][name][to].to_dict("abc") == result.to_dict("abc")


def test_trainings_go_on_at_the_same_time() -> None:
    both = Barrier(2)
    with side_by_side(lambda _: both.wait(timeout=60), range(2), 2) as results:
        assert sorted(results) == [0, 1]


def test_trainings_side_by_side_are_no_more_than_memory_holds() -> None:
    with threadpool_limits(4, "blas"):
        assert [at_once(9, features) for features in (0, MEMORY // 32, MEMORY // 16, MEMORY)] == [4, 4, 2, 1]
        assert at_once(3, 1) == 3


def test_a_stop_drops_the_trainings_that_have_not_begun() -> None:
    def go_on() -> None:
        with side_by_side(lambda job: begun.append(job) or sleep(0.001), range(200), 2) as results:
            next(results)
            raise Interrupted("stopped")

    begun: list[int] = []
    with pytest.raises(Interrupted):
        go_on()
    assert len(begun) < 200


def test_the_test_set_chooses_nothing() -> None:
    """With test labels turned round, everything that was chosen and all that the classifiers say stays."""
    classifiers = [named(name, 2) for name in ("logistic_regression", "mlp", "resnet9")]
    training, test = {"synthetic": stripes(150, 0)}, stripes(60, 1)
    turned = Labelled(test.images, (test.labels + 1).astype(np.int32) % 3)
    one, other = (utility(classifiers, training, each, 3, [0, 1], Progress()) for each in (test, turned))
    assert choose_classifiers(one) == choose_classifiers(other)
    for name, by_set in one.items():
        np.testing.assert_array_equal(by_set["synthetic"].validation, other[name]["synthetic"].validation)
        rows = np.roll(by_set["synthetic"].confusion, 1, axis=0)  # the same predictions under other true labels
        np.testing.assert_array_equal(rows, other[name]["synthetic"].confusion)


def test_the_chosen_classifier_is_the_best_by_validation_even_if_the_test_set_says_otherwise() -> None:
    class Fixed:
        def __init__(self, name: str, right: bool) -> None:
            self.name, self.shallow, self._right = name, False, right

        def fit(self, train, validation, classes, seed):  # type: ignore[no-untyped-def]
            known = {
                image.tobytes(): label for image, label in zip(validation.images.pixels, validation.labels, strict=True)
            }

            def predict(given: Labelled) -> np.ndarray:
                labels = [known.get(image.tobytes(), -1) for image in given.images.pixels]
                held_out = labels[0] != -1
                says = labels if held_out == self._right else [(label + 1) % classes for label in labels]
                return np.eye(classes)[np.maximum(says, 0)]

            return predict

    found = utility(
        [Fixed("by test", False), Fixed("by validation", True)],
        {"real": stripes(60, 0)},
        stripes(9, 1),
        3,
        [0],
        Progress(),
    )
    assert choose_classifiers(found) == {"real": "by validation"}


def test_several_seeds_give_a_mean_and_a_spread() -> None:
    found = utility([named("mlp")], {"synthetic": stripes(60, 0)}, stripes(30, 1), 3, [0, 1, 2], Progress())
    values = found["mlp"]["synthetic"].to_dict(("a", "b", "c"))
    told = values["accuracy"]
    assert len(told["values"]) == 3
    assert told["mean"] == pytest.approx(np.mean(told["values"]))
    assert told["std"] == pytest.approx(np.std(told["values"], ddof=1))
    assert np.sum(values["confusion"]) == 90
    assert np.trace(values["confusion"]) / 90 == pytest.approx(told["mean"])


def test_one_seed_has_no_spread_and_a_class_without_test_images_no_accuracy() -> None:
    test = stripes(30, 1)
    test = test.take(np.flatnonzero(test.labels != 2))
    found = utility([named("mlp")], {"synthetic": stripes(60, 0)}, test, 3, [0], Progress())
    values = found["mlp"]["synthetic"].to_dict(("a", "b", "c"))
    assert values["accuracy"]["std"] is None
    assert values["per_class"]["c"] is None
    assert values["per_class"]["a"] is not None


@pytest.mark.parametrize("name", ["logistic_regression", "mlp", "resnet9"])
def test_a_class_that_training_lacks_is_never_predicted(name: str) -> None:
    training = stripes(90, 0)
    training = training.take(np.flatnonzero(training.labels != 1))
    found = utility([named(name, 2)], {"synthetic": training}, stripes(30, 1), 3, [0], Progress())
    assert found[name]["synthetic"].confusion[:, 1].sum() <= (2 if name == "resnet9" else 0)


@pytest.mark.parametrize("name", ["mlp", "resnet9"])
def test_a_training_is_repeatable_and_leaves_torchs_own_randomness_alone(name: str) -> None:
    rest, held = hold_out(stripes(60, 0), 0.1, 0)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = named(name, 2).fit(rest, held, 3, 7)(rest)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    np.testing.assert_array_equal(named(name, 2).fit(rest, held, 3, 7)(rest), first)
    assert not np.array_equal(named(name, 2).fit(rest, held, 3, 8)(rest), first)


def test_resnet9_has_its_published_size() -> None:
    made = resnet9(3, 10)
    assert sum(weights.numel() for weights in made.parameters()) == pytest.approx(6.57e6, rel=0.01)
    for side in (28, 32, 64):
        assert made.eval()(torch.zeros(2, 3, side, side)).shape == (2, 10)


def test_the_moving_average_follows_with_its_decay() -> None:
    followed, copied = torch.nn.BatchNorm1d(1), torch.nn.BatchNorm1d(1)
    average = MovingAverage(followed, copied, 0.5)
    expected = 1.0
    for step, value in enumerate((3.0, -2.0, 7.0, 1.0), start=1):
        with torch.no_grad():
            followed.weight.fill_(value)
            followed.running_mean.fill_(value)
        average.update()
        decay = min(0.5, step / (10 + step))
        expected = decay * expected + (1 - decay) * value
        assert copied.weight.item() == pytest.approx(expected)
    assert not copied.training
    assert copied.running_mean.item() == pytest.approx(expected, abs=1)
    assert not math.isclose(copied.running_mean.item(), 1.0)


@pytest.mark.parametrize("flip", [False, True])
def test_augmented_images_are_crops_and_mirrored_only_if_told(flip: bool) -> None:
    pixels = np.random.default_rng(0).integers(1, 255, (40, 8, 8, 1)).astype(np.uint8)
    training = Labelled(Images(pixels), np.arange(40, dtype=np.int32))
    mirrored = shifted = 0
    for images, labels in _Batches(training, flip, np.random.default_rng(1)):
        for image, label in zip(images, labels, strict=True):
            original = np.pad(pixels[label], ((1, 1), (1, 1), (0, 0)))
            crops = [original[i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
            straight = any(np.array_equal(image, crop) for crop in crops)
            mirrored += not straight
            shifted += not np.array_equal(image, pixels[label]) and straight
            assert straight or any(np.array_equal(image, crop[:, ::-1]) for crop in crops)
    assert shifted > 5
    assert (mirrored > 5) == flip


def with_vectors(given: Labelled, scale: float = 1.0) -> Labelled:
    pixels = given.images.pixels.reshape(len(given), -1).astype(np.float32)
    return replace(given, vectors=scale * np.concatenate([pixels, np.ones((len(given), 1), np.float32)], axis=1))


def test_a_linear_probe_learns_from_vectors_alone_whatever_their_scale() -> None:
    training, test = stripes(150, 0), stripes(90, 1)
    black = Images(np.zeros_like(test.images.pixels))
    said = []
    for scale in (1.0, 1e-4):
        rest, held = hold_out(with_vectors(training, scale), 0.1, 0)
        predict = named("linear_probe").fit(rest, held, 3, 0)
        said.append(predict(replace(with_vectors(test, scale), samples=black)).argmax(axis=1))
        assert np.mean(said[-1] == test.labels) > 0.9
    np.testing.assert_array_equal(*said)


def test_the_time_that_is_left_goes_with_the_images() -> None:
    sets = {"synthetic": stripes(60, 0), "real": stripes(30, 1)}
    trials = [Trial(name, named("mlp"), sets, stripes(9, 2)) for name in ("one", "other")]
    assert seconds_left(trials, [4.0, 1.0], "synthetic", ["real", "synthetic", "real"]) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("shape", "small"), [((28, 28, 1), (28, 28, 1)), ((64, 64, 3), (32, 32, 3)), ((100, 40, 3), (32, 13, 3))]
)
def test_images_are_shrunk_only_where_they_are_larger(shape: tuple[int, int, int], small: tuple[int, int, int]) -> None:
    assert shrink(shape) == small


def test_a_part_is_held_out_of_every_class() -> None:
    rest, held = hold_out(stripes(100, 0), 0.1, 3)
    assert np.bincount(held.labels).tolist() == [3, 3, 3]
    assert len(rest) + len(held) == 100
    together = {image.tobytes() for part in (rest, held) for image in part.images.pixels}
    assert together == {image.tobytes() for image in stripes(100, 0).images.pixels}
    single = hold_out(stripes(4, 0), 0.1, 3)  # classes of two, one and one
    assert [np.bincount(part.labels, minlength=3).tolist() for part in single] == [[1, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize("name", ["resnet18", "wrn-16-2", "mlp-x5", "transformer:folder"])
def test_an_unknown_classifier_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match=f"^Unknown classifier '{name}': (did you mean '|known are 'linear_probe', )"):
        named(name)


@pytest.mark.parametrize("device", ["toaster", "cuda:99"])
def test_a_device_that_is_not_there_is_one_sentence(device: str) -> None:
    rest, held = hold_out(stripes(30, 0), 0.1, 0)
    with pytest.raises(RecipeError, match=f"The device '{device}' cannot be used"):
        Classifier("resnet9", NetworkSettings(1, device=device)).fit(rest, held, 3, 0)


def test_soft_labels_teach_by_the_divergence_from_them() -> None:
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 2, 1])
    sure = torch.nn.functional.one_hot(labels, 3).float()
    torch.testing.assert_close(_loss(logits, sure, 1.0), _loss(logits, labels, 1.0))
    own = logits.softmax(dim=1)
    assert float(_loss(logits, own, 10.0)) == pytest.approx(0, abs=1e-5)
    assert float(_loss(logits, own.flip(1), 10.0)) > 0.01


def test_what_a_generator_says_of_its_samples_takes_the_place_of_the_label_asked_for() -> None:
    images = Images(np.zeros((3, 4, 4, 1), np.uint8))
    soft = np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], np.float32)
    asked = np.array([0, 0, 1], np.int32)
    whole = label_samples(images, asked, Conditions({SOFT_LABEL: soft}))
    assert whole.labels.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(whole.take(np.array([2])).soft, soft[2:])
    assert label_samples(images, asked, Conditions()).labels is asked


def test_a_dimension_that_hardly_varies_in_training_does_not_decide() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(300, dtype=np.int32) % 3
    vectors = rng.normal(size=(300, 20)).astype(np.float32)
    vectors[np.arange(300), labels] += 4
    vectors[:200, 10:] *= 1e-6  # the border of synthetic images, say; not of real ones
    sets = Labelled(Images(np.zeros((300, 2, 2, 1), np.uint8)), labels, vectors=vectors)
    predict = fit_linear_probe(sets.take(slice(0, 200)), sets.take(slice(0, 200)), 3, 0)
    real = sets.take(slice(200, 300))
    assert np.mean(predict(real).argmax(axis=1) == real.labels) > 0.9


def test_one_label_alone_teaches_nothing() -> None:
    images, labels = Images(np.zeros((4, 2, 2, 1), np.uint8)), np.zeros(4, np.int32)
    with pytest.raises(RecipeError, match="fewer than two labels"):
        accuracy("logistic_regression", images, labels, images, labels, seed=0)
