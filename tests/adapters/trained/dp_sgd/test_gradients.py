"""A record's gradient is its own: as computed alone, whatever model, and cut to the clip over all parameters."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adapters.trained.dp_sgd.gradients import clipped_sum, record_gradients, trained_parameters
from adapters.trained.settings import GRID
from tests.adapters.trained.dp_sgd.models import NAMES, SIDE, TRAINED, images_of, labels_of


def inputs(loss, draws, count=5):
    images = torch.from_numpy(images_of(count)).permute(0, 3, 1, 2).float() / 127.5 - 1
    labels = torch.from_numpy(labels_of(count))
    return images, labels, loss.draw(count, draws, (1, SIDE, SIDE), torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("make", "loss", "draws"), TRAINED, ids=NAMES)
def test_gradients_of_many_records_at_once_are_those_of_one_after_the_other(make, loss, draws):
    model = make()
    images, labels, randomness = inputs(loss, draws)
    at_once = record_gradients(model, loss, trained_parameters(model), images, labels, randomness)
    for i in range(len(images)):
        model.zero_grad()
        loss(model, images[i], labels[i], tuple(part[i] for part in randomness)).mean().backward()
        for (name, parameter), found in zip(model.named_parameters(), at_once, strict=True):
            difference = (found[i] - parameter.grad).abs().max().item()
            assert difference <= 1e-5 * max(1.0, parameter.grad.abs().max().item()), name


@pytest.mark.parametrize(("make", "loss", "draws"), TRAINED[:2], ids=NAMES[:2])
def test_a_record_s_gradient_does_not_feel_the_others(make, loss, draws):
    model = make()
    images, labels, randomness = inputs(loss, draws)
    before = record_gradients(model, loss, trained_parameters(model), images, labels, randomness)
    images[1:] = -images[1:]
    after = record_gradients(model, loss, trained_parameters(model), images, labels, randomness)
    assert all(torch.equal(one[0], other[0]) for one, other in zip(before, after, strict=True))
    assert not any(torch.equal(one[1], other[1]) for one, other in zip(before[-2:], after[-2:], strict=True))


@pytest.mark.parametrize(("make", "loss", "draws"), TRAINED[:2], ids=NAMES[:2])
def test_on_a_processor_it_is_the_same_to_the_bit_wherever_the_record_stands(make, loss, draws):
    model = make()
    images, labels, randomness = inputs(loss, draws)
    found = record_gradients(model, loss, trained_parameters(model), images, labels, randomness)
    moved = [part.roll(1, 0) for part in (images, labels, *randomness)]
    elsewhere = record_gradients(model, loss, trained_parameters(model), moved[0], moved[1], tuple(moved[2:]))
    assert all(torch.equal(one.roll(1, 0), other) for one, other in zip(found, elsewhere, strict=True))


def steps_of(rows, clip, clipping=clipped_sum):
    """The clipped sum of rows n×5, held by two parameters of 2 and 3 numbers, in steps of clip/GRID."""
    rows = torch.from_numpy(rows)
    return clipping([rows[:, :2], rows[:, 2:].reshape(-1, 3, 1)], torch.ones(len(rows), dtype=torch.bool), clip).numpy()


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


def rounded_as_a_sum(gradients, counted, clip):
    rows = torch.cat([gradient.double().flatten(1).nan_to_num() for gradient in gradients], dim=1)
    factors = (clip / rows.norm(dim=1, keepdim=True)).clamp(max=1) * (1 - 1e-12)
    return in_steps((rows * factors).sum(0), clip)


def by_parameter(gradients, counted, clip):
    return torch.cat([clipped_sum([gradient], counted, clip) for gradient in gradients])


def of_the_sum(gradients, counted, clip):
    total = torch.cat([gradient.double().flatten(1).nan_to_num() for gradient in gradients], dim=1).sum(0)
    return in_steps(total * (len(counted) * clip / total.norm()).clamp(max=1), clip)


def by_number(gradients, counted, clip):
    rows = torch.cat([gradient.double().clamp(-clip, clip).flatten(1).nan_to_num() for gradient in gradients], dim=1)
    return in_steps(rows.sum(0), clip)


def spoilt_by_nan(gradients, counted, clip):
    rows = torch.cat([gradient.double().flatten(1) for gradient in gradients], dim=1)
    return in_steps((rows * (clip / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0), clip)


@pytest.mark.parametrize(
    "broken", [unclipped, by_parameter, of_the_sum, by_number, spoilt_by_nan, rounded_to_nearest, rounded_as_a_sum]
)
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
