"""A run over an endpoint tries once, before all else, whether variations are of their own parents."""

from __future__ import annotations

import json
from contextlib import nullcontext
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from pe.cli.watch import status
from pe.engine.execution import Surroundings, resume_run, run_recipe, stored_recipe
from pe.errors import APIError, LimitReached
from pe.planning.build import set_up_generator
from pe.planning.calls import IMAGES, PARENTS
from pe.planning.forecast import forecast
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.report.sections import shareable_report
from pe.store.export import examine
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


def recipe(folder: Path, url: str, **changes: dict[str, Any]) -> Recipe:
    changed = {"kind": "openai_images"} | changes.get("api", {})
    endpoint = {"base_url": url, "prompts": "a", "image_size": SIDE, "key_env": None, "price": {"image": 0.1}}
    kinds: dict[str, dict[str, Any]] = {
        "openai_images": endpoint | {"base_url": f"{url}/v1", "model": "m", "degree_field": "strength"},
        "sdapi": endpoint,
        "glyphs": {},
    }
    content = {
        "private": {"kind": "npz", "path": folder / "private.npz", "size": SIDE, "classes": ["a", "b"]},
        "api": kinds[changed["kind"]] | changed,
        "embedding": {"kind": "pixels", "size": 8},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"population": POPULATION, "degree": DEGREES} | changes.get("evolution", {}),
        "limits": {"max_cost": 100} | changes.get("limits", {}),
        "refusals": changes.get("refusals", {}),
    }
    return Recipe.parse(content, "the test")


def images(folder: Path) -> int:
    with read_journal(Run.open(folder / "run")) as journal:
        return journal.totals().usage.images


def carry_out(wanted: Recipe, folder: Path) -> list[str]:
    """Run it; what was warned of the parents."""
    told = Told()
    run_recipe(wanted, folder / "run", Surroundings(progress=told))
    return [warning for warning in told.warnings if "parents" in warning]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    records = np.random.default_rng(0).integers(0, 255, (60, SIDE, SIDE, 3)).astype(np.uint8)
    np.savez(tmp_path / "private.npz", images=records, labels=np.array(["a", "b"] * 30))
    return tmp_path


def test_a_server_that_varies_its_parents_is_told_as_tried(folder: Path) -> None:
    script = Script()
    with serving(OpenAIServer(script, heeds="strength")) as url:
        wanted = recipe(folder, url)
        planned = forecast(wanted, set_up_generator(wanted.api)[0])
        assert carry_out(wanted, folder) == []
    assert images(folder) == script.delivered == IMAGES + 3 * POPULATION == planned.images.most
    assert planned.cost == pytest.approx(0.1 * script.delivered)
    assert planned.calls is not None
    assert planned.calls.most == planned.images.most
    assert f"{'try':>3}{IMAGES:>7}" in str(planned)
    assert "first tried on 8 new samples, each varied at 0.3" in str(planned)
    assert {float(body["strength"]) for body in script.requests if "strength" in body} == {0.6, 0.3}
    run = Run.open(folder / "run")
    told = "of 8 variations of degree 0.3, 8 lie nearest to their own parents, and 0 lie with another's"
    assert (run.degree, planned.degree, planned.to_dict()["measured_by"]) == (told, "wording", IMAGES)
    assert told in unescape(shareable_report(run))
    assert told in " ".join(CliRunner().invoke(status, [str(run.folder)]).output.split())
    assert "degree.json" in [one["file"] for one in run.guarantee["covered"]]
    assert examine(run.folder)[1] == []


def test_one_that_ignores_them_stops_the_run_before_it_has_cost_much(folder: Path) -> None:
    script = Script()
    with serving(OpenAIServer(script)) as url:
        wanted = recipe(folder, url, limits={"max_concurrency": 1})
        sentence = (
            r"OpenAIImages does not vary the parents it is handed: of 8 variations of degree 0.3, [0-3] lie nearest"
        )
        for attempt in (lambda: carry_out(wanted, folder), lambda: resume_run(folder / "run", Surroundings())):
            with pytest.raises(APIError, match=sentence) as caught:
                attempt()
            assert f"pe resume {folder / 'run'} --set evolution.measure_degree=…` with `never` goes on" in str(
                caught.value
            )
            assert script.delivered == IMAGES
        assert Run.open(folder / "run").populations() == []
        resume_run(folder / "run", Surroundings(), stored_recipe(folder / "run", ("evolution.measure_degree=never",)))
    assert script.delivered == IMAGES + 3 * POPULATION


