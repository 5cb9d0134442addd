"""The fake devices refuse what real ones refuse; and what runs on an MPS device without float64."""

import numpy as np
import pytest
import torch
from torch import nn

from adapters.trained.dp_imgsyn_networks import Reader
from tests.fake_cards import fake_cards


@pytest.fixture(autouse=True)
def cards():
    with fake_cards():
        yield


def test_what_mixes_devices_is_refused():
    """A layer, a view, places, a generator, NumPy and float64, each on one device and given what is
    on another.
    """
    processor, card = torch.ones(2), torch.ones(2, device="cuda")
    for act in (
        lambda: nn.Linear(2, 2).to("cuda:1")(card[None]),
        lambda: torch.ones(4, device="cuda").view(2, 2)[0] + processor,
        lambda: processor[torch.zeros(1, dtype=torch.int64, device="cuda")],
        lambda: torch.randn(2, generator=torch.Generator("cpu"), device="cuda"),
        card.numpy,
        torch.ones(2, device="mps").double,
    ):
        with pytest.raises((RuntimeError, TypeError), match=r"Expected|numpy|float64"):
            act()


def test_moments_are_read_on_mps():
    images = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 1)).astype(np.uint8)
    layers = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).to("mps")
    means, squares = Reader(layers, torch.device("mps")).moments(images)
    assert means.dtype == squares.dtype == np.float64
