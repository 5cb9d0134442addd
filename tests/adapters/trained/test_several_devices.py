"""Several devices share the steps of DP-SGD: the same bits as of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from adapters.trained.diffusion import DPDM
from adapters.trained.dp_sgd.training import Training
from pe.errors import RecipeError
from pe.privacy.noise import SystemNoise
from tests.adapters.trained.dp_sgd.models import Showing, Weights, images_of, labels_of, plain
from tests.adapters.trained.dp_sgd.test_gradients import student
from tests.fake_cards import fake_cards
from tests.seeded_noise import UnsafeSeededNoise

CPU = torch.device("cpu")


@pytest.mark.parametrize("devices", [2, 3])
def test_several_devices_release_what_one_does_bit_by_bit(devices: int) -> None:
    settings = plain(
        steps=4,
        block=2,
        expected_batch=9,
        declared_size=12,
        draws=2,
        noise_multiplier=1.0,
        micro_batch=2,
    )
    images, labels, ends = images_of(12), labels_of(12) % 2, []
    for count in (1, devices):
        (model, loss), noise = student(None), UnsafeSeededNoise(3)
        training = Training(model, loss, settings, *[CPU] * count)
        state = training.block(training.start(), images, labels, noise)
        loss.judge.learn(training.load(state, average=False))  # all compute with what it learned
        ends.append(training.block(state, images, labels, noise))
    np.testing.assert_array_equal(ends[0], ends[1])


class Failing(Showing):
    def __call__(self, model: Any, image: Any, label: Any, randomness: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")


def test_the_error_of_another_device_is_the_training_s() -> None:
    training = Training(Weights(), Failing(), plain(), CPU, CPU)
    with pytest.raises(RecipeError, match=r"micro_batch` is 4.*Set it to 2"):
        training.block(training.start(), images_of(8), np.zeros(8, np.int64), SystemNoise())


def places(device: str | list[str]) -> list[str]:
    return [str(one) for one in DPDM(device=device).places()]


def test_every_gpu_that_is_named_has_a_share() -> None:
    with fake_cards(3):
        assert places("auto") == ["cuda:0", "cuda:1", "cuda:2"]
        assert places(["cuda:2", "cuda:1"]) == ["cuda:2", "cuda:1"]
    assert places("cpu") == ["cpu"]
