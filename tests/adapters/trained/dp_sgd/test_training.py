"""Without noise and clip it is ordinary training; a training is cut into blocks, and goes on, without a trace."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from adapters.trained.dp_sgd.gradients import Loss
from adapters.trained.dp_sgd.training import Training
from adapters.trained.settings import GRID
from pe.errors import PluginError, PrivateDataError, RecipeError, RunError
from pe.privacy.noise import SystemNoise, UnsafeSeededNoise
from tests.adapters.trained.dp_sgd.models import (
    NAMES,
    SIDE,
    TRAINED,
    Classifying,
    Denoising,
    Generating,
    Recording,
    Showing,
    Weights,
    generator,
    images_of,
    labels_of,
    plain,
    resnet,
    unet,
)


class Remembering:
    """A loss that remembers what it drew."""

    def __init__(self, loss: Loss) -> None:
        self.loss, self.drawn = loss, []

    def draw(self, *args):
        self.drawn.append(self.loss.draw(*args))
        return self.drawn[-1]

    def __call__(self, *args):
        return self.loss(*args)


ORDINARY = [("sgd", unet, Denoising(), 3), ("adam", resnet, Classifying(), 1), ("adam", generator, Generating(), 2)]


@pytest.mark.parametrize(("optimiser", "make", "loss", "draws"), ORDINARY, ids=NAMES)
def test_without_noise_and_cutting_it_equals_ordinary_training_step_for_step(optimiser, make, loss, draws):
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
    remembering, noise, images, labels = Remembering(loss), Recording(5), images_of(20), labels_of(20)
    training = Training(make(), remembering, settings)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1

    model = make()
    kind = torch.optim.Adam if optimiser == "adam" else torch.optim.SGD
    ordinary = kind(model.parameters(), lr=0.01)
    warm_up = torch.optim.lr_scheduler.LambdaLR(ordinary, lambda step: min(1.0, (step + 1) / 4))
    state = training.start()
    for step in range(6):
        state = training.block(state, images, labels, noise)
        chosen, drawn = noise.coined[step], remembering.drawn[20 * step :]  # one for each place of a micro-batch
        ordinary.zero_grad()
        for place, i in enumerate(chosen):
            parts = tuple(part[0] for part in drawn[place])
            (loss(model, pixels[i], torch.tensor(labels[i]), parts).mean() / 5).backward()
        ordinary.step()
        warm_up.step()
        wanted = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy()
        assert np.allclose(state[1 : 1 + len(wanted)], wanted, atol=2e-6, rtol=1e-5), f"step {step}"


def whole(**changes):
    """A training with all there is: coins, noise, clip, Adam, warm-up, average, draws."""
    changes = {"steps": 10, "block": 5, "expected_batch": 4, "declared_size": 9} | changes
    return plain(noise_multiplier=1.0, clip=0.1, learning_rate=0.01, warm_up=3, optimiser="adam", draws=2, **changes)


@pytest.mark.parametrize(("make", "loss"), [one[:2] for one in TRAINED[::2]], ids=NAMES[::2])
def test_two_blocks_of_five_steps_are_one_of_ten_bit_by_bit(make, loss, tmp_path):
    images, labels = images_of(9), labels_of(9)
    noise = UnsafeSeededNoise(2)
    once = Training(make(), loss, whole(block=10))
    at_once = once.block(once.start(), images, labels, noise)

    noise = UnsafeSeededNoise(2)
    first = Training(make(), loss, whole())
    np.save(tmp_path / "state.npy", first.block(first.start(), images, labels, noise))
    kept = np.load(tmp_path / "state.npy", mmap_mode="r")  # read-only, as a ledger's store gives it
    second = Training(make(), loss, whole())  # a new process would make it anew
    assert np.array_equal(second.block(kept, images, labels, noise), at_once)
    assert second.step_of(at_once) == 10
    assert np.array_equal(second.block(kept, images, labels, UnsafeSeededNoise(2)), at_once) is False


@pytest.mark.parametrize(("make", "loss", "_"), TRAINED, ids=NAMES)
def test_the_micro_batch_changes_memory_and_not_the_sum(make, loss, _):
    class Same(Remembering):
        """Each record's draws depend on the record, not on its place."""

        def draw(self, records, draws, shape, generator):
            one = self.loss.draw(1, draws, shape, torch.Generator().manual_seed(0))
            return tuple(part.expand(records, *part.shape[1:]) for part in one)

    images, labels, states = images_of(9), labels_of(9), []
    for size in (1, 4, 16):
        training = Training(make(), Same(loss), plain(micro_batch=size, draws=2, clip=0.5, learning_rate=0.1))
        states.append(training.block(training.start(), images, labels, SystemNoise()))
    assert not np.array_equal(states[0], training.start())
    for state in states[1:]:
        assert np.allclose(state, states[0], atol=1e-6)


