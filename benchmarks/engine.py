"""Where the engine's time goes: an API that answers at once, 50,000 private and 50,000 synthetic images.

    python benchmarks/engine.py [--private N] [--synthetic N]

Prints seconds per phase, peak memory, and the share of time outside neighbour search, API, embedding and fsync, by
function. Each second counts once, for the innermost of them. 32×32×3 images in 10 labels, pixels embedding, k = 2,
T = 2. Writes results/engine.md.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from by_function import tables, time_functions, timed
from record import keep, where

import pe
from embeddings.pixels import Pixels

CLASSES = [f"c{i}" for i in range(10)]
SHAPE = (32, 32, 3)


class Instant:
    """Answers at once: images cut from a fixed block of random bytes at a place that the seed names."""

    info = pe.PluginInfo(hosts=())
    capabilities = pe.Capabilities(max_chunk=2048)

    def __init__(self) -> None:
        self._bytes = np.random.default_rng(0).integers(0, 256, 2**20, dtype=np.uint8)

    def _images(self, seeds: np.ndarray) -> pe.Answer:
        with timed("API"):
            size = int(np.prod(SHAPE))
            starts = (seeds % np.uint64(len(self._bytes) - size)).astype(np.int64)
            windows = np.lib.stride_tricks.sliding_window_view(self._bytes, size)
            return pe.Answer(pe.Images(windows[starts].reshape(-1, *SHAPE)))

    def random_api(self, request: pe.RandomRequest) -> pe.Answer:
        return self._images(request.seeds)

    def variation_api(self, request: pe.VariationRequest) -> pe.Answer:
        return self._images(request.seeds)


class TimedPixels(Pixels):
    def embed(self, samples: pe.Images) -> np.ndarray:
        with timed("embedding"):
            return super().embed(samples)


def run(private: int, synthetic: int) -> tuple[float, float]:
    """Seconds in all and peak memory in GB."""
    time_functions()
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        images = rng.integers(0, 256, (private, *SHAPE), dtype=np.uint8)
        labels = np.array(CLASSES)[np.arange(private) % 10]
        np.savez(Path(folder) / "private.npz", images=images, labels=labels)
        del images
        data = pe.ImageNpz(Path(folder) / "private.npz", size=32, classes=CLASSES, declared_size=private)
        started = time.perf_counter()
        settings = {"epsilon": 1.0, "delta": 1e-6, "population": synthetic, "iterations": 2, "lookahead": 2}
        pe.evolve(data, Instant(), embedding=TimedPixels(), out=Path(folder) / "run", **settings)
        total = time.perf_counter() - started
    return total, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def report(private: int, synthetic: int, total: float, peak: float) -> str:
    outside, spent = tables(total)
    lines = [
        f"# Engine: {private:,} private and {synthetic:,} synthetic 32×32×3 images, 10 labels, k = 2, T = 2",
        "",
        f"{where()}. `python benchmarks/engine.py`",
        "",
        f"Peak memory {peak:.2f} GB. Outside neighbour search, API, embedding and fsync: {outside / total:.1%} "
        "(target: at most 10 %); the second table has it by function.",
        "",
        *spent,
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--private", type=int, default=50_000)
    parser.add_argument("--synthetic", type=int, default=50_000)
    arguments = parser.parse_args()
    text = report(arguments.private, arguments.synthetic, *run(arguments.private, arguments.synthetic))
    keep("engine.md", text) if (arguments.private, arguments.synthetic) == (50_000, 50_000) else print(text)


if __name__ == "__main__":
    main()
