"""Settings and what they cost; without noise and clip it is ordinary training; in blocks it goes on
without a trace.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from adapters.trained.diffusion_networks import Denoising
from adapters.trained.dp_sgd.training import Training
from adapters.trained.settings import GRID, FineTuning
from adapters.trained.trainings import block_releases, calibrate_training
from pe.errors import PluginError, PrivacyError, PrivateDataError, RecipeError, RunError
from pe.privacy.accounting import epsilon
from pe.privacy.ledger import Budget
from pe.privacy.noise import SystemNoise
from pe.privacy.release import Poisson, Relation, Release
from tests.adapters.trained.dp_sgd.models import (
    SHAPE,
    SIDE,
    Classifying,
    Recording,
    Showing,
    Weights,
    images_of,
    labels_of,
    plain,
    resnet,
    unet,
)
from tests.seeded_noise import UnsafeSeededNoise


def test_more_records_in_a_step_than_there_are_are_refused():
    with pytest.raises(
        RecipeError, match=r"training\.expected_batch` is 9\. It must be at most `declared_size`"
    ):
        FineTuning(expected_batch=9).dp_sgd(8)


def test_rate_decay_and_sampling_are_a_public_schedule():
    settings = plain(steps=100, learning_rate=2.0, warm_up=3, ema=0.9, declared_size=32)
    assert [settings.rate_at(step) for step in (0, 1, 2, 3, 99)] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert [settings.decay_at(step) for step in (0, 8, 1000)] == [0.1, 0.5, 0.9]
    assert settings.rate == 0.25
    assert FineTuning().dp_sgd(800).rate == 1 / 8


@pytest.mark.parametrize("relation", list(Relation))
def test_all_blocks_together_cost_what_all_steps_cost(relation):
    settings = plain(
        steps=5, block=3, expected_batch=8, declared_size=80, noise_multiplier=1.5, clip=0.1
    )
    parts = block_releases(settings, "fit", relation)
    assert [part.name for part in parts] == [f"fit/{i + 1}" for i in range(settings.blocks)]
    factor = 2 if relation is Relation.REPLACE_ONE else 1
    whole = Release(
        "all",
        "discrete_gaussian",
        factor,
        1.5 / factor,
        relation,
        sampling=Poisson(0.1),
        count=5,
        grid=GRID,
    )
    assert all(part.scale == 1.5 * GRID for part in parts)
    assert epsilon(parts, 1e-5) == epsilon([whole], 1e-5)


OTHER = Release("query", "discrete_gaussian", 1.0, 20.0, grid=2**20)


def test_a_budget_too_small_for_a_single_useful_step_is_refused_with_the_number():
    open_noise = plain(steps=20, expected_batch=64, declared_size=64, noise_multiplier=None)
    with pytest.raises(
        PrivacyError,
        match=r"asks for a noise multiplier of 1,7\d\d\.\d for one single step, which expects 64",
    ):
        calibrate_training(open_noise, Budget(0.001, 1e-5), Relation.ADD_REMOVE)
    # As little as this is enough for one step, though its twenty steps are noisier than any of them
    # is large.
    enough = calibrate_training(open_noise, Budget(0.05, 1e-5), Relation.ADD_REMOVE)
    assert enough.noise_multiplier > 64
    with pytest.raises(PrivacyError, match="use it up"):
        calibrate_training(open_noise, Budget(0.01, 1e-5), Relation.ADD_REMOVE, (OTHER,))


class Remembering:
    """A loss that remembers what it drew."""

    def __init__(self, loss):
        self.loss, self.drawn = loss, []

    def draw(self, *args):
        self.drawn.append(self.loss.draw(*args))
        return self.drawn[-1]

    def __call__(self, *args):
        return self.loss(*args)


ORDINARY = [("sgd", unet, Denoising(), 3), ("adam", resnet, Classifying(), 1)]


@pytest.mark.parametrize(("optimiser", "make", "loss", "draws"), ORDINARY, ids=["sgd", "adam"])
def test_without_noise_and_cutting_it_equals_ordinary_training_step_for_step(
    optimiser, make, loss, draws
):
    settings = plain(
        steps=6,
        expected_batch=5,
        declared_size=20,
        clip=10.0,  # cuts nothing
        learning_rate=0.01,
        warm_up=3,
        optimiser=optimiser,
        draws=draws,
        micro_batch=20,
    )
    # (Adam blows up the rounding of a gradient near 0: with these seeds there is none)
    remembering, noise, images, labels = (
        Remembering(loss),
        Recording(5),
        images_of(20),
        labels_of(20),
    )
    training = Training(make(), remembering, settings)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1

    model = make()
    kind = torch.optim.Adam if optimiser == "adam" else torch.optim.SGD
    ordinary = kind(model.parameters(), lr=0.01)
    warm_up = torch.optim.lr_scheduler.LambdaLR(ordinary, lambda step: min(1.0, (step + 1) / 4))
    state = training.start()
    for step in range(6):
        state = training.block(state, images, labels, noise)
        chosen, drawn = (
            noise.coined[step],
            remembering.drawn[20 * step :],
        )  # one for each place of a micro-batch
        ordinary.zero_grad()
        for place, i in enumerate(chosen):
            (loss(model, pixels[i], torch.tensor(labels[i]), drawn[place]).mean() / 5).backward()
        ordinary.step()
        warm_up.step()
        wanted = torch.cat(
            [parameter.detach().flatten() for parameter in model.parameters()]
        ).numpy()
        assert np.allclose(state[1 : 1 + len(wanted)], wanted, atol=2e-6, rtol=1e-5), f"step {step}"


def whole(**changes):
    """A training with all there is: coins, noise, clip, Adam, warm-up, average, draws."""
    changes = {"steps": 10, "block": 5, "expected_batch": 4, "declared_size": 9} | changes
    return plain(
        noise_multiplier=1.0,
        clip=0.1,
        learning_rate=0.01,
        warm_up=3,
        optimiser="adam",
        draws=2,
        **changes,
    )


def test_two_blocks_of_five_steps_are_one_of_ten_bit_by_bit(tmp_path):
    images, labels, loss = images_of(9), labels_of(9), Denoising()
    noise = UnsafeSeededNoise(2)
    once = Training(unet(), loss, whole(block=10))
    at_once = once.block(once.start(), images, labels, noise)

    noise = UnsafeSeededNoise(2)
    first = Training(unet(), loss, whole())
    np.save(tmp_path / "state.npy", first.block(first.start(), images, labels, noise))
    kept = np.load(tmp_path / "state.npy", mmap_mode="r")  # read-only, as a ledger's store gives it
    second = Training(unet(), loss, whole())  # a new process would make it anew
    assert np.array_equal(second.block(kept, images, labels, noise), at_once)
    assert second.step_of(at_once) == 10
    assert (
        np.array_equal(second.block(kept, images, labels, UnsafeSeededNoise(2)), at_once) is False
    )


class Watched(Training):
    """Shows the gradients before they are clipped."""

    seen: list

    def _clip(self, gradients, counted):
        self.seen.append((gradients, counted))
        return super()._clip(gradients, counted)


def test_every_micro_batch_has_one_shape_so_that_no_gradient_feels_how_many_others_there_are():
    images, firsts = np.repeat(images_of(1), 30, axis=0), []
    for count in (1, 15, 30):
        training = Watched(resnet(), Classifying(), plain(micro_batch=8))
        training.seen = []
        training.block(training.start(), images[:count], np.zeros(count, np.int64), SystemNoise())
        assert all(len(gradient) == 8 for gradients, _ in training.seen for gradient in gradients)
        assert sum(int(counted.sum()) for _, counted in training.seen) == count
        firsts.append([gradient[0] for gradient in training.seen[0][0]])
    for other in firsts[1:]:
        assert all(torch.equal(one, same) for one, same in zip(firsts[0], other, strict=True))


def test_several_draws_are_averaged_before_the_clip():
    class Opposed(Showing):
        """Two draws whose gradients cancel out."""

        def draw(self, draws, shape, generator):
            assert draws == 2
            return (torch.tensor([1.0, -0.99]),)

        def __call__(self, model, image, label, randomness):
            return super().__call__(model, image, label, ()) * randomness[0]

    training = Training(Weights(), Opposed(), plain(draws=2, clip=1.0))
    white = np.full((1, SIDE, SIDE, 1), 255, np.uint8)
    moved = training.block(training.start(), white, np.zeros(1, np.int64), SystemNoise())[1:]
    assert np.allclose(moved[: 2 * SIDE * SIDE] * 8, -0.005, atol=1e-6)


def test_the_average_follows_its_formula():
    settings = plain(steps=12, ema=0.5, noise_multiplier=1.0)
    training = Training(Weights(), Showing(), settings)
    p, state = training.count, training.start()
    average = state[1 : p + 1].astype(np.float64)
    for step in range(12):
        state = training.block(state, images_of(4), np.zeros(4, np.int64), SystemNoise())
        decay = min(0.5, (step + 1) / (step + 10))
        average = decay * average + (1 - decay) * state[1 : p + 1]
        assert np.allclose(state[p + 1 : 2 * p + 1], average, atol=1e-5)
    last = training.load(state, average=False)
    assert np.array_equal(
        torch.cat([value.detach() for value in last.parameters()]).numpy(), state[1 : p + 1]
    )


def test_a_state_of_another_training_or_of_a_finished_one_is_refused():
    training, one = (
        Training(Weights(), Showing(), plain()),
        (images_of(1), labels_of(1), SystemNoise()),
    )
    for other in (
        training.start()[:-1],
        training.start().astype(np.float64),
        training.start().reshape(1, -1),
    ):
        with pytest.raises(RunError, match="another training"):
            training.block(other, *one)
    with pytest.raises(RecipeError, match="All 1 steps are done"):
        training.block(training.block(training.start(), *one), *one)
    ahead = training.start()
    ahead[0] = 7
    with pytest.raises(RecipeError, match="No block begins after 7 steps"):
        Training(Weights(), Showing(), plain(steps=20, block=5)).block(ahead, *one)


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (images_of(2).astype(np.float32), labels_of(2)),
        (images_of(2), labels_of(3)),
    ],
)
def test_records_of_another_form_are_refused_and_not_counted(images, labels):
    training = Training(Weights(), Showing(), plain())
    with pytest.raises(PrivateDataError) as refused:
        training.block(training.start(), images, labels, SystemNoise())
    assert not any(digit in str(refused.value).replace("uint8", "") for digit in "0123456789")


UNSUITABLE = [
    (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)),
        "Layer '1' is a BatchNorm2d.*GroupNorm",
    ),
    (lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)), "Layer '1' is a Dropout"),
    (lambda: Weights().requires_grad_(False), "Weights has no parameter to train"),
    (lambda: Weights().half(), "Parameter 'first' is torch.float16"),
]


@pytest.mark.parametrize(("make", "words"), UNSUITABLE)
def test_a_model_that_dp_sgd_cannot_train_is_refused_in_one_sentence(make, words):
    with pytest.raises(PluginError, match=words):
        Training(make(), Showing(), plain())


def test_too_little_memory_names_the_micro_batch_to_take():
    class Huge(Showing):
        """Needs memory that no machine has."""

        def draw(self, draws, shape, generator):
            return (torch.empty(2**50),)

    training = Training(Weights(), Huge(), plain(micro_batch=64))
    with pytest.raises(RecipeError, match=r"micro_batch` is 64.*Set it to 32"):
        training.block(training.start(), images_of(1), labels_of(1), SystemNoise())


class Cramped(Training):
    """Has memory for the gradients of eight records, blank or not."""

    def _clip(self, gradients, counted):
        if len(counted) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        assert not counted.any()
        return super()._clip(gradients, counted)


def test_an_open_micro_batch_is_halved_until_memory_takes_it_with_blank_records():
    settings = plain(micro_batch=None, expected_batch=20, declared_size=20)
    kinds = (Training, Cramped)
    found = [
        kind(Weights(), Showing(), settings).micro_batch(SHAPE, SystemNoise()) for kind in kinds
    ]
    assert found == [32, 8]