class Watched(Training):
    """Shows the gradients before they are clipped."""

    seen: list

    def _clipped(self, gradients, counted):
        self.seen.append((gradients, counted))
        return super()._clipped(gradients, counted)


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

        def draw(self, records, draws, shape, generator):
            assert draws == 2
            return (torch.tensor([1.0, -0.99]).expand(records, 2),)

        def __call__(self, model, image, label, randomness):
            return super().__call__(model, image, label, ()) * randomness[0]

    training = Training(Weights(), Opposed(), plain(draws=2, clip=1.0))
    white = np.full((1, SIDE, SIDE, 1), 255, np.uint8)
    moved = training.block(training.start(), white, np.zeros(1, np.int64), SystemNoise())[1:]
    assert np.allclose(moved[: 2 * SIDE * SIDE] * 8, -0.005, atol=1e-6)


def test_frozen_parameters_stay_and_the_others_move():
    model = unet()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("attentions" in name or name.startswith("class_embedding"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    training = Training(model, Denoising(), whole(steps=5))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert (
        training.count == sum(before[name].numel() for name in trained) < 0.3 * sum(map(torch.numel, before.values()))
    )
    state = training.block(training.start(), images_of(9), labels_of(9), SystemNoise())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())  # not before `load`
    after = training.load(state).state_dict()
    assert {name for name, value in after.items() if not torch.equal(value, before[name])} == trained


def test_the_noise_is_on_what_is_trained_alone():
    model = unet()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("class_embedding"))
    noise = Recording(1)
    training = Training(model, Denoising(), whole(steps=5))
    training.block(training.start(), images_of(9), labels_of(9), noise)
    assert noise.gaussians == [(training.count, 1.0 * GRID)] * 5


def test_the_average_follows_its_formula_and_is_what_is_loaded():
    settings = plain(steps=12, ema=0.5, noise_multiplier=1.0)
    training = Training(Weights(), Showing(), settings)
    p, state = training.count, training.start()
    average = state[1 : p + 1].astype(np.float64)
    for step in range(12):
        state = training.block(state, images_of(4), np.zeros(4, np.int64), SystemNoise())
        decay = min(0.5, (step + 1) / (step + 10))
        average = decay * average + (1 - decay) * state[1 : p + 1]
        assert np.allclose(state[p + 1 : 2 * p + 1], average, atol=1e-5)
    loaded = {name: value.detach().clone() for name, value in training.load(state).named_parameters()}
    assert np.array_equal(torch.cat(list(loaded.values())).numpy(), state[p + 1 : 2 * p + 1])
    last = training.load(state, average=False)
    assert np.array_equal(torch.cat([value.detach() for value in last.parameters()]).numpy(), state[1 : p + 1])


def test_a_block_leaves_its_state_and_the_model_as_they_were():
    model = resnet()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    training = Training(model, Classifying(), whole())
    state = training.start()
    kept = state.copy()
    training.block(state, images_of(9), labels_of(9), SystemNoise())
    assert np.array_equal(state, kept)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_no_record_at_all_is_a_data_set_like_others():
    training = Training(resnet(), Classifying(), whole())
    state = training.block(training.start(), images_of(0), labels_of(0), SystemNoise())
    assert np.isfinite(state).all()
    assert training.step_of(state) == 5


