"""The check `versions`: what is installed, which GPU this is, and whether torch is built for it."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from pe.engine.software import installed_version, software_versions
from pe.plugins.gpu_checks import Figure, Found, GPUCheck, Size, judged

_LIBRARIES = ("torchvision", "triton", "transformers", "accelerate", "open-clip-torch", "timm", "ray")
_GIB = 2**30


def versions(device: str, _size: Size) -> Found:
    """Versions, the GPU's name, memory and compute capability; fails where torch has no code for that capability."""
    import torch

    figures: dict[str, Figure] = {**software_versions()}
    figures |= {name: found for name in _LIBRARIES if (found := installed_version(name))}
    figures |= {"system": platform.platform(), "torch's CUDA": str(torch.version.cuda)}
    cudnn: Any = torch.backends.cudnn
    if number := cudnn.version():
        figures["cuDNN"] = str(number)
    if torch.device(device).type != "cuda":
        return Found(figures=figures | {"device": f"{device}, {platform.machine()}"})
    known, (free, total) = torch.cuda.get_device_properties(device), torch.cuda.mem_get_info(device)
    built = torch.cuda.get_arch_list()
    figures |= {
        "GPU": known.name,
        "GPUs that torch sees": torch.cuda.device_count(),
        "driver": _driver(str(known.uuid)),
        "compute capability": f"{known.major}.{known.minor}",
        "memory, GiB": total / _GIB,
        "of it free, GiB": free / _GIB,
        "torch is built for": " ".join(built),
    }
    lacking = f"torch is built for {' '.join(built)}, and not for this GPU's sm_{known.major}{known.minor}"
    return judged(figures, [] if is_built_for((known.major, known.minor), built) else [lacking])


def is_built_for(capability: tuple[int, int], built: Sequence[str]) -> bool:
    """Whether code for these architectures runs on a GPU of this compute capability.

    Machine code (sm_86) runs on later ones of its own generation, intermediate code (compute_86) on all later ones, and
    code for one architecture alone (sm_90a) on that.
    """
    for name in built:
        parts = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", name)
        if parts is None:
            continue
        target = int(parts[2]), int(parts[3])
        if target == capability:
            return True
        if not parts[4] and target < capability and (parts[1] == "compute" or target[0] == capability[0]):
            return True
    return False


def _driver(uuid: str) -> str:
    command = shutil.which("nvidia-smi")
    if command is None:
        return "unknown: no nvidia-smi"
    query = [command, f"--id=GPU-{uuid}", "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603
    return answer.stdout.strip() or "unknown"


CHECK = GPUCheck(versions, seconds=60)
