"""Servers whose replicas have no GPU, half of one, or one: each stays within its share and makes the same images."""

from __future__ import annotations

import time

import pytest
import torch

from adapters.diffusion.pixel import PixelSpace
from adapters.server_client import ServerClient
from tests.adapters.server.serving import served
from tests.gpu.models import GPU, full_float32, grey_levels, new_images

pytestmark = GPU
STEPS = 4
CONTEXT = 200 * 2**20
"""Bytes of a GPU; a process that computes on it takes more, and others' memory moves by less meanwhile."""


@pytest.mark.parametrize(("share", "replicas"), [("0", 1), ("0.5", 2), ("1", 1)])
def test_replicas_stay_within_their_share(share, replicas, device, tiny, tell):
    if tiny and share != "0":
        pytest.skip("a processor has no GPU to share")
    with full_float32():
        api = PixelSpace(model="small", steps=STEPS, device=device, precision="fp32", batch_size=8)
        wanted = new_images(api, 8)
    options = {"gpus-per-replica": share, "replicas": replicas, "steps": STEPS, "precision": "fp32"}
    words = tuple(word for name, value in options.items() for word in (f"--{name}", str(value)))
    before, begun = taken(device), time.perf_counter()
    with served("small", *words, NVIDIA_TF32_OVERRIDE="0") as server:  # as a replica on the processor computes
        tell("seconds to start", time.perf_counter() - begun)
        images = new_images(ServerClient(base_url=server.url, steps=STEPS), 8)
        used = taken(device) - before
    tell("grey levels apart", grey_levels(wanted, images))
    tell("GiB of the GPU", used / 2**30)
    assert grey_levels(wanted, images) <= 1
    assert tiny or (used > CONTEXT) is (share != "0")


def taken(device):
    """Bytes of the GPU that all processes hold."""
    if device == "cpu":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free