@pytest.mark.parametrize("before", ["heeded", "unknown", "ignored", "mixed up"])
def test_what_a_version_before_has_found_still_holds(folder: Path, before: str) -> None:
    with serving(OpenAIServer(Script(), heeds="strength")) as url:
        wanted = recipe(folder, url, limits={"max_images": IMAGES + 3})
        with pytest.raises(LimitReached):
            carry_out(wanted, folder)
        (folder / "run/degree.json").write_text(json.dumps({"degree": before, "told": "so"}))
        goes_on = nullcontext() if before in ("heeded", "unknown") else pytest.raises(APIError, match=r"is handed: so;")
        with goes_on:
            resume_run(folder / "run", Surroundings(), stored_recipe(folder / "run", ("limits.max_images=900",)))


@pytest.mark.parametrize(("takes", "batch"), [("list", 4), ("list", 8), ("first", 2), ("first", 8)])
def test_a_server_that_varies_the_first_of_several_parents_alone_stops_the_run(
    folder: Path, takes: str, batch: int
) -> None:
    script, evolution = Script(), {"degree": [0.6, 0.1]}
    with serving(SDServer(script, side=SIDE, takes=takes, spread=83)) as url:
        api = {"kind": "sdapi", "batch": batch, "several_parents": True}
        wanted = recipe(folder, url, api=api, evolution=evolution)
        if takes == "first":
            with pytest.raises(APIError, match=r"SDAPI does not vary the parents .* and [4-8] lie with another's"):
                carry_out(wanted, folder)
            assert script.delivered == IMAGES
        else:
            assert carry_out(wanted, folder) == []
            assert images(folder) == IMAGES + 3 * POPULATION


@pytest.mark.parametrize(
    ("api", "evolution", "measured"),
    [
        ({}, {}, True),
        ({}, {"degree": [0.5, 0.5]}, False),
        ({}, {"iterations": 0, "degree": 0.5}, False),
        ({}, {"measure_degree": "never"}, False),
        ({"degree_exact": True}, {}, False),
        ({"degree_exact": True}, {"measure_degree": "always"}, True),
        ({}, {"measure_degree": "always", "degree": [1.0, 0.0]}, False),
        ({"variation": "variations", "degree_field": None}, {}, False),
        ({"kind": "sdapi", "batch": 8}, {}, False),
        ({"kind": "sdapi", "batch": 8, "several_parents": True}, {"degree": [0.5, 0.5]}, True),
        ({"kind": "glyphs"}, {}, False),
    ],
)
def test_it_is_measured_where_the_plan_leans_on_what_nobody_has_shown(
    folder: Path, api: dict[str, Any], evolution: dict[str, Any], measured: bool
) -> None:
    wanted = recipe(folder, "http://localhost", api=api, evolution=evolution)
    planned = forecast(wanted, set_up_generator(wanted.api)[0])
    assert bool(planned.trial) == measured
    assert ("first tried" in str(planned)) == measured


def test_a_server_that_refuses_is_not_judged(folder: Path) -> None:
    script = Script(first=("",) * PARENTS + ("refusal",) * 4)
    with serving(OpenAIServer(script, heeds="strength")) as url:
        wanted = recipe(folder, url, limits={"max_concurrency": 1}, refusals={"retries": 0})
        (warning,) = carry_out(wanted, folder)
    assert warning == (
        "Whether OpenAIImages varies the parents it is handed is not known: 4 of 8 parents have a variation, not 5."
    )


def test_limits_hold_and_what_was_answered_is_not_asked_again(folder: Path) -> None:
    script = Script()
    with serving(OpenAIServer(script, heeds="strength")) as url:
        wanted = recipe(folder, url, limits={"max_images": PARENTS + 3, "max_cost": 100})
        with pytest.raises(LimitReached, match=r"3 of 8 samples of degree/0.3 are there; `pe resume"):
            carry_out(wanted, folder)
        assert script.delivered == PARENTS + 3
        page = CliRunner().invoke(status, [str(folder / "run")]).output
        assert "degree/0.3: 3 of 8 samples" in page
        resume_run(folder / "run", Surroundings(), stored_recipe(folder / "run", ("limits.max_images=200",)))
    assert script.delivered == IMAGES + 3 * POPULATION == images(folder)
