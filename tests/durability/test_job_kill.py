"""A run over a host that answers by jobs, killed while it waits for them, pays for none of them twice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.planning.build import object_kind
from pe.recipe.schema import Recipe
from pe.store.run import Run
from pe.store.writer import read_journal
from tests.durability.driver import SameNoise, forked, make_private
from tests.endpoints.job_hosts import SERVERS, generator
from tests.endpoints.serving import serving
from tests.generators import Mean

POPULATION, CONCURRENCY = 8, 3
IMAGES = 2 * POPULATION


def carry_out(folder: Path, url: str, kind: str) -> None:
    """Begin the run, or go on with it."""
    api = generator(kind, url, folder, concurrency=CONCURRENCY, timeout=20.0)
    surroundings = Surroundings(api=api, embedding=Mean(), noise=SameNoise())
    content = {
        "private": {"kind": "npz", "path": folder / "private.npz", "size": 4, "channels": 1, "classes": ["a", "b"]},
        "api": {"kind": object_kind(api)},
        "embedding": {"kind": object_kind(surroundings.embedding)},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": POPULATION, "lookahead": 0},
    }
    if (folder / "run").exists():
        resume_run(folder / "run", surroundings)
    else:
        run_recipe(Recipe.parse(content, "the test"), folder / "run", surroundings)


@pytest.mark.parametrize(
    "kind", ["comfyui", *(pytest.param(one, marks=pytest.mark.slow) for one in SERVERS if one != "comfyui")]
)
def test_a_job_that_a_killed_run_waited_for_is_not_submitted_again(tmp_path: Path, kind: str) -> None:
    held = {"comfyui": (2, POPULATION + 3), "fal": (2,)}  # in S_0; in S_1, unless it is said otherwise
    make_private(tmp_path / "private.npz")
    server = SERVERS[kind]()
    with serving(server) as url:
        for finished in held.get(kind, (POPULATION + 3,)):
            server.finished = finished
            process = forked(carry_out, tmp_path, url, kind)
            while server.held < CONCURRENCY and process.is_alive():
                time.sleep(0.01)
            process.kill()
            process.join(60)
            assert server.held == CONCURRENCY
        server.finished = float("inf")
        again = forked(carry_out, tmp_path, url, kind)
        again.join(100)
        assert again.exitcode == 0
    run = Run.open(tmp_path / "run")
    with read_journal(run) as journal:
        spent = journal.totals()
    assert len(run.synthetic) == POPULATION
    assert server.submitted.total() == len(server.jobs) == IMAGES
    assert (spent.usage.calls, spent.usage.images) == (IMAGES, IMAGES)
