"""A fit killed at any instant, and gone on with, is the fit that was never killed, and counts all that ran."""

from __future__ import annotations

import json
import multiprocessing
import random
import sqlite3
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from pe.engine.execute import Surroundings, resume_run, run_recipe
from pe.privacy.noise import UnsafeSeededNoise
from tests.adapters.trained.diffusion.small import TRAINING, api, private_file, recipe
from tests.durability.test_kill import shareable

BLOCKS, KILLS = 6, 4
TRAINED = {"training": TRAINING | {"steps": BLOCKS, "block": 1}}


class Foreseen(UnsafeSeededNoise):
    """Draws by what is asked, and not by what was drawn before, which a crash forgets."""

    def __init__(self) -> None:
        super().__init__(0)

    def gaussian(self, shape: Any, scale: float) -> Any:
        return UnsafeSeededNoise(1).gaussian(shape, scale)

    def discrete_gaussian(self, shape: Any, scale: float) -> Any:
        return UnsafeSeededNoise(2).discrete_gaussian(shape, scale)

    def coins(self, count: int, rate: float) -> Any:
        return UnsafeSeededNoise(count).coins(count, rate)


def carry_out(folder: Path) -> None:
    """Begin the run in `folder`/run, or go on with it, to its end."""
    import torch

    torch.set_num_threads(1)
    run, surroundings = folder / "run", Surroundings(noise=Foreseen())
    if run.exists():
        resume_run(run, surroundings)
    else:
        run_recipe(
            recipe(private_file(folder), "pdp_diffusion", api=api("pdp_diffusion", **TRAINED)), run, surroundings
        )


def start(folder: Path) -> BaseProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.durability.test_fit_kill", "pe.engine.execute", "diffusers", "faiss", "opendp"]
    )
    process = context.Process(target=carry_out, args=(folder,))
    process.start()
    return process


@dataclass(frozen=True)
class Whole:
    files: dict[str, bytes]
    seconds: float


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    for _warm in range(2):
        folder = tmp_path_factory.mktemp("whole")
        started = time.monotonic()
        process = start(folder)
        process.join(120)
        assert process.exitcode == 0
        seconds = time.monotonic() - started
    return Whole(shareable(folder / "run"), seconds)


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_fit_killed_at_a_random_instant_ends_as_if_it_had_not_been(whole: Whole, tmp_path: Path, seed: int) -> None:
    process = start(tmp_path)
    time.sleep(random.Random(seed).uniform(seed / KILLS, (seed + 1) / KILLS) * whole.seconds)
    process.kill()
    process.join(60)
    seen = released(tmp_path / "run")
    again = start(tmp_path)
    again.join(120)
    assert again.exitcode == 0
    assert shareable(tmp_path / "run") == whole.files
    charges = charged(tmp_path / "run")
    assert {f"fit/training/{block + 1}" for block in range(BLOCKS)} == set(charges)
    assert all(charges[name] >= 1 for name in seen)
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert {one["name"]: one["charges"] for one in certificate["releases"]} == charges


def released(run: Path) -> set[str]:
    """What a killed run had let out: the files of its releases."""
    return {path.stem.replace("-", "/") for path in (run / "releases").glob("*.npy")} if run.exists() else set()


def charged(run: Path) -> dict[str, int]:
    connection = sqlite3.connect(run / "confidential" / "journal.sqlite")
    charges = Counter(name for (name,) in connection.execute("SELECT name FROM charges"))
    connection.close()
    return dict(charges)
