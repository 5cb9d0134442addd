"""Several generators in one run: who makes what, in which requests, at what cost, and what is
refused.
"""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from adapters.portfolio import Portfolio
from pe.data.samples import GENERATOR, Conditions
from pe.engine.execution import RunContext, resume_run, run_recipe
from pe.errors import APIError, LimitReached, RecipeError
from pe.planning.forecast import differences, forecast
from pe.planning.parts import price_of, set_up_generator
from pe.plugins.protocols import RandomRequest, Usage, VariationRequest
from pe.recipe.schema import Recipe
from pe.store.writer import read_journal
from tests.durability.driver import make_private
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import SIDE, OpenAIServer
from tests.endpoints.serving import serving
from tests.generators import Mean

PEN: dict[str, Any] = {"kind": "glyphs", "size": SIDE, "channels": 3}
LABELS = ("a",) * 10 + ("b",) * 7


def web(url, **settings):
    given = {
        "kind": "openai_images",
        "name": "web",
        "base_url": f"{url}/v1",
        "key_env": None,
        "model": "m",
    }
    return (
        given
        | {"server": None, "prompts": "a {label}", "image_size": SIDE, "n": 2, "concurrency": 2}
        | settings
    )


def recipe(folder, *of, explore=0.05, **changes):
    make_private(folder / "private.npz")
    private = {
        "kind": "npz",
        "path": folder / "private.npz",
        "size": 4,
        "channels": 1,
        "classes": ["a", "b"],
    }
    content = {
        "private": private,
        "api": {"kind": "portfolio", "of": list(of), "explore": explore},
        "embedding": {"kind": "object:tests.generators.Mean"},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 2, "population": 60, "lookahead": 2, "measure_degree": "never"},
    }
    return Recipe.parse(content | changes, "the test")


def carry_out(given, folder):
    return run_recipe(given, folder / "run", RunContext(embedding=Mean()))


def makers(run):
    """Who made each sample, population by population."""
    return [np.asarray(population.conditions[GENERATOR]) for population in run.populations()]


def test_new_samples_are_dealt_out_by_public_shares_label_by_label():
    portfolio = Portfolio(
        of=[PEN | {"share": 1}, PEN | {"share": 2, "name": "more"}, PEN | {"share": 1}]
    )
    seeds = np.arange(400, dtype=np.uint64)
    labels = ("a",) * 200 + ("b",) * 200
    drawn = portfolio.draw_conditions(labels, seeds)[GENERATOR]
    for half in (drawn[:200], drawn[200:]):
        assert Counter(half.tolist()) == {"glyphs-1": 50, "more": 100, "glyphs-3": 50}
    assert drawn[:200].tolist() != sorted(drawn[:200])


def test_every_variation_is_made_by_the_parents_own_generator_from_its_own_conditions(tmp_path):
    script = Script()
    with serving(OpenAIServer(script, side=SIDE)) as url:
        run = carry_out(
            recipe(tmp_path, PEN, web(url), explore=0.0, evolution=SMALL | {"iterations": 2}),
            tmp_path,
        )
    first, *later = makers(run)
    for population, made in zip(run.populations()[1:], later, strict=True):
        assert (made == first[population.parents]).all()
        first = made
    for population in run.populations():
        drawn = np.asarray(population.conditions[GENERATOR]) == "glyphs"
        if (
            drawn.all() or not drawn.any()
        ):  # the votes have left one generator, and its conditions alone
            continue
        fonts, prompts = (
            np.asarray(population.conditions[name]) for name in ("glyphs.font", "web.prompt")
        )
        assert ((fonts != "") == drawn).all()
        assert set(prompts[~drawn].tolist()) <= {"a a", "a b"}
        assert not prompts[drawn].any()
        assert population.conditions["glyphs.parameters"][~drawn].max() == 0


