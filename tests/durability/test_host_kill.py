"""A run over a host that is killed asks, when it goes on, for nothing that it had received.

What was under way at the kill may have been drawn and billed; a host that answers at once has no name for it by which
it could be fetched later, so it is asked for again.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.planning.build import object_kind
from pe.recipe.schema import Recipe
from pe.store.run import Run
from pe.store.writer import read_journal
from tests.durability.driver import SameNoise, forked, make_private
from tests.endpoints.faults import Script
from tests.endpoints.hosts import HOSTS
from tests.endpoints.serving import serving
from tests.generators import Mean

CONCURRENCY, POPULATION = 2, 8
IN_FLIGHT = 2 * (CONCURRENCY + 1)
IMAGES = POPULATION * (1 + 1 + 1)


def carry_out(folder: Path, host: str, url: str) -> None:
    """Begin the run, or go on with it."""
    api = HOSTS[host].make(url, prompts="a", concurrency=CONCURRENCY)
    content = {
        "private": {"kind": "npz", "path": folder / "private.npz", "size": 4, "channels": 1, "classes": ["a", "b"]},
        "api": {"kind": object_kind(api)},
        "embedding": {"kind": "object:tests.generators.Mean"},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": POPULATION, "lookahead": 1},
    }
    surroundings = Surroundings(api=api, embedding=Mean(), noise=SameNoise())
    if (folder / "run").exists():
        resume_run(folder / "run", surroundings)
    else:
        run_recipe(Recipe.parse(content, "the test"), folder / "run", surroundings)


@pytest.mark.parametrize(
    "host", ["stability", *(pytest.param(one, marks=pytest.mark.slow) for one in HOSTS if one != "stability")]
)
def test_nothing_that_was_received_is_asked_for_again(tmp_path: Path, host: str) -> None:
    make_private(tmp_path / "private.npz")
    script = Script()
    stop_at = random.Random(host).randrange(4, IMAGES - 8)
    with serving(HOSTS[host].serve(script)) as url:
        process = forked(carry_out, tmp_path, host, url)
        while script.delivered < stop_at and process.is_alive():
            time.sleep(0.001)
        process.kill()
        process.join(60)
        before = script.delivered
        again = forked(carry_out, tmp_path, host, url)
        again.join(100)
        assert again.exitcode == 0
    with read_journal(Run.open(tmp_path / "run")) as journal:
        received = journal.totals().usage.images
    assert received == IMAGES
    assert stop_at <= before <= script.delivered <= IMAGES + IN_FLIGHT
