"""A fit killed at any instant, and gone on with, is the fit that was never killed, and counts all that ran."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.privacy.noise import UnsafeSeededNoise
from tests.adapters.trained import test_gan
from tests.adapters.trained.diffusion import test_dp_sad
from tests.adapters.trained.diffusion.small import PLAIN, PUBLIC, TRAINING, api, private_file, recipe
from tests.adapters.trained.dp_imgsyn.small import ALIGNMENT
from tests.adapters.trained.finetune.brought import write_checkpoint
from tests.durability.driver import forked
from tests.durability.test_kill import shareable

BLOCKS, KILLS = 6, 2
TRAINED = {"training": TRAINING | {"steps": BLOCKS, "block": 1}}
GAN = TRAINED | {"lesson": PLAIN, "device": "cpu"}
APIS = {
    "pdp_diffusion": api("pdp_diffusion", **TRAINED),
    "privimage": api("privimage", **TRAINED),
    "dp_feta": api("dp_feta", **TRAINED),
    "dp_sad": test_dp_sad.API | TRAINED,
    "finetune": {"kind": "finetune", "model": "checkpoint", "sampling": {"steps": 3}, "device": "cpu", **TRAINED},
    "dpgan": {"kind": "dpgan"} | test_gan.KINDS["dpgan"] | GAN,
    "privimage_gan": {"kind": "privimage_gan"} | test_gan.KINDS["privimage_gan"] | GAN,
    "dp_imgsyn": {"kind": "dp_imgsyn", "public": PUBLIC, "alignment": ALIGNMENT, "device": "cpu", **TRAINED},
    "central_images": {"kind": "central_images"},
    "dp_merf": {"kind": "dp_merf", "features": 20, "steps": 40, "batch": 16},
    "dp_mepf": {"kind": "dp_mepf", "side": 16, "stages": [1, 2], "steps": 40, "batch": 16},
}
STEPS = {f"fit/training/{block + 1}" for block in range(BLOCKS)}
RELEASES = dict.fromkeys(APIS, STEPS) | {
    "privimage": {"fit/semantics"} | STEPS,
    "privimage_gan": {"fit/semantics"} | STEPS,
    "dp_feta": {"fit/central_images", "fit/mean_features"} | STEPS,
    "dp_sad": {"fit/teacher/1", "fit/teacher/2"} | STEPS,
    "dp_imgsyn": {"fit/moments"} | STEPS,
    "central_images": {"fit/central_images"},
    "dp_merf": {"fit/mean_features"},
    "dp_mepf": {"fit/mean_features"},
}


class Foreseen(UnsafeSeededNoise):
    """Draws by what is asked, and not by what was drawn before, which a crash forgets."""

    def __init__(self) -> None:
        super().__init__(0)

    def discrete_gaussian(self, shape: Any, scale: float) -> Any:
        return UnsafeSeededNoise(2).discrete_gaussian(shape, scale)

    def coins(self, count: int, rate: float) -> Any:
        return UnsafeSeededNoise(count).coins(count, rate)


def carry_out(folder: Path, kind: str) -> None:
    """Begin the run in `folder`/run, or go on with it, to its end."""
    import torch

    torch.set_num_threads(1)
    os.chdir(folder)  # where `finetune` finds its checkpoint, by the same name in all folders
    run, surroundings = folder / "run", Surroundings(noise=Foreseen())
    if run.exists():
        resume_run(run, surroundings)
    else:
        write_checkpoint(folder / "checkpoint")
        run_recipe(recipe(private_file(folder), api=APIS[kind]), run, surroundings)


def fork_fits(orders: Connection) -> None:
    """Carry out one folder's run after the other, each in a fork, and tell its process and how that ended.

    What they import is imported here, once: torch, diffusers and timm take longer than such a fit, and would be all
    that most kills strike.
    """
    import timm  # noqa: F401
    from diffusers import DDIMScheduler, UNet2DModel  # noqa: F401

    while (order := orders.recv()) is not None:
        fit = multiprocessing.get_context("fork").Process(target=carry_out, args=order)
        fit.start()
        orders.send(fit.pid)
        fit.join()
        orders.send(fit.exitcode)


@pytest.fixture(scope="module")
def fits() -> Iterator[Connection]:
    """The other end of `fork_fits`."""
    ours, theirs = multiprocessing.Pipe()
    process = forked(fork_fits, theirs)
    yield ours
    ours.send(None)
    process.join(60)


def begin(fits: Connection, folder: Path, kind: str) -> int:
    """The process that carries out the run in `folder`."""
    fits.send((folder, kind))
    return received(fits)


def received(fits: Connection) -> int:
    """What `fork_fits` has to tell."""
    assert fits.poll(120)
    return int(fits.recv())


@dataclass(frozen=True)
class Whole:
    kind: str
    files: dict[str, bytes]
    seconds: float


@pytest.fixture(scope="module", params=APIS)
def whole(fits: Connection, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    begin(fits, folder, request.param)
    started = time.monotonic()
    assert received(fits) == 0
    return Whole(request.param, shareable(folder / "run"), time.monotonic() - started)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(KILLS))
def test_a_fit_killed_at_a_random_instant_ends_as_if_it_had_not_been(
    fits: Connection, whole: Whole, tmp_path: Path, seed: int
) -> None:
    fit = begin(fits, tmp_path, whole.kind)
    time.sleep(random.Random(seed).uniform(seed / KILLS, (seed + 1) / KILLS) * whole.seconds)
    with suppress(ProcessLookupError):  # quicker this time, and at its end
        os.kill(fit, signal.SIGKILL)
    assert received(fits) in (-signal.SIGKILL, 0)
    seen = released(tmp_path / "run")
    begin(fits, tmp_path, whole.kind)
    assert received(fits) == 0
    assert shareable(tmp_path / "run") == whole.files
    charges = charged(tmp_path / "run")
    assert set(charges) == RELEASES[whole.kind]
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
