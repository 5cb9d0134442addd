"""A record's gradient is its own: as computed alone, whatever model, and cut to the clip over all
parameters.
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adapters.diffusion.pixel import PixelFiles
from adapters.trained.diffusion_networks import Denoising
from adapters.trained.dp_imgsyn_networks import CrossEntropy, make_teacher
from adapters.trained.dp_sad_networks import Distillation, Judge
from adapters.trained.dp_sgd.gradients import (
    clipped_sum,
    record_gradients,
    stack,
    trained_parameters,
)
from adapters.trained.finetune import COVERED, LoRA, prepare
from adapters.trained.finetune_models import PixelCheckpoint, latent_checkpoint
from adapters.trained.gan_networks import Discriminator, DiscriminatorLoss, ImageGenerator
from adapters.trained.settings import GRID, Discrimination
from tests.adapters.diffusion.tiny import SIDE as LARGE
from tests.adapters.diffusion.tiny import stable_diffusion, stable_diffusion_2
from tests.adapters.trained.dp_sgd.models import (
    CLASSES,
    SHAPE,
    Classifying,
    images_of,
    labels_of,
    resnet,
    unet,
)
from tests.adapters.trained.finetune.brought import LORA, checkpoint

CPU, LABELS = torch.device("cpu"), ("L", "O", "oh")
WHOLE = ("to_k", "group_norm", "conv_in", "linear_1", "class_embedding")


def student(_):
    teacher = deepcopy(unet("teacher")).eval().requires_grad_(False)
    learning = Discrimination(steps=1, batch=4, chains=4)
    judge = Judge(teacher, (8, 8, 1), CLASSES - 1, learning, 5, 0)
    return unet(), Distillation(teacher, judge, 1.0, 1.0, CLASSES - 1)


def teacher(_):
    return make_teacher("small", 1, CLASSES, 0), CrossEntropy(1)


def discriminator(_):
    torch.manual_seed(0)
    return Discriminator(CLASSES, SHAPE), DiscriminatorLoss(ImageGenerator(CLASSES, SHAPE), CLASSES)


def finetuned(lora, layers):
    def make(_):
        brought = PixelCheckpoint(PixelFiles.find(checkpoint(), None, offline=True), LABELS, SHAPE)
        return prepare(brought.network(), lora, layers, 0), brought.loss(CPU)

    return make


def latent(pipeline):
    def make(folder):
        torch.manual_seed(0)
        pipeline().save_pretrained(folder)
        brought = latent_checkpoint(folder, "a {label}", LABELS, (LARGE, LARGE, 1))
        return prepare(brought.network(), LoRA(rank=2), ("conv_in", "norm1"), 0), brought.loss(CPU)

    return make


LOSSES = {
    "diffusion": lambda _: (unet(), Denoising()),
    "classifier": lambda _: (resnet(), Classifying()),
    "dp_sad": student,
    "dp_imgsyn": teacher,
    "dpgan": discriminator,
    "finetune, LoRA": finetuned(LoRA.model_validate(LORA), ("class_embedding",)),
    "finetune, layers": finetuned(None, WHOLE),
    "finetune, Stable Diffusion 1": latent(stable_diffusion),
    "finetune, Stable Diffusion 2": latent(stable_diffusion_2),
}
"""Every model that a method trains by DP-SGD, with its loss."""


def moved(model, by=0.1):
    """With LoRA's second matrices no longer zero, where half of the gradients would be."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            if value.requires_grad:
                value += by * torch.randn(value.shape, generator=generator)
    return model


def inputs(loss, side, count=3):
    images = torch.from_numpy(images_of(count, side=side)).permute(0, 3, 1, 2).float() / 127.5 - 1
    generator = torch.Generator().manual_seed(1)
    drawn = stack([loss.draw(2, (1, side, side), generator) for _ in range(count)], CPU)
    return images, torch.from_numpy(labels_of(count)), drawn


@pytest.mark.parametrize("name", LOSSES)
def test_a_record_s_gradient_among_others_is_that_of_the_record_alone_and_feels_no_other(
    name: str, tmp_path: Path
):
    model, loss = LOSSES[name](tmp_path)
    model = moved(model) if "finetune" in name else model
    images, labels, drawn = inputs(loss, LARGE if "Stable" in name else 8)
    parameters = trained_parameters(model)
    found = record_gradients(model, loss, parameters, images, labels, drawn)
    for i in range(len(images)):
        model.zero_grad()
        loss(model, images[i], labels[i], tuple(part[i] for part in drawn)).mean().backward()
        for ours, key in zip(found, parameters, strict=True):
            wanted = model.get_parameter(key).grad
            assert (ours[i] - wanted).abs().max() <= 2e-5 * max(1.0, float(wanted.abs().max())), key
    assert all(value.grad is None for value in model.parameters() if not value.requires_grad)
    images[1:] = -images[1:]
    after = record_gradients(model, loss, parameters, images, labels, drawn)
    assert all(torch.equal(one[0], other[0]) for one, other in zip(found, after, strict=True))
    assert (
        sum(torch.equal(one[1], other[1]) for one, other in zip(found, after, strict=True)) <= 2
    )  # DPGAN's biases


