"""A fit that is killed while its one release is drawn, or after it, ends as the fit that was never killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from adapters.trained.dp_gaussian import adapter
from pe.engine.execution import Surroundings
from pe.engine.start import resume_run, run_recipe
from tests.adapters.trained.dp_gaussian.test_adapter import private_file, recipe
from tests.durability import driver
from tests.durability.test_kill import shareable


def carry_out(folder: Path, killed: str = "") -> None:
    """Begin the run in `folder`/run, or go on with it, to its end, or until it would do `killed`."""
    os.environ["XDG_STATE_HOME"] = str(folder / "state")  # all folders hold the same records
    surroundings = Surroundings(noise=driver.SameNoise())

    def kill(*_args: Any, **_settings: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if killed:
        setattr(adapter, killed, kill)
    if (folder / "run").exists():
        resume_run(folder / "run", surroundings)
    else:
        run_recipe(recipe(private_file(folder), iterations=1), folder / "run", surroundings)


def ended(folder: Path, killed: str = "") -> int | None:
    process = driver.forked(carry_out, folder, killed)
    process.join(60)
    return process.exitcode


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    assert ended(folder) == 0
    return shareable(folder / "run")


@pytest.mark.parametrize("killed", ["noisy_sum", "gaussians_of"])
def test_a_fit_killed_around_its_release_ends_as_if_it_had_not_been(
    whole: dict[str, bytes], tmp_path: Path, killed: str
) -> None:
    assert ended(tmp_path, killed) == -signal.SIGKILL
    assert (tmp_path / "run" / "releases" / "fit-sums.npy").exists() == (killed == "gaussians_of")
    assert ended(tmp_path) == 0
    assert shareable(tmp_path / "run") == whole
    certificate = json.loads(whole["certificate.json"])
    assert {one["name"]: one["charges"] for one in certificate["releases"]} == {"fit/sums": 1, "histogram/1": 1}
