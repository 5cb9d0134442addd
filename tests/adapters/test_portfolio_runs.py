"""Runs of several generators: what they cost, and that a kill changes nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pe.data.samples import GENERATOR
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.engine.extend import extend_run
from pe.errors import LimitReached, RecipeError
from pe.planning.build import price_of, set_up_generator
from pe.planning.forecast import forecast
from pe.plugins.protocols import Usage
from pe.store.run import purge
from pe.store.writer import read_journal
from tests.adapters.test_portfolio import PEN, carry_out, makers, recipe, web
from tests.durability.driver import SameNoise, forked
from tests.durability.test_kill import charged, shareable
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import SIDE, OpenAIServer
from tests.endpoints.serving import serving
from tests.generators import Mean

PRICED: dict[str, Any] = {"price": {"call": 0.25, "image": 0.5}}
SMALL = {"iterations": 1, "population": 60, "lookahead": 0, "measure_degree": "never"}


def test_each_generator_costs_what_its_own_price_says(tmp_path: Path) -> None:
    with serving(OpenAIServer(Script(), side=SIDE)) as url:
        limits = {"max_cost": 100.0}
        given = recipe(tmp_path, PEN, web(url, **PRICED), explore=0.3, evolution=SMALL, limits=limits)
        planned = forecast(given, *set_up_generator(given.api)[:1])
        run = carry_out(given, tmp_path)
    with read_journal(run) as journal:
        rows = [row.usage for phase in journal.phases() for row in journal.chunks(phase)]
        spent = journal.totals().usage
    of_web = sum(int(np.count_nonzero(one == "web")) for one in makers(run))
    calls = sum(usage.calls for usage in rows if usage.cost)
    assert price_of(given).of(spent) == pytest.approx(0.5 * of_web + 0.25 * calls)
    assert 0 < sum(usage.images for usage in rows if usage.cost) == of_web < spent.images == 120
    assert planned.cost_at_least == 0
    assert planned.cost is not None
    assert spent.cost <= planned.cost <= 0.75 * 120
    assert any("Each generator has its own price" in warning for warning in planned.warnings)


def test_the_limit_holds_on_what_was_really_used(tmp_path: Path) -> None:
    with serving(OpenAIServer(Script(), side=SIDE)) as url:
        given = recipe(tmp_path, PEN, web(url, **PRICED), evolution=SMALL, limits={"max_cost": 20.0})
        with pytest.raises(LimitReached, match=r"limits\.max_cost = 20 USD is reached"):
            carry_out(given, tmp_path)
        raised = recipe(tmp_path, PEN, web(url, **PRICED), evolution=SMALL, limits={"max_cost": 60.0})
        run = resume_run(tmp_path / "run", Surroundings(embedding=Mean()), raised)
    with read_journal(run) as journal:
        assert 18 < journal.totals().usage.cost < 60


def test_prices_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    limits = {"max_cost": 3}
    euros = PEN | {"price": {"call": 1, "currency": "EUR"}}
    with pytest.raises(RecipeError, match=r"api\.of\.1\.price is given, so limits\.max_cost must be too"):
        recipe(tmp_path, PEN, PEN | PRICED)
    both = {**recipe(tmp_path, PEN | PRICED, PEN, limits=limits).api.model_dump(), "price": {"call": 1}}
    with pytest.raises(RecipeError, match=r"api\.price and api\.of\.0\.price are given"):
        recipe(tmp_path, limits=limits, api=both)
    with pytest.raises(RecipeError, match=r"prices are in EUR and USD: state all of them in one currency"):
        price_of(recipe(tmp_path, euros, PEN | PRICED, limits=limits))
    with pytest.raises(RecipeError, match=r"api\.of\.0: unknown key 'price\.cal'"):
        recipe(tmp_path, PEN | {"price": {"cal": 1}}, PEN, limits=limits)


def test_the_next_request_is_foreseen_at_the_dearest_price(tmp_path: Path) -> None:
    tokens = PEN | {"price": {"million_tokens": 2}}
    price = price_of(recipe(tmp_path, PEN | PRICED, tokens, PEN, limits={"max_cost": 3}))
    assert price.of(Usage(1, 1, cost=0.125)) == 0.125
    assert price.of_next(Usage(4, 4, cost=3.0), calls=1, images=2) == pytest.approx(1.25)
    assert price.of_next(Usage(4, 4, 4_000_000, cost=3.0), calls=1, images=2) == pytest.approx(1.25 + 4)
    assert price.least_of(Usage(3, 3)) == 0
    assert price.has_tokens
    assert not price.free


GLYPHS: dict[str, Any] = {"kind": "glyphs", "size": 8, "texts": {"a": ["1", "I"], "b": ["0"]}}


def families(folder: Path, **changes: Any) -> Any:
    one, other = GLYPHS | {"stroke": [0.05, 0.06]}, GLYPHS | {"stroke": [0.15, 0.17]}
    evolution = {"iterations": 3, "population": 40, "lookahead": 2, "reuse_lookahead": True}
    return recipe(folder, one, other, explore=0.2, evolution=evolution, **changes)


def carry_on(folder: Path, alone: bool = False) -> None:
    """Begin the run of all generators, or of one `alone`, or go on with it."""
    surroundings = Surroundings(embedding=Mean(), noise=SameNoise())
    if (folder / "run").exists():
        resume_run(folder / "run", surroundings)
    else:
        run_recipe(families(folder, **({"api": GLYPHS} if alone else {})), folder / "run", surroundings)


def test_a_run_that_was_killed_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    forked(carry_on, whole).join(60)
    for sign in ("run/confidential/chunks/lookahead-1-*.chunk", "run/populations/001"):
        process = forked(carry_on, broken)
        while process.is_alive() and not any(broken.glob(sign)):
            time.sleep(0.001)
        assert process.is_alive()
        process.kill()
        process.join(60)
    again = forked(carry_on, broken)
    again.join(60)
    assert again.exitcode == 0
    assert shareable(broken / "run") == shareable(whole / "run")
    last = np.load(whole / "run" / "populations" / "003" / f"condition.{GENERATOR}.npy")
    assert set(last) == {"glyphs-1", "glyphs-2"}


def test_several_generators_charge_what_one_does(tmp_path: Path) -> None:
    found = []
    for alone in (False, True):
        folder = tmp_path / str(alone)
        folder.mkdir()
        forked(carry_on, folder, alone).join(60)
        found.append(charged(folder))
    assert found[0] == found[1]


def test_a_key_of_a_generator_in_a_run_of_somebody_else_is_named_again(tmp_path: Path) -> None:
    with serving(OpenAIServer(Script(), side=SIDE)) as url:
        run = carry_out(recipe(tmp_path, PEN, web(url), evolution=SMALL), tmp_path)
        purge(run)
        surroundings = Surroundings(embedding=Mean())
        with pytest.raises(RecipeError, match=rf"--set 'api\.of\.1\.base_url={url}/v1'|--set api\.of\.1\.base_url="):
            extend_run(run.folder, 6, 0.5, surroundings)
        more = extend_run(run.folder, 6, 0.5, surroundings, (f"api.of.1.base_url={url}/v1",))
    with np.load(more) as found:
        assert found["images"].shape == (6, SIDE, SIDE, 3)
