"""Timing attacks on a run as it is shipped: what can whoever answers its requests, or lists its directory, tell?

Two made-up data sets that differ in one record are run again and again, in turn, with a generator that is not
trusted: it plants candidates, and notes when it is asked. AUC is the chance that a run of the second data set took
longer than one of the first; 0.5 is a guess.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pe.data.images import Images
from pe.engine.execution import Surroundings
from pe.engine.start import run_recipe
from pe.evaluation.memorisation import Membership, membership
from pe.planning.build import object_kind
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, VariationRequest
from pe.privacy.register import STATE_HOME
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.store.places import CONFIDENTIAL

Pixels = npt.NDArray[np.uint8]
Seen = tuple[float, float]
"""Of one run: seconds to the next request, and seconds between the births of its first and its last file."""

CONFIDENCE = 0.999
_SIDE, _RECORDS = 28, 256


@dataclass(frozen=True)
class Attack:
    """An attack, and how it fared.

    Attributes:
        name: what is told apart, and by what.
        found: AUC with its interval, at CONFIDENCE.
    """

    name: str
    found: Membership

    @property
    def works(self) -> bool:
        """Whether it tells the two data sets apart, beyond chance."""
        return not self.found.low <= 0.5 <= self.found.high


@dataclass
class Untrusted:
    """A generator on another machine, as far as the engine knows.

    Attributes:
        planted: an image around which half of its samples lie; None: none do.
        times: when it was asked, and when it had answered, in seconds.
    """

    planted: Pixels | None = None
    times: list[tuple[float, float]] = field(default_factory=list)

    info: ClassVar[PluginInfo] = PluginInfo(hosts=("untrusted.invalid",))
    capabilities: ClassVar[Capabilities] = Capabilities(max_chunk=2**16)

    def random_api(self, request: RandomRequest) -> Answer:
        """Noise, and the planted image with one pixel changed."""
        return self._answer(len(request), time.perf_counter())

    def variation_api(self, request: VariationRequest) -> Answer:
        """The same again."""
        return self._answer(len(request), time.perf_counter())

    def _answer(self, count: int, asked: float) -> Answer:
        images = np.random.default_rng(1).integers(0, 256, (count, _SIDE, _SIDE, 1), dtype=np.uint8)
        if self.planted is not None:
            near = images[: count // 2]
            near[:] = self.planted
            near.reshape(len(near), -1)[np.arange(len(near)), np.arange(len(near)) % _SIDE**2] ^= 1
        self.times.append((asked, time.perf_counter()))
        return Answer(Images(images))

    @property
    def waited(self) -> float:
        """Seconds from the answer to RANDOM_API to the next request."""
        return self.times[1][0] - self.times[0][1]


def timing_attacks(runs: int, clock: str = "auto", progress: Progress | None = None) -> list[Attack]:
    """The attacks, each with `runs` runs over each data set.

    Args:
        runs: ≥ 1; 100 give an interval of about ±0.14.
        clock: the recipe's `privacy.public_clock`; with "never" the attacks show what it is for.
        progress: told of runs.
    """
    progress = progress or Progress()
    return [*planted_candidates(runs, clock, progress), *one_record_more(runs, clock, progress)]


def planted_candidates(runs: int, clock: str, progress: Progress) -> list[Attack]:
    """A record against another in its place, by candidates that are planted around it."""
    records = _records()
    suspect = records[-1]
    others = np.concatenate([records[:-1], 255 - records[:1]])
    with progress.task("a run with planted candidates", 2 * runs) as task:
        seen = _observe((others, records), runs, clock, suspect, lambda: task.advance(1))
    return [Attack("a record, by candidates planted around it and the time to the next request", _auc(seen, 0))]


def one_record_more(runs: int, clock: str, progress: Progress) -> list[Attack]:
    """A block of records that is full, and one record more, which needs another block."""
    records = _records()
    with progress.task("a run with one record more", 2 * runs) as task:
        seen = _observe((records[:-1], records), runs, clock, None, lambda: task.advance(1))
    number = f"{_RECORDS} from {_RECORDS + 1} records"
    return [
        Attack(f"{number}, by the time to the next request", _auc(seen, 0)),
        Attack(f"{number}, by the birth times of the run's files", _auc(seen, 1)),
    ]


def _records() -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (_RECORDS + 1, _SIDE, _SIDE, 1), dtype=np.uint8)


def _auc(seen: tuple[list[Seen], list[Seen]], kind: int) -> Membership:
    first, second = (np.array([one[kind] for one in runs]) for runs in seen)
    return membership(first, second, CONFIDENCE)


def _observe(
    data: tuple[Pixels, Pixels], runs: int, clock: str, planted: Pixels | None, done: Callable[[], None]
) -> tuple[list[Seen], list[Seen]]:
    """What is seen of `runs` runs over each data set, in turn, after one over each that is not looked at."""
    seen: tuple[list[Seen], list[Seen]] = [], []
    with _own_register() as folder:
        paths = [folder / name for name in ("first.npz", "second.npz")]
        for path, images in zip(paths, data, strict=True):
            np.savez(path, images=images)
        turns = list(zip(paths, seen, strict=True))
        for number in range(runs + 1):
            for path, found in turns:
                one = _run(path, folder / f"{path.stem}-{number}", clock, Untrusted(planted))
                if number:
                    found.append(one)
                    done()
            turns.reverse()  # so that neither is always the second
    return seen


@contextmanager
def _own_register() -> Iterator[Path]:
    """A folder for the runs, and meanwhile a register of data sets of their own: made-up records belong in nobody's."""
    before = os.environ.get(STATE_HOME)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[STATE_HOME] = folder
        try:
            yield Path(folder)
        finally:
            os.environ.pop(STATE_HOME)
            if before is not None:
                os.environ[STATE_HOME] = before


def _run(private: Path, out: Path, clock: str, generator: Untrusted) -> Seen:
    attacked: dict[str, Any] = {"embedding": {"features": "gradients", "size": 56}, "population": 256}  # a slow block
    if generator.planted is not None:
        attacked = {"embedding": {"features": "pixels"}, "population": 2000}  # a long search
    budget = private.with_name("budget.json")  # of both data sets, which share records
    source = {"kind": "npz", "path": private, "size": _SIDE, "channels": 1, "classes": [], "declared_size": _RECORDS}
    content = {
        "private": {**source, "ledger_file": budget},
        "api": {"kind": object_kind(generator), "price": {"image": 0}},
        "embedding": {"kind": "pixels", "batch_size": _RECORDS, **attacked["embedding"]},
        "privacy": {"noise_multiplier": 10, "delta": 1e-5, "public_clock": clock},
        "evolution": {"iterations": 1, "population": attacked["population"], "lookahead": 0},
    }
    run = run_recipe(Recipe.parse(content, "pe audit"), out, Surroundings(api=generator))
    budget.unlink()  # so that no run has more to read than the one before
    return generator.waited, _spread([path for path in run.folder.rglob("*") if CONFIDENTIAL not in path.parts])


def _spread(paths: Sequence[Path]) -> float:
    """Seconds between the first and the last birth of files; 0 where the system tells none."""
    command = ["stat", "--format=%.W", *map(str, paths)]  # Python tells no birth time on Linux
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603
    births = [float(line) for line in told.split() if line[0].isdigit()]
    return max(births, default=0.0) - min(births, default=0.0)
