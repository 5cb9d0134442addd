"""No time that the file system keeps of a finished run's shareable side tells how long private work
took.
"""

import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from pe.engine.execution import RunContext, resume_run
from pe.engine.extend import extend_run
from pe.engine.report import write_report
from pe.privacy.noise import SystemNoise
from pe.store.run import purge
from tests.durability.test_damage import pe as command
from tests.generators import Mean, Shades
from tests.store.conftest import LABELS, make

ITERATIONS, SLOW = 3, 0.3


class SlowMean(Mean):
    """Takes long over private records alone, as if there were many."""

    def embed(self, samples):
        if np.ptp(samples.pixels, axis=(1, 2)).any():  # what is generated has one shade
            time.sleep(SLOW)
        return super().embed(samples)


def entries(run):
    """All that may be shared in a run's directory."""
    return [path for path in run.folder.rglob("*") if "confidential" not in path.parts]


def births(run):
    """When each shareable file and folder was made, in seconds since 1970."""
    paths = sorted(map(str, entries(run)))
    told = subprocess.run(
        ["stat", "--format=%.9W", *paths], check=True, capture_output=True, text=True
    ).stdout
    found = dict(zip(paths, map(float, told.split()), strict=True))
    if not all(found.values()):
        pytest.skip("this file system keeps no birth times")
    return found


def levelled(run):
    """Whether the run, its confidential folder and all that may be shared bear the time at which it
    began.
    """
    paths = [run.folder, *entries(run), *([run.confidential] if run.confidential.exists() else [])]
    began = int((run.folder / "recipe.yaml").stat().st_mtime)
    return {path.stat().st_mtime_ns for path in paths} == {began * 10**9}


def test_no_birth_time_of_a_release_tells_how_long_a_histogram_took(tmp_path, monkeypatch):
    drawn = SystemNoise.discrete_gaussian
    monkeypatch.setattr(
        SystemNoise, "discrete_gaussian", lambda *given: (time.sleep(SLOW), drawn(*given))[1]
    )
    started = time.time()
    run = make(tmp_path, ("a", "b"), embedding=SlowMean(), iterations=ITERATIONS)
    private = (ITERATIONS + 1) * SLOW
    assert time.time() - started > private
    released = [time for path, time in births(run).items() if Path(path).parent.name == "releases"]
    assert len(released) == ITERATIONS
    for times in (released, [path.stat().st_ctime for path in entries(run)]):
        assert max(times) - min(times) < private / 2
        assert min(times) > started + private
    assert levelled(run)


def test_what_is_done_with_a_finished_run_leaves_its_times_level(run, tmp_path):
    assert levelled(run)
    np.savez(
        tmp_path / "test.npz", images=np.zeros((8, 4, 4, 1), np.uint8), labels=np.array(LABELS * 2)
    )
    test = tmp_path / "test.npz"
    for words in (
        ("view", "--text"),
        ("evaluate", "--test", test, "--metrics", "fidelity"),
        ("view", "--write", "--confidential"),
    ):
        assert command(words[0], run.folder, *words[1:]) == 0
        assert levelled(run), words
    around = RunContext(Shades(), Mean())
    steps = (
        lambda: resume_run(run.folder, around),
        lambda: extend_run(run.folder, 4, 0.3, around),
        lambda: write_report(run.folder),
        lambda: purge(run),
    )
    for step in steps:
        step()
        assert levelled(run)
