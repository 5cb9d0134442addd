"""A run over an endpoint measures whether the server heeds the degree and the parent, once, before all else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from pe.cli.status import status
from pe.engine.execution import Surroundings
from pe.engine.start import resume_run, run_recipe, stored_recipe
from pe.errors import APIError, LimitReached
from pe.planning.build import set_up_generator
from pe.planning.forecast import forecast
from pe.planning.measuring import IMAGES, PARENTS
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.report.shareable import shareable_report
from pe.store.run import Run
from pe.store.writer import read_journal
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import SIDE, OpenAIServer
from tests.endpoints.sd_server import SDServer
from tests.endpoints.serving import serving

POPULATION, DEGREES = 10, [0.6, 0.3]


class Told(Progress):
    """Keeps what it is warned of."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def recipe(folder: Path, url: str, kind: str = "openai_images", **changes: Any) -> Recipe:
    settings = {"model": "m", "base_url": f"{url}/v1", "degree_field": "strength"}
    api = settings if kind == "openai_images" else {"base_url": url, "batch": 4, "several_parents": True}
    records = np.random.default_rng(0).integers(0, 255, (60, SIDE, SIDE, 3)).astype(np.uint8)
    np.savez(folder / "private.npz", images=records, labels=np.array(["a", "b"] * 30))
    content = {
        "private": {"kind": "npz", "path": folder / "private.npz", "size": SIDE, "classes": ["a", "b"]},
        "api": {"kind": kind, "prompts": "a", "image_size": SIDE, "key_env": None, "price": {"image": 0.1}} | api,
        "embedding": {"kind": "pixels", "size": 8},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"population": POPULATION, "degree": DEGREES} | changes.get("evolution", {}),
        "limits": {"max_cost": 100} | changes.get("limits", {}),
    }
    return Recipe.parse(content, "the test")


def images(folder: Path) -> int:
    with read_journal(Run.open(folder / "run")) as journal:
        return journal.totals().images


def carry_out(wanted: Recipe, folder: Path) -> list[str]:
    """Run it; the warnings."""
    told = Told()
    run_recipe(wanted, folder / "run", Surroundings(progress=told))
    return told.warnings


def test_a_server_that_heeds_the_degree_is_told_as_measured(tmp_path: Path) -> None:
    script = Script()
    with serving(OpenAIServer(script, heeds="strength")) as url:
        wanted = recipe(tmp_path, url)
        carry_out(wanted, tmp_path)
        planned = forecast(wanted, set_up_generator(wanted.api)[0])
    run = Run.open(tmp_path / "run")
    assert run.degree is not None
    print(run.degree)
    assert run.degree["degree"] == "heeded"
    assert images(tmp_path) == script.delivered == IMAGES + 3 * POPULATION == planned.images.most
