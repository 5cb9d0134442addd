"""The device that the GPU tests run on, and what they print."""

import os
import platform

import pytest
import torch

from pe.engine.process import software_versions
from pe.plugins.devices import find_device, free_memory


@pytest.fixture(scope="session")
def device():
    """PE_GPU_DEVICE: `cuda:0`, or `cpu` to try the tests themselves."""
    name = os.environ.get("PE_GPU_DEVICE", "cuda:0")
    find_device(name)
    known = software_versions() | {
        "system": platform.platform(),
        "CUDA": torch.version.cuda,
        "device": name,
    }
    if name != "cpu":
        known["GPU"] = f"{torch.cuda.device_count()} × {torch.cuda.get_device_properties(name)}"
    print(", ".join(f"{what} {value}" for what, value in known.items() if value))
    return name


@pytest.fixture(scope="session")
def tiny(device):
    """Tiny shapes, on a processor."""
    return device == "cpu"


@pytest.fixture
def tell(device):
    """Print a figure; give the memory back afterwards."""
    yield lambda name, value: print(
        f"{name}: {value:,.4g}" if isinstance(value, float) else f"{name}: {value}"
    )
    free_memory(torch.device(device))
