"""What a replica takes of the machine's GPUs: its share and no more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from adapters.diffusion.pixel import PixelFiles
from adapters.server import replica
from adapters.server.replica import Replica
from adapters.server_client import ServerClient
from pe.plugins.protocols import RandomRequest
from tests.adapters.server.near import near, settings_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # diffusers and numpy 2
    pytest.mark.filterwarnings("ignore:Using extra keyword arguments:DeprecationWarning"),  # of Ray
]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A machine with two; what the replica bounds, and loads on which, in order. Models stay on the CPU."""
    done: list[Any] = []
    whole = PixelFiles.load

    def load(self: PixelFiles, device: torch.device, *given: Any, **named: Any) -> Any:
        done.append(str(device))
        return whole(self, torch.device("cpu"), *given, **named)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda *given: done.append((given[0], str(given[1])))
    )
    monkeypatch.setattr(PixelFiles, "load", load)
    monkeypatch.setattr(replica, "_keep_prompts_out_of_logs", lambda: None)
    return done


def test_without_a_gpu_of_its_own_it_leaves_all_alone(gpus: list[Any]) -> None:
    """Ray does not hide them from it."""
    request = RandomRequest(("0", "1"), np.arange(2, dtype=np.uint64))
    with near("small", "--gpus-per-replica", "0") as url:
        answer = ServerClient(base_url=url, steps=2).random_api(request)
    assert len(answer.samples) == 2
    assert gpus == ["cpu"]


@pytest.mark.parametrize(
    ("share", "done"),
    [
        ("0.5", [(0.5, "cuda:0"), (0.5, "cuda:1"), "cuda:0", "cuda:1"]),
        ("1", ["cuda:0", "cuda:1"]),
        (None, ["cuda:0", "cuda:1"]),
    ],
)
def test_with_a_share_it_bounds_its_memory_before_the_model_is_loaded(
    gpus: list[Any], share: str | None, done: list[Any]
) -> None:
    options = () if share is None else ("--gpus-per-replica", share)
    Replica(settings_of("small", *options).model_dump(mode="json"))
    assert sorted(gpus, key=str) == sorted(done, key=str)
    assert gpus[: len(done) - 2] == done[:-2]