@pytest.mark.parametrize("name", ["diffusion", "classifier"])
def test_on_a_processor_it_is_the_same_to_the_bit_wherever_the_record_stands(
    name: str, tmp_path: Path
):
    model, loss = LOSSES[name](tmp_path)
    images, labels, drawn = inputs(loss, 8, 5)
    found = record_gradients(model, loss, trained_parameters(model), images, labels, drawn)
    rolled = [part.roll(1, 0) for part in (images, labels, *drawn)]
    elsewhere = record_gradients(
        model, loss, trained_parameters(model), rolled[0], rolled[1], tuple(rolled[2:])
    )
    assert all(
        torch.equal(one.roll(1, 0), other) for one, other in zip(found, elsewhere, strict=True)
    )


def test_every_kind_of_layer_that_may_be_trained_whole_is_among_these(tmp_path: Path):
    kinds = set()
    for name in ("finetune, layers", "finetune, Stable Diffusion 1"):
        model, _ = LOSSES[name](tmp_path)
        trained = (
            layer
            for layer in model.modules()
            if any(one.requires_grad for one in layer.parameters(False))
        )
        kinds |= {type(layer).__name__ for layer in trained}
    assert kinds >= set(COVERED)


def steps_of(rows, clip, clipping=clipped_sum):
    """The clipped sum of rows n×5, held by two parameters of 2 and 3 numbers, in steps of
    clip/GRID.
    """
    rows = torch.from_numpy(rows)
    return clipping(
        [rows[:, :2], rows[:, 2:].reshape(-1, 3, 1)], torch.ones(len(rows), dtype=torch.bool), clip
    ).numpy()


def summed(rows, clip):
    """The same in the gradient's own unit."""
    return steps_of(rows, clip) * (clip / GRID)


def squared_norm(steps):
    """In integers."""
    assert steps.dtype == np.int64
    return sum(int(step) ** 2 for step in steps)


anything = st.floats(width=32, allow_nan=True, allow_infinity=True)
records = st.integers(1, 6).flatmap(lambda n: arrays(np.float32, (n, 5), elements=anything))
clips = st.floats(1e-6, 1e6)


def one_record_moves_the_sum_by_the_clip_at_most(clipping):
    @settings(max_examples=100, database=None, phases=[Phase.generate], report_multiple_bugs=False)
    @given(records, arrays(np.float32, 5, elements=anything), clips)
    def check(rows, other, clip):
        whole = steps_of(rows, clip, clipping)
        removed = whole - steps_of(rows[1:], clip, clipping)
        replaced = whole - steps_of(np.vstack([other[None], rows[1:]]), clip, clipping)
        assert squared_norm(removed) <= GRID**2
        assert squared_norm(replaced) <= 4 * GRID**2

    check()


@pytest.mark.parametrize("singly", [True, False])
def test_clipping(singly):
    one_record_moves_the_sum_by_the_clip_at_most(partial(clipped_sum, singly=singly))


def in_steps(total, clip):
    return (total * (GRID / clip)).clamp(-(2.0**60), 2.0**60).long()


def unclipped(gradients, counted, clip):
    rows = torch.cat([gradient.double().flatten(1) for gradient in gradients], dim=1)
    return in_steps(rows.nan_to_num().sum(0), clip)


def rounded_to_nearest(gradients, counted, clip):
    rows = torch.cat([gradient.double().flatten(1).nan_to_num() for gradient in gradients], dim=1)
    factors = (clip / rows.norm(dim=1, keepdim=True)).clamp(max=1)
    return (rows * factors * (GRID / clip)).round().sum(0).long()


def of_the_sum(gradients, counted, clip):
    total = torch.cat(
        [gradient.double().flatten(1).nan_to_num() for gradient in gradients], dim=1
    ).sum(0)
    return in_steps(total * (len(counted) * clip / total.norm()).clamp(max=1), clip)


def spoilt_by_nan(gradients, counted, clip):
    rows = torch.cat([gradient.double().flatten(1) for gradient in gradients], dim=1)
    return in_steps((rows * (clip / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0), clip)


@pytest.mark.parametrize("broken", [unclipped, of_the_sum, spoilt_by_nan, rounded_to_nearest])
def test_a_broken_clip_is_found_out(broken):
    with pytest.raises(AssertionError):
        one_record_moves_the_sum_by_the_clip_at_most(broken)


def test_small_gradients_are_left_as_they_are_and_large_ones_keep_their_direction():
    rows = np.array([[3, 0, 4, 0, 0], [0.3, 0, 0.4, 0, 0]], np.float32)
    assert np.allclose(summed(rows[:1], 1.0), [0.6, 0, 0.8, 0, 0])
    assert np.allclose(summed(rows[1:], 1.0), rows[1], atol=2 / GRID)
    assert np.allclose(summed(rows, 10.0), rows.astype(np.float64).sum(axis=0), atol=40 / GRID)


@pytest.mark.parametrize("spoilt", [np.nan, np.inf, -np.inf])
def test_a_gradient_with_a_number_that_is_none_counts_as_zero(spoilt):
    rows = np.array([[0.1, 0.2, 0.3, 0.4, 0.5], [0.1, 0.1, spoilt, 0.1, 0.1]], np.float32)
    assert np.array_equal(summed(rows, 1.0), summed(rows[:1], 1.0))
    assert not summed(rows[1:], 1e6).any()


@pytest.mark.parametrize("singly", [True, False])
def test_the_largest_finite_gradient_is_clipped_and_not_lost(singly):
    rows = np.full((1, 5), np.finfo(np.float32).max, np.float32)
    steps = steps_of(rows, 1.0, partial(clipped_sum, singly=singly))
    assert np.allclose(steps / GRID, 1 / np.sqrt(5))
