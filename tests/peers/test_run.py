"""A whole run over each foreign server, killed on its way and resumed: nothing that was received is asked for again.

The run measures first whether the server heeds the degree, and stops where it does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from pe.store.run import Run
from pe.store.writer import read_journal
from tests.peers.conftest import Findings
from tests.peers.routes import Route

pytestmark = pytest.mark.timeout(1200)

POPULATION = 20
IMAGES = 2 * POPULATION + 16
"""S_0, a variation of each of its parents, and what measuring the degree takes."""

LABELS = ["3", "7"]


def recipe(route: Route, url: str, private: Path) -> dict[str, object]:
    shape = {"size": route.side, "channels": route.channels, "classes": LABELS}
    return {
        "private": {"kind": "npz", "path": str(private)} | shape,
        "api": route.recipe(url, tries=3, concurrency=2),
        "embedding": {"kind": "pixels"},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": POPULATION, "degree": 0.5, "measure_degree": "always"},
    }


def command(*arguments: str | Path) -> subprocess.Popen[bytes]:
    program = Path(sys.executable).with_name("pe")
    return subprocess.Popen([program, *arguments, "--quiet"], env=dict(os.environ), stderr=subprocess.PIPE)


def end_of(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Its status, and what it said."""
    _, said = process.communicate()
    return process.returncode, said.decode()


def test_a_run_that_is_killed_goes_on_and_asks_for_nothing_twice(
    route: Route, url: str, tmp_path: Path, findings: Findings
) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (60, route.side, route.side, route.channels)).astype(np.uint8)
    np.savez(tmp_path / "private.npz", images=images, labels=np.array(LABELS * 30))
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe(route, url, tmp_path / "private.npz")))
    run, chunks = tmp_path / "run", tmp_path / "run" / "confidential" / "chunks"
    first = command("run", tmp_path / "recipe.yaml", "--out", run)
    while first.poll() is None and not (chunks.is_dir() and len(list(chunks.iterdir())) >= 3):
        time.sleep(0.05)
    first.kill()
    status, said = end_of(first)
    assert status == -9, said
    status, said = end_of(command("resume", run))
    stopped = ""
    if not route.degree and (status or route.seed):  # one that ignores it and draws at random passes once in ten runs
        assert status == 2, said
        assert "does not heed the degree" in said or "mixes parents up" in said
        stopped = ", stopped for its degree, resumed all the same"
        status, said = end_of(command("resume", run, "--set", "evolution.measure_degree=never"))
    assert status == 0, said
    done = Run.open(run)
    with read_journal(done) as journal:
        received = journal.totals().usage.images
    findings[route.name]["a run of 40"] = f"killed, resumed, nothing asked twice{stopped}"
    assert len(done.synthetic) == POPULATION
    assert received == IMAGES
