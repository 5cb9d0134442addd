"""Where the engine's time goes: an API that answers at once, 50,000 private and 50,000 synthetic images.

    python benchmarks/engine.py [--private N] [--synthetic N]

Prints seconds per phase, peak memory, and the share of time outside neighbour search, API, embedding and fsync, by
function. Each second counts once, for the innermost of them. 32×32×3 images in 10 labels, pixels embedding, k = 2,
T = 2. Writes results/engine.md.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import local
from typing import Any

import numpy as np
from record import keep, where

import pe
from embeddings.pixels import Pixels
from pe import evolution, histogram, lookahead
from pe.dispatch import answers, dispatcher, waits
from pe.engine import execution, private_side, python  # noqa: F401 (imported before the clock starts)
from pe.privacy import register
from pe.private.dataset import PrivateDataset
from pe.store.writer import RunWriter

CLASSES = [f"c{i}" for i in range(10)]
SHAPE = (32, 32, 3)
PHASES = "neighbour search", "embedding", "API", "fsync"
PARTS: tuple[tuple[Any, str, str], ...] = (
    (execution.Execution, "of", "planning the noise: imports SciPy, root finding"),
    (
        PrivateDataset,
        "preflight",
        "private records read, decoded, hashed for the run's fingerprint and for the register",
    ),
    (PrivateDataset, "blocks", "private records read again, for the embedding: they are kept nowhere"),
    (register.Remembered, "sample", "the register's keyed digest of each record"),
    (private_side, "embed_private", "private vectors written"),
    (private_side, "sha256", "private vectors hashed: a resumed run takes them as they are"),
    (answers.Answers, "store", "answers written and hashed: none is asked for again after a kill"),
    (answers.Answers, "commit", "answers entered in the journal"),
    (answers.Answers, "committed", "answers read back once their phase is whole"),
    (answers.Answers, "forget", "answers deleted"),
    (dispatcher.Dispatcher, "_ask", "parents and seeds of requests"),
    (RunWriter, "add_population", "populations written and hashed"),
    (lookahead, "_add_runs", "the lookahead's vectors summed, in half a gigabyte of new memory"),
    (evolution, "lookahead_embeddings", "the rest of the lookahead: NaN looked for, the mean"),
    (histogram, "count_votes", "each label's records gathered, votes counted per unit"),
    (execution, "contact_sheet", "the picture of the evolution"),
    (execution, "publish", "the shareable side copied: no birth time tells how long private work took"),
    (RunWriter, "write_samples", "synthetic.npz written, with the checksum that the format has"),
    (execution.Execution, "_certify", "synthetic.npz hashed for the certificate"),
)
"""What is timed outside those phases: holder, function, and the reason for its time."""
SECONDS: dict[str, float] = defaultdict(float)
INNER = local()  # of each thread: seconds of timed functions within the current one


@contextmanager
def timed(phase: str) -> Iterator[None]:
    outer, INNER.seconds, started = getattr(INNER, "seconds", 0.0), 0.0, time.perf_counter()
    try:
        yield
    finally:
        took = time.perf_counter() - started
        SECONDS[phase] += took - INNER.seconds
        INNER.seconds = outer + took


def timing(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with timed(phase):
            result = function(*args, **kwargs)
        return each(phase, result) if isinstance(result, Iterator) else result

    return wrapped


def each(phase: str, parts: Iterator[Any]) -> Iterator[Any]:
    while True:
        with timed(phase):
            part = next(parts, None)
        if part is None:
            return
        yield part


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
    histogram.nearest = timing("neighbour search", histogram.nearest)
    os.fsync = timing("fsync", os.fsync)
    for holder, name, reason in PARTS:
        setattr(holder, name, timing(reason, getattr(holder, name)))
    waits.Waits.finished = timing("waiting", waits.Waits.finished)  # for another thread, whose time is counted
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
    del SECONDS["waiting"]
    outside = total - sum(SECONDS[phase] for phase in PHASES)
    spent = {**SECONDS, "all else, less what two threads did at once": total - sum(SECONDS.values())}
    parts = sorted(spent.items() - {(phase, SECONDS[phase]) for phase in PHASES}, key=lambda item: -item[1])
    phases = [*((phase, SECONDS[phase]) for phase in PHASES), ("everything else", outside), ("in all", total)]
    lines = [
        f"# Engine: {private:,} private and {synthetic:,} synthetic 32×32×3 images, 10 labels, k = 2, T = 2",
        "",
        f"{where()}. `python benchmarks/engine.py`",
        "",
        *table("phase", phases, total),
        "",
        f"Peak memory {peak:.2f} GB. Outside neighbour search, API, embedding and fsync: {outside / total:.1%} "
        "(target: at most 10 %). That is:",
        "",
        *table("everything else", parts, total),
        "",
    ]
    return "\n".join(lines)


def table(head: str, rows: list[tuple[str, float]], total: float) -> list[str]:
    """Markdown."""
    lines = [f"| {name} | {seconds:.2f} | {seconds / total:.1%} |" for name, seconds in rows]
    return [f"| {head} | seconds | share |", "| --- | ---: | ---: |", *lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--private", type=int, default=50_000)
    parser.add_argument("--synthetic", type=int, default=50_000)
    arguments = parser.parse_args()
    text = report(arguments.private, arguments.synthetic, *run(arguments.private, arguments.synthetic))
    keep("engine.md", text) if (arguments.private, arguments.synthetic) == (50_000, 50_000) else print(text)


if __name__ == "__main__":
    main()
