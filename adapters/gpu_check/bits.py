"""The check `bits`: two new processes make the same images, to the last bit."""

from __future__ import annotations

import hashlib
import subprocess
import sys

from adapters.diffusion.pixel_space import PixelSpace
from adapters.gpu_check.models import STEPS, new_images, reduced
from pe.plugins.gpu_checks import Figure, Found, GPUCheck, Size, judged

_COUNT = 8
_PATIENCE = 80.0


def bits(device: str, size: Size) -> Found:
    """The SHA-256 of 8 images of each model, in two processes, which must be the same."""
    told = [_told(device, size) for _ in range(2)]
    figures: dict[str, Figure] = {f"SHA-256 in process {place}": one for place, one in enumerate(told, start=1)}
    return judged(figures, [] if told[0] == told[1] else ["two processes made other images of the same seeds"])


def _told(device: str, size: Size) -> str:
    command = [sys.executable, "-P", "-m", "adapters.gpu_check.bits", device, size]
    answer = subprocess.run(  # noqa: S603
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=_PATIENCE, check=True
    )
    return answer.stdout.splitlines()[-1]


def hashes(device: str, size: Size) -> str:
    """The first digits of the SHA-256 of each model's images; on a processor, of the small model's alone."""
    found = [new_images(PixelSpace(model="small", steps=STEPS[size], device=device, batch_size=_COUNT), _COUNT)]
    if device != "cpu":
        with reduced(device, size) as (_, build):
            found.append(new_images(build("bf16", batch_size=_COUNT), _COUNT))
    return " ".join(hashlib.sha256(images.tobytes()).hexdigest()[:16] for images in found)


CHECK = GPUCheck(bits, seconds=180)

if __name__ == "__main__":
    print(hashes(*sys.argv[1:]))  # type: ignore[arg-type]
