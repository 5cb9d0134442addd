"""A run over an endpoint that is killed asks, when it goes on, for nothing that it had received."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.recipe.schema import Recipe
from pe.store.run import Run
from pe.store.writer import read_journal
from tests.durability.driver import SameNoise, forked, make_private
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import SIDE, OpenAIServer
from tests.endpoints.serving import serving
from tests.generators import Mean

N, CONCURRENCY, POPULATION = 2, 4, 40
IN_FLIGHT = 2 * (CONCURRENCY + 1) * N
TRIED = 16
IMAGES = TRIED + POPULATION * (1 + 2 + 1)
TRYING, EVOLVING = (2, TRIED), (TRIED, IMAGES - 8)


def carry_out(folder: Path, url: str) -> None:
    """Begin the run, or go on with it."""
    api = {
        "kind": "openai_images",
        "model": "m",
        "prompts": "a",
        "image_size": SIDE,
        "n": N,
        "degree_field": "strength",
        "concurrency": CONCURRENCY,
    }
    private = {"kind": "npz", "path": folder / "private.npz", "size": 4, "channels": 1, "classes": ["a", "b"]}
    content = {
        "private": private,
        "api": api | {"base_url": f"{url}/v1", "key_env": None},
        "embedding": {"kind": "object:tests.generators.Mean"},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": POPULATION, "lookahead": 2, "measure_degree": "always"},
    }
    surroundings = Surroundings(embedding=Mean(), noise=SameNoise())
    if (folder / "run").exists():
        resume_run(folder / "run", surroundings)
    else:
        run_recipe(Recipe.parse(content, "the test"), folder / "run", surroundings)


@pytest.mark.parametrize(("seed", "span"), [(0, TRYING), (1, TRYING), (2, EVOLVING), (3, EVOLVING)])
def test_nothing_that_was_received_is_asked_for_again(tmp_path: Path, seed: int, span: tuple[int, int]) -> None:
    make_private(tmp_path / "private.npz")
    script = Script()
    stop_at = random.Random(seed).randrange(*span)
    with serving(OpenAIServer(script, heeds="strength")) as url:
        process = forked(carry_out, tmp_path, url)
        while script.delivered < stop_at and process.is_alive():
            time.sleep(0.001)
        process.kill()
        process.join(60)
        before = script.delivered
        again = forked(carry_out, tmp_path, url)
        again.join(100)
        assert again.exitcode == 0
    run = Run.open(tmp_path / "run")
    with read_journal(run) as journal:
        received = journal.totals().usage.images
    assert len(run.synthetic) == POPULATION
    assert received == IMAGES
    assert stop_at <= before <= script.delivered <= IMAGES + IN_FLIGHT
