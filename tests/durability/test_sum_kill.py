"""A fit that is killed while its one release is drawn, or after it, ends as the fit that was never killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from adapters.trained import dp_gaussian as gaussian
from adapters.trained import fit
from adapters.trained.central import Reading
from pe.engine.execution import Surroundings, resume_run, run_recipe
from tests.adapters.trained.dp_gaussian.test_adapter import private_file, recipe
from tests.durability import driver
from tests.durability.test_kill import shareable

KINDS: dict[str, dict[str, Any]] = {
    "dp_gaussian": {},
    "central_images": {"api": {"kind": "central_images", "fit": {"budget_share": 0.5}}},
}
RELEASE = {"dp_gaussian": "sums", "central_images": "central_images"}
STRUCK: dict[tuple[str, str], tuple[Any, str]] = {
    ("dp_gaussian", "during"): (gaussian, "noisy_sum"),
    ("dp_gaussian", "after"): (gaussian, "gaussians_of"),
    ("central_images", "during"): (fit, "noisy_sums"),
    ("central_images", "after"): (Reading, "images"),
}
"""What a fit would do at an instant, in its release or after it."""


def carry_out(folder: Path, kind: str, instant: str = "") -> None:
    """Begin the run in `folder`/run, or go on with it, to its end, or until it is killed at `instant`."""
    surroundings = Surroundings(noise=driver.SameNoise())

    def kill(*_args: Any, **_settings: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if instant:
        setattr(*STRUCK[kind, instant], kill)
    if (folder / "run").exists():
        resume_run(folder / "run", surroundings)
    else:
        run_recipe(recipe(private_file(folder), iterations=1, **KINDS[kind]), folder / "run", surroundings)


def ended(folder: Path, kind: str, instant: str = "") -> int | None:
    process = driver.forked(carry_out, folder, kind, instant)
    process.join(60)
    return process.exitcode


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def whole(kind: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    assert ended(folder, kind) == 0
    return shareable(folder / "run")


@pytest.mark.parametrize("instant", ["during", "after"])
def test_a_fit_killed_around_its_release_ends_as_if_it_had_not_been(
    kind: str, whole: dict[str, bytes], tmp_path: Path, instant: str
) -> None:
    assert ended(tmp_path, kind, instant) == -signal.SIGKILL
    released = tmp_path / "run" / "releases" / f"fit-{RELEASE[kind]}.npy"
    assert released.exists() == (instant == "after")
    assert ended(tmp_path, kind) == 0
    assert shareable(tmp_path / "run") == whole
    certificate = json.loads(whole["certificate.json"])
    charges = {one["name"]: one["charges"] for one in certificate["releases"]}
    assert charges == {f"fit/{RELEASE[kind]}": 1, "histogram/1": 1}