def test_a_generator_that_died_out_comes_back_by_exploration():
    portfolio = Portfolio(of=[PEN, PEN | {"share": 3}], explore=0.2)
    conditions = Conditions({GENERATOR: np.full(4000, "glyphs-2")})
    ways = portfolio.ways_of(conditions, np.arange(4000, dtype=np.uint64), explores=True)
    assert np.bincount(ways, minlength=4) / 4000 == pytest.approx([0, 0.8, 0.05, 0.15], abs=0.02)
    same = portfolio.ways_of(conditions, np.arange(4000, dtype=np.uint64), explores=False)
    assert set(same) == {1}  # of a lookahead, none is new
    alone = [
        portfolio.ways_of(conditions.take([0]), np.array([i], np.uint64), True)[0]
        for i in range(100)
    ]
    assert alone == ways[:100].tolist()


def test_a_mixed_request_is_answered_as_its_parts_would_be():
    portfolio = Portfolio(of=[PEN, PEN | {"stroke": [0.1, 0.12]}])
    seeds = np.arange(len(LABELS), dtype=np.uint64)
    drawn = portfolio.draw_conditions(LABELS, seeds)
    whole = portfolio.random_api(RandomRequest(LABELS, seeds, drawn))
    for i in range(len(LABELS)):
        part = portfolio.random_api(
            RandomRequest(LABELS[i : i + 1], seeds[i : i + 1], drawn.take([i]))
        )
        np.testing.assert_array_equal(part.samples.array[0], whole.samples.array[i])
        assert (
            part.conditions[GENERATOR][0] == whole.conditions[GENERATOR][i] == drawn[GENERATOR][i]
        )
    varied = portfolio.variation_api(
        VariationRequest(whole.samples, LABELS, whole.conditions, seeds, 0.5)
    )
    assert varied.conditions[GENERATOR].tolist() == drawn[GENERATOR].tolist()
    stranger = Conditions({GENERATOR: np.full(len(LABELS), "gone")})
    with pytest.raises(
        APIError, match=r"made by 'gone', which is not in the portfolio \(glyphs-1, glyphs-2"
    ):
        portfolio.variation_api(VariationRequest(whole.samples, LABELS, stranger, seeds, 0.5))


def refusal(*of):
    with pytest.raises(RecipeError) as refused:
        Portfolio(of=list(of))
    return str(refused.value)


def test_generators_that_do_not_fit_together_are_refused_in_a_sentence():
    small = PEN | {"size": 8}
    assert "shape ('glyphs-1' has (16, 16, 3), 'glyphs-2' has (8, 8, 3))" in refusal(PEN, small)
    assert "two generators have the name 'a'" in refusal(PEN | {"name": "a"}, PEN | {"name": "a"})
    assert "'dpdm' is fitted on the private records" in refusal(PEN, {"kind": "dpdm"})
    assert "'portfolio' has generators of its own" in refusal(
        PEN, {"kind": "portfolio", "of": [PEN, PEN]}
    )
    with pytest.raises(RecipeError, match="glyphs-1: No font"):
        Portfolio(of=[PEN, PEN]).check_labels(["a", "中"])


@pytest.mark.parametrize(
    ("api", "pool", "pen"),
    [
        ("portfolio, of: [{kind: glyphs}, {kind: public_images, path: pool}]", "of.1", "of.0"),
        (
            "caption_then_draw, captions: {kind: public_texts, path: pool}, draw: {kind: glyphs}",
            "captions",
            "draw",
        ),
    ],
)
def test_paths_machine_settings_and_single_keys_of_members_are_those_of_generators(
    tmp_path, api, pool, pen
):
    place = tmp_path / "recipe.yaml"
    place.write_text(
        f"private: {{kind: mnist}}\nprivacy: {{epsilon: 1, delta: 1.0e-6}}\napi: {{kind: {api}}}\n"
    )
    before = Recipe.load(place)
    assert str(tmp_path.resolve() / "pool") in before.dump()
    machine = (f"api.{pool}.path=elsewhere", f"api.{pen}.price.call=1", "limits.max_cost=3")
    assert differences(before, Recipe.load(place, machine)) == []
    assert differences(before, Recipe.load(place, (f"api.{pen}.size=4",))) == [
        f"api.{pen}.size: None → 4"
    ]


