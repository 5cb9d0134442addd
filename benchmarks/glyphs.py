"""How fast `Glyphs` draws: images per second on one core. `python benchmarks/glyphs.py`."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported

import datetime
import platform
import time
from pathlib import Path

import numpy as np

from adapters.glyphs import Glyphs
from pe.protocols import RandomRequest, VariationRequest

CHUNK = 4096
ROUNDS = 12


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.processor()


def best_rate(draw: object, count: int) -> float:
    """Images per second of processor time, in the fastest of ROUNDS calls: others share this machine."""
    assert callable(draw)
    seconds = []
    for _ in range(ROUNDS):
        started = time.process_time()
        draw()
        seconds.append(time.process_time() - started)
    return count / min(seconds)


def main() -> None:
    started = time.process_time()
    glyphs = Glyphs()
    labels = tuple(str(k % 10) for k in range(CHUNK))
    seeds = np.random.default_rng(0).integers(0, 2**64, CHUNK, dtype=np.uint64)
    parents = glyphs.random_api(RandomRequest(labels, seeds))
    print(f"{datetime.date.today()}, {processor()}, Python {platform.python_version()}, numpy {np.__version__}")
    print(f"fonts rasterised and first {CHUNK} images drawn in {time.process_time() - started:.2f} s of processor time")
    random = best_rate(lambda: glyphs.random_api(RandomRequest(labels, seeds)), CHUNK)
    request = VariationRequest(parents.samples, labels, parents.conditions, seeds, 0.4)
    varied = best_rate(lambda: glyphs.variation_api(request), CHUNK)
    print(f"RANDOM_API     {random:8,.0f} images of 28×28 a second of one core")
    print(f"VARIATION_API  {varied:8,.0f} images of 28×28 a second of one core")


if __name__ == "__main__":
    main()
