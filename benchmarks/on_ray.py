"""A whole run on Ray beside the same run in one process: wall time on the same two cores, and against one core.

    python benchmarks/on_ray.py [--rounds N] [--share S]

Each run is a `pe run` of its own, start-up included, and each round has all of them, in an order of its own:

- one process, on both cores: its threads share them;
- `--ray auto`, on both cores: a worker on each, and the process that asks;
- one process, on one core.

Two kinds of work: 6,000 images by EfficientNet-Lite0 (1,280 dimensions), which is nearly all embedding; and 400,000
images by their pixels (196 dimensions), for 5,000 candidates in each of three iterations, of which voting is most.
Images are random shades, 28×28×1; characters are drawn as candidates. All runs of a kind have the same releases,
because they are drawn without noise; that is checked. Writes results/ray.md.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from record import keep, where

CORES = sorted(os.sched_getaffinity(0))[:2]
WAYS: dict[str, tuple[list[int], list[str]]] = {
    "one process, two cores": (CORES, []),
    "--ray auto, two cores": (CORES, ["--ray", "auto"]),
    "one process, one core": (CORES[:1], []),
}
WORK: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "embedding": (6_000, {"kind": "efficientnet_lite"}, {"iterations": 1, "population": 100}),
    "voting": (400_000, {"kind": "pixels", "size": 14}, {"iterations": 3, "population": 5_000}),
}
SIDE = 28


def write_recipe(folder: Path, kind: str, share: float) -> Path:
    """The recipe of one kind of work, beside its private records."""
    records, embedding, evolution = WORK[kind]
    records = round(records * share)
    rng = np.random.default_rng(list(WORK).index(kind))  # other records: each kind has a ledger file of its own
    shades = rng.integers(0, 256, (records, SIDE // 4, SIDE // 4, 1), dtype=np.uint8)
    classes = ["a", "b"]
    images, labels = shades.repeat(4, axis=1).repeat(4, axis=2), np.array(classes)[np.arange(records) % 2]
    np.savez(folder / f"{kind}.npz", images=images, labels=labels)
    source = {"kind": "npz", "path": f"{kind}.npz", "size": SIDE, "channels": 1, "classes": classes}
    recipe = {
        "private": source | {"declared_size": records},
        "api": {"kind": "glyphs"},
        "embedding": embedding,
        "privacy": "none",
        "evolution": evolution | {"lookahead": 0},
    }
    (file := folder / f"{kind}.yaml").write_text(yaml.safe_dump(recipe))
    return file


def seconds(recipe: Path, out: Path, way: str) -> float:
    """Wall time of one run."""
    cores, options = WAYS[way]
    threads = {name: str(len(cores)) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    command = [str(Path(sys.executable).with_name("pe")), "run", str(recipe), "--out", str(out), "--quiet", *options]
    pinned: Callable[[], None] = lambda: os.sched_setaffinity(0, cores)  # noqa: E731
    started = time.perf_counter()
    subprocess.run(command, check=True, env=os.environ | threads, preexec_fn=pinned, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def measure(folder: Path, kind: str, rounds: int, share: float) -> list[dict[str, float]]:
    """Seconds of each way, round by round."""
    recipe = write_recipe(folder, kind, share)
    found = []
    for number in range(rounds):
        took, releases = {}, set()
        for way in random.Random(number).sample(list(WAYS), len(WAYS)):
            out = folder / f"{kind}-{number}-{way.replace(' ', '-')}"
            took[way] = seconds(recipe, out, way)
            releases.add(b"".join(file.read_bytes() for file in sorted((out / "releases").iterdir())))
            print(f"{kind}, round {number}, {way}: {took[way]:.1f} s", flush=True)
        assert len(releases) == 1, "the releases differ"
        found.append(took)
    return found


def rows(kind: str, found: list[dict[str, float]], start: dict[str, float]) -> str:
    """The lines of one kind of work.

    Args:
        kind: of work.
        found: seconds of each way, round by round.
        start: the same of a hundredth of the records, which is nearly all start-up.
    """
    one, ray, alone = WAYS
    text = "".join(
        f"| {kind} | {way} | {statistics.median(took[way] for took in found):.1f} s | "
        f"{min(took[way] for took in found):.1f}–{max(took[way] for took in found):.1f} | {start[way]:.1f} s |\n"
        for way in WAYS
    )
    for other in (one, alone):
        ratios = [took[ray] / took[other] for took in found]
        rest = statistics.median((took[ray] - start[ray]) / (took[other] - start[other]) for took in found)
        text += (
            f"| {kind} | Ray over {other} | {statistics.median(ratios):.2f} | {min(ratios):.2f}–{max(ratios):.2f} | "
            f"without it {rest:.2f} |\n"
        )
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="of the records")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found, start = {}, {}
        for kind in WORK:
            found[kind] = measure(Path(folder), kind, arguments.rounds, arguments.share)
            (small := Path(folder) / f"{kind}-start").mkdir()
            (start[kind],) = measure(small, kind, 1, arguments.share / 100)
    text = (
        f"# A run on Ray beside one process\n\n{where()}. `python benchmarks/on_ray.py`; {arguments.rounds} rounds.\n\n"
        "Embedding: 6,000 images by EfficientNet-Lite0, one iteration of 100 candidates. Voting: 400,000 images by\n"
        "196 of their pixels, three iterations of 5,000 candidates. Whole commands, start-up included; goals: 1.15 on\n"
        "the same cores, .6 against one core. The last column is of a hundredth of the records, which is nearly all\n"
        "start-up; and the ratio of what is left without it.\n\n"
        "| work | run | median | range | start |\n| --- | --- | --- | --- | --- |\n"
        + "".join(rows(kind, took, start[kind]) for kind, took in found.items())
    )
    keep("ray.md", text) if arguments.share == 1 else print(text)


if __name__ == "__main__":
    main()
