"""The fake devices refuse what real ones refuse; and what runs on an MPS device without float64."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import nn

from adapters.trained.dp_imgsyn_networks import Reader
from pe.data.images import Images
from pe.evaluation.labelled import Labelled, NetworkSettings
from pe.evaluation.training import fit_network
from tests.fake_cards import Cards, claim, fake_cards


@pytest.fixture
def cards() -> Iterator[Cards]:
    with fake_cards() as found:
        yield found


REFUSED: dict[str, Callable[[], object]] = {
    "processor": lambda: torch.ones(2, device="cuda") + torch.ones(2),
    "another card": lambda: torch.ones(2, device="cuda:0") * torch.ones(2, device="cuda:1"),
    "a layer": lambda: nn.Linear(2, 2).to("cuda")(torch.ones(1, 2)),
    "a list": lambda: torch.cat([torch.ones(2, device="cuda"), torch.ones(2)]),
    "a card's number": lambda: torch.ones(2) + torch.ones((), device="cuda"),
    "a view": lambda: torch.ones(4, device="cuda").view(2, 2)[0] + torch.ones(2),
    "places": lambda: torch.ones(2)[torch.zeros(1, dtype=torch.int64, device="cuda")],
    "a generator": lambda: torch.randn(2, generator=torch.Generator("cpu"), device="cuda"),
}


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_devices_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match="Expected"):
        REFUSED[name]()


@pytest.mark.usefixtures("cards")
def test_a_card_s_tensor_is_no_array_and_float64_is_not_for_mps() -> None:
    with pytest.raises(TypeError, match="numpy"):
        torch.ones(2, device="cuda").numpy()
    with pytest.raises(TypeError, match="numpy"):
        np.asarray(torch.ones(2, device="cuda"))
    with pytest.raises(TypeError, match="float64"):
        torch.ones(2, device="mps").double()


def test_claims_follow_tensors_and_moves_are_counted(cards: Cards) -> None:
    layer = nn.Linear(2, 2).to("cuda:1")
    assert {str(each.device) for each in layer.parameters()} == {"cuda:1"}
    made = layer(torch.ones(1, 2).to("cuda:1")) + torch.tensor(1.0)
    assert made.is_cuda
    assert nn.Parameter(made.detach()).device == torch.device("cuda:1")
    assert torch.zeros_like(made).device == torch.device("cuda:1")
    before = torch.ones(2)
    assert str(torch.as_tensor(before, device="cuda").device) == "cuda:0"
    assert str(before.device) == "cpu"
    moved = len(cards.moves)
    made.detach().cpu().numpy()
    float(made.detach().sum())
    assert cards.moves[moved:] == [("cuda:1", "cpu")] * 2
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.ones(1, device="cuda").device))
    thread.start()
    thread.join()
    assert [str(device) for device in found] == ["cuda:0"]


def test_without_the_fakes_nothing_is_claimed() -> None:
    with fake_cards():
        kept = torch.ones(2, device="cuda")
    assert str(kept.device) == "cpu"
    assert str(claim(kept)) == "cuda:0"


@pytest.mark.usefixtures("cards")
def test_a_classifier_is_trained_and_asked_on_mps() -> None:
    images = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 1)).astype(np.uint8)
    given = Labelled(Images(images), np.arange(16, dtype=np.int32) % 2)
    answer = fit_network(given, given, 2, 0, NetworkSettings(epochs=1, device="mps"))(given)
    assert answer.shape == (16, 2)
    assert answer.dtype == np.float64


@pytest.mark.usefixtures("cards")
def test_a_classifier_s_moments_are_read_on_mps() -> None:
    layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten()).to("mps")
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 1)).astype(np.uint8)
    means, squares = Reader(layers, torch.device("mps")).moments(images)
    assert means.dtype == squares.dtype == np.float64
