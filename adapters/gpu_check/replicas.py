"""The check `replicas`: servers whose replicas have no GPU, half of one, or one; each stays within its share."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from adapters.diffusion.pixel_space import PixelSpace
from adapters.gpu_check.models import full_float32, grey_levels, new_images
from adapters.server_client import ServerClient
from pe.errors import APIError
from pe.plugins.gpu_checks import Figure, Found, GPUCheck, Size, judged

_SHARES: dict[str, int] = {"0": 1, "0.5": 2, "1": 1}
"""GPUs per replica → how many replicas."""

_PATIENCE = 100.0
_ENDING = 30.0
_COUNT = 8
_STEPS = 4
_NEAR = 1
_CONTEXT = 200 * 2**20
"""Bytes of a GPU; a process that computes on it takes more, and others' memory moves by less meanwhile."""

_ARITHMETIC = {"NVIDIA_TF32_OVERRIDE": "0"}
"""For the server: no TF32, so that a replica on the processor makes the same images."""

_COMMAND = "from pe.cli.main import main; main()"


def replicas(device: str, _size: Size) -> Found:
    """Start `pe serve small` with each share, ask for images, and see whether the GPU's memory is in use meanwhile.

    The images must be those that this process makes, in fp32 without TF32. On a processor there is the share 0 alone.
    """
    figures: dict[str, Figure] = {}
    faults: list[str] = []
    with full_float32():
        api = PixelSpace(model="small", steps=_STEPS, device=device, precision="fp32", batch_size=_COUNT)
        wanted = new_images(api, _COUNT)
    for share, count in _SHARES.items() if device != "cpu" else [("0", 1)]:
        name, before = f"{count} with {share} GPU each", _memory_taken(device)
        begun = time.perf_counter()
        with _server(share, count) as url:
            figures[f"{name}: seconds to start"] = time.perf_counter() - begun
            made = new_images(ServerClient(base_url=url, steps=_STEPS), _COUNT)
            taken = _memory_taken(device) - before
        figures[f"{name}: grey levels apart"] = apart = grey_levels(wanted, made)
        if apart > _NEAR:
            faults.append(f"{name}: images differ by {apart} grey levels from those made here")
        if device == "cpu":
            continue
        figures[f"{name}: GiB of the GPU"] = taken / 2**30
        if share == "0" and taken > _CONTEXT:
            faults.append(f"a replica with no GPU took {taken / 2**30:.2f} GiB of it")
        if share != "0" and taken < _CONTEXT:
            faults.append(f"{name}: the GPU was not used")
    return judged(figures, faults)


@contextmanager
def _server(share: str, count: int) -> Iterator[str]:
    """The address of a server of the model that ships with the project, with so many replicas."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--gpus-per-replica", share, "--replicas", str(count), "--port", str(port), "--steps", str(_STEPS)]
    options += ["--precision", "fp32"]
    with TemporaryDirectory() as folder:
        printed = Path(folder) / "printed"
        with printed.open("wb") as stream:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-c", _COMMAND, "serve", "small", *options],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=os.environ | _ARITHMETIC | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
            )
        try:
            _wait_for(process, printed, f"http://127.0.0.1:{port}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_ENDING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(process: subprocess.Popen[bytes], printed: Path, url: str) -> None:
    """Until the server says that it answers.

    Raises:
        APIError: it ended, or did not come up in time.
    """
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        if f"at {url}" in printed.read_text(encoding="utf-8", errors="replace"):
            return
        time.sleep(0.1)
    said = printed.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise APIError(f"The server did not start: {said[-1] if said else 'it said nothing'}.")


def _memory_taken(device: str) -> int:
    """Bytes of the GPU that all processes hold."""
    import torch

    if device == "cpu":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free


CHECK = GPUCheck(replicas, seconds=300)
