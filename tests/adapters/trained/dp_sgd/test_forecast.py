"""The dry run says what the training will do, and touches nothing."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from adapters.trained.dp_sgd.training import Training, dry_run, peak_memory
from pe.errors import PluginError
from pe.plugins.devices import keep_memory
from tests.adapters.trained.dp_sgd.models import SIDE, Classifying, Denoising, Weights, plain, resnet, unet


def test_it_says_steps_noise_memory_and_time():
    model = unet()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings = plain(steps=25, block=10, expected_batch=100, declared_size=1000, noise_multiplier=2.0, draws=2)
    forecast = dry_run(model, Denoising(), (SIDE, SIDE, 1), settings)
    training = Training(model, Denoising(), settings)
    assert (forecast.steps, forecast.blocks, forecast.noise_multiplier) == (25, 3, 2.0)
    assert forecast.parameters == training.count
    assert forecast.state_bytes == training.start().nbytes
    assert forecast.seconds_per_step > 0
    assert forecast.seconds == 25 * forecast.seconds_per_step
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_noise_may_still_be_open():
    forecast = dry_run(resnet(), Classifying(), (SIDE, SIDE, 1), plain(noise_multiplier=None))
    assert forecast.noise_multiplier is None


def test_a_model_that_cannot_be_trained_is_found_before_the_training():
    with pytest.raises(PluginError):
        dry_run(Weights().requires_grad_(False), Classifying(), (SIDE, SIDE, 1), plain())


def told(found, size):
    """Whether the height was found; nothing can be, where the kernel lets nobody reset it."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        return found is None
    return size * 0.9 < found < size * 1.5


def test_memory_is_what_the_work_held_at_its_height():
    size = 200 * 2**20
    found = peak_memory(torch.device("cpu"), lambda: np.ones(size, np.uint8).sum())
    assert told(found, size)


def test_memory_that_was_freed_and_kept_is_counted_when_it_is_taken_again():
    keep_memory()
    blocks = [np.ones(2**20, np.uint8) for _ in range(300)]
    del blocks
    size = 200 * 2**20
    found = peak_memory(torch.device("cpu"), lambda: np.ones(size, np.uint8).sum())
    assert told(found, size)
