"""The device that the GPU tests run on, and what they print."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
import torch

from adapters.diffusion.device import free_memory
from pe.engine.process import installed_version, software_versions
from pe.plugins.devices import find_device

LIBRARIES = ("torchvision", "triton", "transformers", "accelerate", "open-clip-torch", "timm", "ray")

Tell = Callable[[str, object], None]


@pytest.fixture(scope="session")
def device() -> str:
    """PE_GPU_DEVICE: `cuda:0`, or `cpu` to try the tests themselves."""
    name = os.environ.get("PE_GPU_DEVICE", "cuda:0")
    find_device(name)
    print(versions(name))
    return name


@pytest.fixture(scope="session")
def tiny(device: str) -> bool:
    """Tiny shapes, on a processor."""
    return device == "cpu"


@pytest.fixture
def tell(device: str) -> Iterator[Tell]:
    """Print a figure; give the memory back afterwards."""
    yield lambda name, value: print(f"{name}: {value:,.4g}" if isinstance(value, float) else f"{name}: {value}")
    free_memory(torch.device(device))


def versions(device: str) -> str:
    """Versions, the GPU, its driver and its memory."""
    known = software_versions() | {name: installed_version(name) for name in LIBRARIES}
    known |= {"system": platform.platform(), "CUDA": str(torch.version.cuda), "device": device}
    if device != "cpu":
        gpu = torch.cuda.get_device_properties(device)
        known["GPU"] = f"{torch.cuda.device_count()} × {gpu.name}, sm_{gpu.major}{gpu.minor}"
        known["memory, GiB"] = f"{gpu.total_memory / 2**30:.1f}"
        known["torch is built for"] = " ".join(torch.cuda.get_arch_list())
        if command := shutil.which("nvidia-smi"):
            query = [command, f"--id=GPU-{gpu.uuid}", "--query-gpu=driver_version", "--format=csv,noheader"]
            known["driver"] = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
    return ", ".join(f"{name} {value}" for name, value in known.items() if value)
