"""Several processes share the steps of DP-SGD: the same bits as of one, and none that outlives another's end."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.trained.diffusion import DPDM
from adapters.trained.dp_sgd.processes import Part, Processes
from adapters.trained.dp_sgd.training import Training
from adapters.trained.settings import DPSGD, FineTuning
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.errors import RecipeError, RunError
from pe.privacy.noise import SystemNoise, UnsafeSeededNoise
from tests.adapters.trained.diffusion.small import COUNT, PLAIN, counted, private_file, recipe, releases
from tests.adapters.trained.dp_sgd.models import SIDE, Showing, Weights
from tests.fake_cards import fake_cards

STEPS = 3
TRAINING = {"steps": STEPS, "block": 1, "expected_batch": COUNT, "draws": 2, "micro_batch": 5}


def gan(path: Path, processes: int) -> Any:
    training = TRAINING | {"processes": processes}
    return recipe(path, api={"kind": "dpgan", "device": "cpu", "training": training, "lesson": PLAIN})


class Foreseen(UnsafeSeededNoise):
    """Every step draws the same, other seeds for each of its micro-batches, whatever was drawn before a crash."""

    def __init__(self) -> None:
        super().__init__(0)
        self._asked = 0

    def discrete_gaussian(self, shape: Any, scale: float) -> Any:
        self._asked = 0
        return UnsafeSeededNoise(1).discrete_gaussian(shape, scale)

    def coins(self, count: int, rate: float) -> Any:
        self._asked += 1
        return UnsafeSeededNoise(self._asked).coins(count, rate)


class Noted(subprocess.Popen):  # type: ignore[type-arg]
    """A process that is remembered."""

    all: list[Noted]

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.all.append(self)


def test_two_processes_release_what_one_does_bit_by_bit_and_when_one_is_killed_the_fit_goes_on_from_the_last_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, surroundings = private_file(tmp_path), Surroundings(noise=Foreseen())
    whole = run_recipe(gan(path, 1), tmp_path / "whole", surroundings).folder

    monkeypatch.setattr(subprocess, "Popen", Noted)
    monkeypatch.setattr(Noted, "all", [], raising=False)
    shared, killing = tmp_path / "shared", Surroundings(noise=Foreseen())

    def kill() -> None:
        if len(blocks) == 2:
            Noted.all[0].kill()

    with (
        counted(Training, "block", kill) as blocks,
        pytest.raises(RunError, match=r"Process 2 of 2 of the training, on cpu, was ended by SIGKILL: .*pe resume"),
    ):
        run_recipe(gan(path, 2), shared, killing)
    assert [other.returncode for other in Noted.all] == [-9]
    drawn = sorted(file.name for file in (shared / "releases").iterdir())
    assert drawn == ["fit-training-1.npy", "fit-training-2.npy"]

    run = resume_run(shared, surroundings, gan(path, 1))
    assert len(Noted.all) == 1
    assert releases(run) == [(f"fit/training/{block + 1}", 1) for block in range(STEPS)]
    for name in (*drawn, "fit-training-3.npy"):
        assert (shared / "releases" / name).read_bytes() == (whole / "releases" / name).read_bytes()
    model = Path("model") / "generator.safetensors"
    assert (shared / model).read_bytes() == (whole / model).read_bytes()


STARTS = """
import time

import torch

from adapters.trained.dp_sgd.processes import _Process, Start

other = _Process.start(torch.device("cpu"))
other.connection.send(Start("cpu", 1))
print(other.popen.pid, flush=True)
time.sleep(600)
"""


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody waits for stays in the table as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_process_ends_with_the_one_that_started_it_though_that_was_killed() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    first = subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE, env=environment)
    assert first.stdout is not None
    other = int(first.stdout.readline())
    assert not gone(other)
    first.kill()
    first.communicate(timeout=120)
    deadline = time.monotonic() + 120
    while not gone(other) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert gone(other)


class Talking:
    """A loss whose library says what it sees, and then fails over it."""

    def draw(self, records: int, draws: int, shape: tuple[int, int, int], generator: torch.Generator) -> Any:
        return (torch.zeros(records, draws),)

    def __call__(self, model: Any, image: torch.Tensor, label: torch.Tensor, randomness: Any) -> torch.Tensor:
        print("a record", file=sys.stderr)
        warnings.warn("a record", stacklevel=1)
        logging.getLogger("a library").error("a record")
        raise ValueError("a record")


def test_what_a_library_says_over_a_record_reaches_nobody_but_the_process_that_started_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    processes = Processes([torch.device("cpu")])
    settings = DPSGD(steps=1, expected_batch=1, declared_size=1, draws=1, micro_batch=1, noise_multiplier=1.0)
    try:
        processes.assign((torch.nn.Linear(1, 1), Talking(), settings), torch.device("cpu"))
        part = Part(np.zeros((1, 2, 2, 1), np.uint8), np.zeros(1, np.int64), np.zeros(1, np.uint64))
        with pytest.raises(RuntimeError, match="ValueError: a record"):
            processes.total(torch.zeros(2), [[part]], lambda: torch.zeros(2, dtype=torch.int64))
    finally:
        processes.close()
    said = capfd.readouterr()
    assert "a record" not in said.out + said.err


def places(device: str | list[str], processes: int) -> list[str]:
    return [str(one) for one in DPDM(device=device, training=FineTuning(processes=processes))._places()]


def test_each_process_has_a_gpu_of_its_own() -> None:
    with fake_cards(3):
        assert places("auto", 2) == ["cuda:0", "cuda:1"]
        assert places(["cuda:2", "cuda:1"], 2) == ["cuda:2", "cuda:1"]
        with pytest.raises(RecipeError, match=r"training\.processes is 4, and device names 3 GPUs"):
            places("auto", 4)
    assert places("cpu", 3) == ["cpu"] * 3


def test_an_open_micro_batch_leaves_work_for_every_process() -> None:
    cpu = torch.device("cpu")
    settings = DPSGD(expected_batch=16, declared_size=100, noise_multiplier=1.0)
    for others, most in (((), 32), ((cpu,), 16), ((cpu, cpu, cpu), 8)):
        training = Training(Weights(), Showing(), settings, cpu, *others)
        assert training.micro_batch((SIDE, SIDE, 1), SystemNoise()) == most
