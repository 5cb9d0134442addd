"""Measure time and memory of one iteration over a million private and a million synthetic images.

    python benchmarks/scale.py [--records N] [--channels 1|3] [--dimension D]

Images are random, 32×32, with 10 labels. k = 1, T = 1. The embedding is a fixed random projection
to 64 dimensions, and the API answers at once. Anonymous memory is memory that the process cannot
give back; memory-mapped files are not part of it. Needs about 15 GB of disk with three channels.
Writes a part of results/speed.md.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from record import keep, where

import pe
from pe import histogram

CLASSES = [f"c{i}" for i in range(10)]
SIDE = 32


class Instant:
    """Answers at once: images cut from a fixed block of random bytes at a place that the seed
    names.
    """

    info = pe.PluginInfo(hosts=())
    capabilities = pe.Capabilities(max_chunk=8192)

    def __init__(self, channels: int) -> None:
        block = np.random.default_rng(0).integers(0, 256, 2**20, dtype=np.uint8)
        self._windows = np.lib.stride_tricks.sliding_window_view(block, SIDE * SIDE * channels)
        self._shape = SIDE, SIDE, channels

    def _images(self, seeds: np.ndarray) -> pe.Answer:
        starts = (seeds % np.uint64(len(self._windows))).astype(np.int64)
        return pe.Answer(pe.Images(self._windows[starts].reshape(-1, *self._shape)))

    def random_api(self, request: pe.RandomRequest) -> pe.Answer:
        return self._images(request.seeds)

    def variation_api(self, request: pe.VariationRequest) -> pe.Answer:
        return self._images(request.seeds)


class Projection:
    """Fixed random projections of the pixels."""

    batch_size = 4096

    def __init__(self, channels: int, dimension: int) -> None:
        size = SIDE * SIDE * channels
        self._matrix = (
            np.random.default_rng(1).standard_normal((size, dimension)).astype(np.float32) / size
        )

    def embed(self, samples: pe.Images) -> np.ndarray:
        return samples.pixels.reshape(len(samples), -1).astype(np.float32) @ self._matrix


class Watch(threading.Thread):
    """Notes the most anonymous memory that this process had, GB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0.0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.05):
            status = Path("/proc/self/status").read_text()
            self.most = max(self.most, int(status.split("RssAnon:")[1].split()[0]) / 2**20)


class Stopwatch:
    """A function, and the seconds that its calls took."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return self.function(*args, **kwargs)
        finally:
            self.seconds += time.perf_counter() - start


def make_private(path: Path, records: int, channels: int) -> None:
    """An .npz of random images, written without holding them."""
    rng = np.random.default_rng(2)
    images = np.lib.format.open_memmap(
        path.with_suffix(".npy"), mode="w+", dtype=np.uint8, shape=(records, SIDE, SIDE, channels)
    )
    for start in range(0, records, 10_000):
        part = images[start : start + 10_000]
        part[:] = rng.integers(0, 256, part.shape, dtype=np.uint8)
    np.savez(path, images=images, labels=np.array(CLASSES)[np.arange(records) % 10])
    path.with_suffix(".npy").unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--channels", type=int, choices=(1, 3), default=3)
    parser.add_argument("--dimension", type=int, default=64)
    arguments = parser.parse_args()
    records, channels, dimension = arguments.records, arguments.channels, arguments.dimension
    histogram.nearest = search = Stopwatch(histogram.nearest)
    with tempfile.TemporaryDirectory() as folder:
        make_private(Path(folder) / "private.npz", records, channels)
        data = pe.ImageNpz(
            Path(folder) / "private.npz",
            size=SIDE,
            channels=channels,
            classes=CLASSES,
            declared_size=records,
        )
        watch = Watch()
        watch.start()
        started = time.perf_counter()
        settings = {
            "epsilon": 1.0,
            "delta": 1e-8,
            "population": records,
            "iterations": 1,
            "lookahead": 1,
        }
        embedding = Projection(channels, dimension)
        pe.evolve(
            data, Instant(channels), embedding=embedding, out=Path(folder) / "run", **settings
        )
        seconds = time.perf_counter() - started
        watch.over.set()
        size = (
            sum(path.stat().st_size for path in (Path(folder) / "run").rglob("*") if path.is_file())
            / 2**30
        )
    text = (
        f"## {records:,} private and {records:,} synthetic 32×32×{channels} images\n\n"
        f"{where()}. 10 labels, k = 1, T = 1, {dimension}-dimensional embedding. "
        f"`python benchmarks/scale.py --records {records} --dimension {dimension}`\n\n"
        f"- in all: {seconds:.0f} s, of which exact neighbour search {search.seconds:.0f} s\n"
        f"- most anonymous memory: {watch.most:.2f} GB (target: below 4 GB)\n"
        f"- the finished run on disk: {size:.1f} GB\n"
    )
    keep("speed.md", text) if records == 1_000_000 and dimension == 64 else print(text)


if __name__ == "__main__":
    main()