def test_a_training_that_is_over_says_so():
    training = Training(Weights(), Showing(), plain())
    state = training.block(training.start(), images_of(1), labels_of(1), SystemNoise())
    with pytest.raises(RecipeError, match="All 1 steps are done"):
        training.block(state, images_of(1), labels_of(1), SystemNoise())


def test_a_training_without_settled_noise_does_not_begin():
    training = Training(Weights(), Showing(), plain(noise_multiplier=None))
    with pytest.raises(RecipeError, match="noise_multiplier is not settled"):
        training.block(training.start(), images_of(1), np.zeros(1, np.int64), SystemNoise())


def test_a_state_of_another_training_is_refused():
    training = Training(Weights(), Showing(), plain())
    for other in (training.start()[:-1], training.start().astype(np.float64), training.start().reshape(1, -1)):
        with pytest.raises(RunError, match="another training"):
            training.block(other, images_of(1), labels_of(1), SystemNoise())
    ahead = training.start()
    ahead[0] = 7
    blocks = Training(Weights(), Showing(), plain(steps=20, block=5))
    with pytest.raises(RecipeError, match="no block begins after 7 steps"):
        blocks.block(ahead, images_of(1), labels_of(1), SystemNoise())


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (images_of(2).astype(np.float32), labels_of(2)),
        (images_of(2)[..., 0], labels_of(2)),
        (images_of(2), labels_of(3)),
        (images_of(2), labels_of(2).astype(np.float64)),
        (images_of(2), labels_of(2)[:, None]),
    ],
)
def test_records_of_another_form_are_refused_and_not_counted(images, labels):
    training = Training(Weights(), Showing(), plain())
    with pytest.raises(PrivateDataError) as refused:
        training.block(training.start(), images, labels, SystemNoise())
    assert not any(digit in str(refused.value).replace("uint8", "") for digit in "0123456789")


def frozen():
    return Weights().requires_grad_(False)


UNSUITABLE = [
    (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)), "Layer '1' is a BatchNorm2d.*GroupNorm"),
    (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.SyncBatchNorm(4)).eval(), "SyncBatchNorm"),
    (lambda: nn.Sequential(nn.InstanceNorm2d(4, affine=True, track_running_stats=True)), "InstanceNorm2d"),
    (lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)), "Layer '1' is a Dropout"),
    (frozen, "Weights has no parameter to train"),
    (lambda: Weights().half(), "Parameter 'first' is torch.float16"),
]


@pytest.mark.parametrize(("make", "words"), UNSUITABLE)
def test_a_model_that_dp_sgd_cannot_train_is_refused_in_one_sentence(make, words):
    with pytest.raises(PluginError, match=words):
        Training(make(), Showing(), plain())


@pytest.mark.parametrize(
    ("size", "advice"), [(64, "micro_batch is 64.*take 32"), (1, "fewer draws or a smaller model")]
)
def test_too_little_memory_names_the_micro_batch_to_take(size, advice):
    class Huge(Showing):
        """Needs memory that no machine has."""

        def draw(self, records, draws, shape, generator):
            return (torch.empty((records, 2**50)),)

    training = Training(Weights(), Huge(), plain(micro_batch=size))
    with pytest.raises(RecipeError, match=advice):
        training.block(training.start(), images_of(1), labels_of(1), SystemNoise())


class Cramped(Training):
    """Has memory for the gradients of eight records, blank or not."""

    def _clipped(self, gradients, counted):
        if len(counted) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        assert not counted.any()
        return super()._clipped(gradients, counted)


def test_an_open_micro_batch_is_halved_until_memory_takes_it_with_blank_records():
    settings = plain(micro_batch=None, expected_batch=20, declared_size=20)
    kinds = (Training, Cramped)
    found = [kind(Weights(), Showing(), settings).micro_batch((SIDE, SIDE, 1), SystemNoise()) for kind in kinds]
    assert found == [32, 8]
