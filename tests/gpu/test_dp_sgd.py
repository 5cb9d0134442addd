"""DP-SGD's clipped sum by micro-batch, and how many records a second it takes."""

import time

import numpy as np
import pytest
import torch

from adapters.diffusion.device import free_memory
from adapters.trained.diffusion_networks import Velocity, unet
from adapters.trained.dp_sgd.gradients import clipped_sum, record_gradients, trained_parameters
from adapters.trained.settings import FineTuning, Network
from pe.plugins.devices import memory_refused
from tests.gpu.models import GPU

pytestmark = GPU
CLASSES = 10
NEAR = 1e-2
"""Of the sum's norm, by which it may differ in another micro-batch: TF32 rounds each factor by up to 5e-4."""


@pytest.mark.parametrize(("side", "channels"), [(28, 1), (32, 3)])
def test_the_clipped_sum_does_not_depend_on_the_micro_batch(side, channels, device, tiny, tell):
    """The same few records, beside more and more others, until memory is refused."""
    side = 8 if tiny else side
    few, *more = (2, 4) if tiny else (8, 16, 32, 64, 128, 256, 512, 1024)
    model = unet(Network(), (side, side, channels), CLASSES, 0, "weights").to(device)
    loss, parameters = Velocity(), trained_parameters(model)

    def summed(given, counted):
        gradients = record_gradients(model, loss, parameters, *given)
        rows = torch.arange(len(given[0]), device=device)
        return clipped_sum(gradients, rows < counted, FineTuning().clip).double()

    wanted = summed(batch(few, side, channels, device), few)
    for micro in (few, *more):
        try:
            given = batch(micro, side, channels, device)
            apart = float((summed(given, few) - wanted).norm() / wanted.norm())
            begun = time.perf_counter()
            summed(given, micro).sum().item()  # waits for the GPU
        except (RuntimeError, MemoryError) as error:
            if not memory_refused(error):
                raise
            tell(f"micro-batch {micro}", "no memory")
            free_memory(torch.device(device))
            break
        tell(f"micro-batch {micro}: records/s", micro / (time.perf_counter() - begun))
        assert apart <= NEAR


def batch(micro, side, channels, device):
    """Images, labels and the loss's randomness; the first of them are the same for every micro-batch."""
    rng, drawn = np.random.default_rng(0), torch.Generator().manual_seed(0)
    draws = [Velocity().draw(1, FineTuning().draws, (channels, side, side), drawn) for _ in range(micro)]
    images = torch.from_numpy(rng.uniform(-1, 1, (micro, channels, side, side)).astype(np.float32))
    randomness = tuple(torch.cat(part).to(device) for part in zip(*draws, strict=True))
    return images.to(device), torch.arange(micro, device=device) % CLASSES, randomness
