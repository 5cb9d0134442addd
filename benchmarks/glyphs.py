"""How fast `Glyphs` draws: images per second on one core. `python benchmarks/glyphs.py`."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported

import time

import numpy as np
from record import keep, where

from adapters.glyphs import Glyphs
from pe.plugins.protocols import RandomRequest, VariationRequest

CHUNK = 4096
ROUNDS = 12


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
    first = time.process_time() - started
    random = best_rate(lambda: glyphs.random_api(RandomRequest(labels, seeds)), CHUNK)
    request = VariationRequest(parents.samples, labels, parents.conditions, seeds, 0.4)
    varied = best_rate(lambda: glyphs.variation_api(request), CHUNK)
    keep(
        "glyphs.md",
        f"# Glyph drawing: images of 28×28 a second of one core\n\n{where()}. `python benchmarks/glyphs.py`\n\n"
        f"| RANDOM_API | VARIATION_API | fonts rasterised and first {CHUNK:,} images |\n| ---: | ---: | ---: |\n"
        f"| {random:,.0f} | {varied:,.0f} | {first:.2f} s |\n",
    )


if __name__ == "__main__":
    main()
