"""No time that the file system keeps of a finished run's shareable side tells how long private work took."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pe
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.engine.extend import extend_run
from pe.engine.report import write_report
from pe.errors import RunError
from pe.planning.build import object_kind
from pe.recipe.schema import Recipe
from pe.store.durable import publish
from pe.store.run import purge
from tests.cli import typed
from tests.durability import driver
from tests.durability.test_kill import shareable
from tests.generators import Mean

SLOW = 0.7


class SlowMean(Mean):
    """Takes long over private records alone, as if there were many."""

    def embed(self, samples: pe.Images) -> np.ndarray:
        if np.ptp(samples.pixels, axis=(1, 2)).any():  # what is generated has one shade
            time.sleep(SLOW)
        return super().embed(samples)


class SlowNoise(driver.SameNoise):
    """UNSAFE: makes every histogram take long."""

    def discrete_gaussian(self, shape: int, scale: float) -> np.ndarray:
        time.sleep(SLOW)
        return super().discrete_gaussian(shape, scale)


@pytest.fixture
def run(tmp_path: Path) -> pe.Run:
    return finish(tmp_path, Surroundings(api=driver.Counted(tmp_path / "asked"), embedding=Mean()))


def finish(folder: Path, surroundings: Surroundings) -> pe.Run:
    driver.make_private(folder / "private.npz")
    content = driver.recipe(folder / "private.npz").model_dump()
    content["embedding"] = {"kind": object_kind(surroundings.embedding)}
    return run_recipe(Recipe.parse(content, "the test"), folder / "run", surroundings)


def entries(run: pe.Run) -> Iterator[Path]:
    """All that may be shared in a run's directory."""
    return (path for path in run.folder.rglob("*") if "confidential" not in path.parts)


def births(run: pe.Run) -> dict[str, float]:
    """When each shareable file and folder was made, in seconds since 1970."""
    paths = sorted(map(str, entries(run)))
    told = subprocess.run(["stat", "--format=%.9W", *paths], check=True, capture_output=True, text=True).stdout
    found = dict(zip(paths, map(float, told.split()), strict=True))
    if not all(found.values()):
        pytest.skip("this file system keeps no birth times")
    return found


def changes(run: pe.Run) -> dict[str, float]:
    return {str(path): path.stat().st_ctime for path in entries(run)}


def began(run: pe.Run) -> int:
    return int((run.folder / "recipe.yaml").stat().st_mtime)


def levelled(run: pe.Run) -> bool:
    """Whether the run, its confidential folder and all that may be shared bear the time at which it began."""
    paths = [run.folder, *entries(run), *([run.confidential] if run.confidential.exists() else [])]
    return {path.stat().st_mtime_ns for path in paths} == {began(run) * 10**9}


def test_no_birth_time_of_a_release_tells_how_long_a_histogram_took(tmp_path: Path) -> None:
    surroundings = Surroundings(driver.Counted(tmp_path / "asked"), SlowMean(), noise=SlowNoise())
    started = time.time()
    run = finish(tmp_path, surroundings)
    private = (driver.ITERATIONS + 1) * SLOW
    assert time.time() - started > private
    released = [time for path, time in births(run).items() if Path(path).parent.name == "releases"]
    assert len(released) == driver.ITERATIONS
    for times in (released, list(changes(run).values())):
        assert max(times) - min(times) < private / 2
        assert min(times) > started + private
    assert levelled(run)


def test_releases_are_written_anew_and_nothing_else(run: pe.Run) -> None:
    before, inodes = shareable(run.folder), {path: path.lstat().st_ino for path in entries(run) if path.is_file()}
    publish(run.folder)
    assert shareable(run.folder) == before
    renewed = {path for path, inode in inodes.items() if path.lstat().st_ino != inode}
    assert renewed == set((run.folder / "releases").iterdir())


def test_what_is_done_with_a_finished_run_leaves_its_times_level(run: pe.Run, tmp_path: Path) -> None:
    assert levelled(run)
    around = Surroundings(driver.Counted(tmp_path / "asked"), Mean())
    np.savez(tmp_path / "test.npz", images=np.zeros((8, 4, 4, 1), np.uint8), labels=np.array(["a", "b"] * 4))
    commands = (
        ["status", "run"],
        ["evaluate", "run", "--test", "test.npz", "--metrics", "fidelity"],
        ["report", "run", "--confidential"],
    )
    for arguments in commands:
        done = typed.pe(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert levelled(run), arguments
    resume_run(run.folder, around)
    assert levelled(run)
    extend_run(run.folder, 4, 0.3, around)
    assert levelled(run)
    write_report(run.folder)
    assert levelled(run)
    purge(run)
    assert levelled(run)


def test_a_full_disk_is_one_sentence_and_the_run_is_as_it_was(run: pe.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shareable(run.folder)

    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(RunError, match=r"cannot be written \(No space left on device\).* then `pe resume` goes on"):
        publish(run.folder)
    assert shareable(run.folder) == before
