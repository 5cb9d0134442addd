"""Measure what timing tells of one record to whoever answers a run's requests or lists its directory.

    python benchmarks/timing.py

Two made-up data sets differ in one record. They are run again and again, in turn, with a generator
that is not trusted: it plants candidates and notes when it is asked. AUC is the chance that a run
of the second data set took longer than one of the first; 0.5 is a guess. Takes an hour, two attacks
at a time. Writes a part of results/attacks.md. BEFORE is what the same attacks found in the engine
of commit 190b706, before there was a clock, padding and publishing, when the embedding came after
the generator's first answer.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from record import keep, where

from pe.data.images import Images
from pe.engine.execution import RunContext, run_recipe
from pe.evaluation.memorisation import membership
from pe.planning.parts import object_kind
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, VariationRequest
from pe.recipe.schema import Recipe
from pe.store.places import CONFIDENTIAL

RUNS, CONFIDENCE = 250, 0.999
SIDE, RECORDS = 28, 256
BEFORE = ("0.66 to 0.80", "0.88", "0.75")


@dataclass
class Untrusted:
    """A generator on another machine, as far as the engine knows; half of its samples lie around a
    planted image.
    """

    planted: np.ndarray | None
    times: list[tuple[float, float]] = field(default_factory=list)

    info: ClassVar[PluginInfo] = PluginInfo(hosts=("untrusted.invalid",))
    capabilities: ClassVar[Capabilities] = Capabilities(max_chunk=2**16)

    def random_api(self, request: RandomRequest) -> Answer:
        return self._answer(len(request), time.perf_counter())

    def variation_api(self, request: VariationRequest) -> Answer:
        return self._answer(len(request), time.perf_counter())

    def _answer(self, count: int, asked: float) -> Answer:
        images = np.random.default_rng(1).integers(0, 256, (count, SIDE, SIDE, 1), dtype=np.uint8)
        if self.planted is not None:
            near = images[: count // 2]
            near[:] = self.planted
            near.reshape(len(near), -1)[np.arange(len(near)), np.arange(len(near)) % SIDE**2] ^= 1
        self.times.append((asked, time.perf_counter()))
        return Answer(Images(images))


def run(private: Path, out: Path, clock: str, planted: np.ndarray | None) -> tuple[float, float]:
    """Seconds to the next request after the first answer, and between the births of the run's first
    and last file.
    """
    generator, budget = (
        Untrusted(planted),
        private.with_name("budget.json"),
    )  # one ledger: the data sets share records
    embedding: dict[str, Any] = (
        {"features": "gradients", "size": 56} if planted is None else {"features": "pixels"}
    )
    content = {
        "private": {"kind": "npz", "path": private, "size": SIDE, "channels": 1, "classes": []}
        | {"declared_size": RECORDS, "ledger_file": budget},
        "api": {"kind": object_kind(generator), "price": {"image": 0}},
        "embedding": {"kind": "pixels", "batch_size": RECORDS, **embedding},
        "privacy": {"noise_multiplier": 10, "delta": 1e-5, "hold": clock},
        "evolution": {
            "iterations": 1,
            "population": 256 if planted is None else 2000,
            "lookahead": 0,
        },
    }
    folder = run_recipe(
        Recipe.parse(content, "the benchmark"), out, RunContext(api=generator)
    ).folder
    budget.unlink()  # so that no run has more to read than the one before
    files = [str(path) for path in folder.rglob("*") if CONFIDENTIAL not in path.parts]
    told = subprocess.run(
        ["stat", "--format=%.W", *files], capture_output=True, text=True, check=False
    ).stdout
    births = [
        float(line) for line in told.split() if line[0].isdigit()
    ]  # Python tells no birth time on Linux
    return generator.times[1][0] - generator.times[0][1], max(births, default=0.0) - min(
        births, default=0.0
    )


def attack(kind: int, clock: str) -> list[tuple[str, str]]:
    """An attack's names and AUCs, on a core of its own."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[kind]})
    records = np.random.default_rng(0).integers(
        0, 256, (RECORDS + 1, SIDE, SIDE, 1), dtype=np.uint8
    )
    planted, first = (
        (None, records[:-1])
        if kind
        else (records[-1], np.concatenate([records[:-1], 255 - records[:1]]))
    )
    seen: tuple[list[tuple[float, float]], ...] = [], []
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name) / "first.npz", Path(name) / "second.npz"]
        for path, images in zip(paths, (first, records), strict=True):
            np.savez(path, images=images)
        turns = list(zip(paths, seen, strict=True))
        for number in range(RUNS + 1):  # the first of each is not looked at
            for path, found in turns:
                found.append(run(path, Path(name) / f"{path.stem}-{number}", clock, planted))
            turns.reverse()  # so that neither is always the second
    aucs = []
    for column in range(2):
        told = membership(
            *(np.array([one[column] for one in runs[1:]]) for runs in seen), CONFIDENCE
        )
        aucs.append(f"{told.auc:.2f} ({told.low:.2f}–{told.high:.2f})")
    number = f"{RECORDS} from {RECORDS + 1} records, by the"
    if kind:
        return [
            (f"{number} time to the next request", aucs[0]),
            (f"{number} birth times of the run's files", aucs[1]),
        ]
    return [("a record, by candidates planted around it and the time to the next request", aucs[0])]


def main() -> None:
    with ProcessPoolExecutor(
        2, get_context("spawn"), max_tasks_per_child=1
    ) as pool:  # each on a core of its own
        found = {
            clock: list(chain(*pool.map(attack, range(2), [clock] * 2)))
            for clock in ("off", "auto")
        }
    rows = [
        f"| {never[0]} | {before} | {never[1]} | {auto[1]} |"
        for before, never, auto in zip(BEFORE, *found.values(), strict=True)
    ]
    keep(
        "attacks.md",
        f"## Timing attacks on a run\n\n{where()}. `python benchmarks/timing.py`\n\n"
        f"AUC of telling two data sets apart that differ in one record (0.5: a guess), {RUNS} runs "
        f"over each, "
        f"intervals at {100 * CONFIDENCE:g} %. The generator is not trusted: it plants candidates, "
        f"times requests.\n\n"
        "| attack | before | now, without a clock | now, with the public clock |\n| --- | --- | "
        "--- | --- |\n" + "\n".join(rows),
    )


if __name__ == "__main__":
    main()
