"""`limits.max_seconds` counts the time in which the generator is asked, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import pe
from pe.errors import LimitReached
from tests.durability.driver import make_private
from tests.generators import Mean, Shades

SETTINGS = {"epsilon": 5.0, "delta": 1e-5, "population": 8, "iterations": 1, "lookahead": 0}
LIMIT = 1.5


class SlowMean(Mean):
    """Takes longer than the limit over private records, and over made-up ones, of which there are two blocks."""

    def embed(self, samples: pe.Images) -> np.ndarray:
        if np.ptp(samples.pixels, axis=(1, 2)).any():  # what is generated has one shade
            time.sleep(LIMIT / 2 + 0.2)
        return super().embed(samples)


class SlowShades(Shades):
    """Takes a share of the limit over every request."""

    def __init__(self, share: float, **settings: int) -> None:
        super().__init__(**settings)
        self._seconds = share * LIMIT

    def random_api(self, request: pe.RandomRequest) -> pe.Answer:
        time.sleep(self._seconds)
        return super().random_api(request)


def evolve(folder: Path, api: Shades, embedding: Mean, resume: bool = False) -> pe.Run:
    if not resume:
        make_private(folder / "private.npz")
    data = pe.ImageNpz(folder / "private.npz", size=4, channels=1, classes=["a", "b"])
    return pe.evolve(data, api, embedding=embedding, out=folder / "run", resume=resume, max_seconds=LIMIT, **SETTINGS)


def test_private_work_that_takes_longer_than_the_limit_does_not_reach_it(tmp_path: Path) -> None:
    assert len(evolve(tmp_path, Shades(), SlowMean()).synthetic) == 8


def test_a_generator_that_takes_longer_reaches_it_and_another_process_goes_on(tmp_path: Path) -> None:
    with pytest.raises(LimitReached, match=r"limits\.max_seconds = 1\.5 is reached"):
        evolve(tmp_path, SlowShades(0.7, max_chunk=2), Mean())
    assert len(evolve(tmp_path, SlowShades(0, max_chunk=2), Mean(), resume=True).synthetic) == 8


def test_requests_that_are_under_way_at_once_count_once(tmp_path: Path) -> None:
    assert len(evolve(tmp_path, SlowShades(0.4, max_chunk=2, concurrency=4), Mean()).synthetic) == 8
