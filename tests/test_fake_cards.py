"""The fake devices refuse what real ones refuse; and what runs on an MPS device without float64."""

import threading

import numpy as np
import pytest
import torch
from torch import nn

from adapters.trained.dp_imgsyn_networks import Reader
from pe.data.images import Images
from pe.evaluation.labelled import Labelled, NetworkSettings
from pe.evaluation.training import fit_network
from tests.fake_cards import claim, fake_cards


@pytest.fixture
def cards():
    with fake_cards() as found:
        yield found


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(
    ("act", "kind", "says"),
    [
        (lambda: nn.Linear(2, 2).to("cuda")(torch.ones(1, 2)), RuntimeError, "Expected"),
        (lambda: torch.ones(4, device="cuda").view(2, 2)[0] + torch.ones(2), RuntimeError, "Expected"),
        (lambda: torch.ones(2)[torch.zeros(1, dtype=torch.int64, device="cuda")], RuntimeError, "Expected"),
        (lambda: torch.randn(2, generator=torch.Generator("cpu"), device="cuda"), RuntimeError, "Expected"),
        (lambda: torch.ones(2, device="cuda").numpy(), TypeError, "numpy"),
        (lambda: torch.ones(2, device="mps").double(), TypeError, "float64"),
    ],
)
def test_what_mixes_devices_is_refused(act, kind, says):
    with pytest.raises(kind, match=says):
        act()


def test_claims_follow_tensors_and_into_threads_and_end_with_the_fakes():
    found = []
    with fake_cards():
        layer = nn.Linear(2, 2).to("cuda:1")
        made = layer(torch.ones(1, 2).to("cuda:1")) + torch.tensor(1.0)
        assert made.is_cuda
        for each in (*layer.parameters(), nn.Parameter(made.detach()), torch.zeros_like(made)):
            assert str(each.device) == "cuda:1"
        before = torch.ones(2)
        assert [str(each.device) for each in (torch.as_tensor(before, device="cuda"), before)] == ["cuda:0", "cpu"]
        thread = threading.Thread(target=lambda: found.append(torch.ones(1, device="cuda").device))
        thread.start()
        thread.join()
    assert [str(device) for device in found] == ["cuda:0"]
    assert (str(made.device), str(claim(made))) == ("cpu", "cuda:1")


@pytest.mark.usefixtures("cards")
def test_a_classifier_is_trained_asked_and_its_moments_read_on_mps():
    images = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 1)).astype(np.uint8)
    given = Labelled(Images(images), np.arange(16, dtype=np.int32) % 2)
    answer = fit_network(given, given, 2, 0, NetworkSettings(epochs=1, device="mps"))(given)
    assert answer.shape == (16, 2)
    assert answer.dtype == np.float64
    layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten()).to("mps")
    means, squares = Reader(layers, torch.device("mps")).moments(images)
    assert means.dtype == squares.dtype == np.float64