PRICED: dict[str, Any] = {"price": {"call": 0.25, "image": 0.5}}
SMALL = {"iterations": 1, "population": 60, "lookahead": 0, "measure_degree": "never"}


def test_each_generator_costs_what_its_own_price_says(tmp_path):
    with serving(OpenAIServer(Script(), side=SIDE)) as url:
        limits = {"max_cost": 100.0}
        given = recipe(
            tmp_path, PEN, web(url, **PRICED), explore=0.3, evolution=SMALL, limits=limits
        )
        planned = forecast(given, *set_up_generator(given.api)[:1])
        run = carry_out(given, tmp_path)
    with read_journal(run) as journal:
        rows = [row.usage for phase in journal.phases() for row in journal.chunks(phase)]
        spent = journal.totals().usage
    first, offspring = makers(run)
    assert (offspring != first[run.populations()[1].parents]).any()  # explored
    of_web = sum(int(np.count_nonzero(one == "web")) for one in (first, offspring))
    calls = sum(usage.calls for usage in rows if usage.cost)
    assert price_of(given).of(spent) == pytest.approx(0.5 * of_web + 0.25 * calls)
    assert 0 < sum(usage.images for usage in rows if usage.cost) == of_web < spent.images == 120
    assert spent.cost <= planned.cost <= 0.75 * 120
    assert any("Each generator has its own price" in warning for warning in planned.warnings)


def test_the_limit_holds_on_what_was_really_used(tmp_path):
    with serving(OpenAIServer(Script(), side=SIDE)) as url:
        given = recipe(
            tmp_path, PEN, web(url, **PRICED), evolution=SMALL, limits={"max_cost": 20.0}
        )
        with pytest.raises(LimitReached, match=r"limits\.max_cost = 20 USD is reached"):
            carry_out(given, tmp_path)
        raised = recipe(
            tmp_path, PEN, web(url, **PRICED), evolution=SMALL, limits={"max_cost": 60.0}
        )
        run = resume_run(tmp_path / "run", RunContext(embedding=Mean()), raised)
    with read_journal(run) as journal:
        assert 18 < journal.totals().usage.cost < 60


def test_prices_that_do_not_go_together_are_refused(tmp_path):
    limits = {"max_cost": 3}
    euros = PEN | {"price": {"call": 1, "currency": "EUR"}}
    with pytest.raises(RecipeError, match=r"api\.of\.1\.price needs limits\.max_cost"):
        recipe(tmp_path, PEN, PEN | PRICED)
    both = {
        **recipe(tmp_path, PEN | PRICED, PEN, limits=limits).api.model_dump(),
        "price": {"call": 1},
    }
    with pytest.raises(RecipeError, match=r"api\.price and api\.of\.0\.price are both set"):
        recipe(tmp_path, limits=limits, api=both)
    with pytest.raises(
        RecipeError, match=r"prices are in EUR and USD: state all of them in one currency"
    ):
        price_of(recipe(tmp_path, euros, PEN | PRICED, limits=limits))


def test_the_next_request_is_foreseen_at_the_dearest_price(tmp_path):
    tokens = PEN | {"price": {"million_tokens": 2}}
    price = price_of(recipe(tmp_path, PEN | PRICED, tokens, PEN, limits={"max_cost": 3}))
    assert price.of(Usage(1, 1, cost=0.125)) == 0.125
    assert price.of_next(Usage(4, 4, cost=3.0), calls=1, images=2) == pytest.approx(1.25)
    assert price.of_next(Usage(4, 4, 4_000_000, cost=3.0), calls=1, images=2) == pytest.approx(
        1.25 + 4
    )
