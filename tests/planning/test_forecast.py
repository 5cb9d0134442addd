"""The plan of a recipe, and what `pe plan` foretells: it is what a run then does."""

import re
from itertools import product

import numpy as np
import pytest

from pe.data.samples import Conditions
from pe.engine.execution import RunContext, run_recipe
from pe.errors import RecipeError
from pe.histogram import histogram_releases
from pe.planning.checks import check_price, obstacles
from pe.planning.choice import Signal
from pe.planning.forecast import forecast
from pe.planning.parts import object_kind, set_up_generator
from pe.planning.releases import lay_out
from pe.plugins.protocols import Answer, PluginInfo, as_generator
from pe.privacy.accounting import epsilon
from pe.privacy.certificate_text import round_up
from pe.privacy.data_set import DataSetLedger
from pe.privacy.release import Relation
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.store.writer import read_journal
from tests.durability.driver import make_private
from tests.engine.small import but
from tests.generators import Mean, Shades
from tests.recipe.test_schema import with_

NOISE = {"privacy__epsilon": None, "privacy__noise_multiplier": 5}


def parsed(**changes):
    return Recipe.parse(with_(**{"embedding": {"kind": "pixels"}} | changes), "here")


def planned(**changes):
    return forecast(parsed(**changes), as_generator(Shades(max_chunk=1024)))


def laid_out(population=30, **changes):
    return lay_out(
        parsed(private__classes=["a", "b", "c"], evolution__population=population, **changes)
    )


def test_the_noise_meets_the_target_and_no_more_or_is_taken_as_it_is_given():
    assert 1 - 1e-6 < epsilon(laid_out().releases, 1e-5) <= 1
    assert [step.release.noise_multiplier for step in laid_out(**NOISE).steps] == [5, 5]
    assert not laid_out(evolution__iterations=0).releases


def test_schedules_reach_their_iterations_and_a_threshold_in_sigmas_is_votes():
    lists = {
        "evolution__degree": [0.9, 0.1],
        "evolution__lookahead": [0, 3],
        "evolution__threshold": [7, 8],
    }
    plan = laid_out([30, 60, 90], **lists, **NOISE)
    assert (plan.sizes, [step.sizes[0] for step in plan.steps]) == ((10, 10, 10), [20, 30])
    assert [(step.degree, step.lookahead, step.threshold) for step in plan.steps] == [
        (0.9, 0, 7),
        (0.1, 3, 8),
    ]
    plan = laid_out(evolution__threshold_sigmas=2, privacy__relation="replace_one", **NOISE)
    assert plan.steps[0].threshold == pytest.approx(2 * 5 * 2**0.5)


def test_label_sizes_divide_the_population_by_largest_remainders():
    assert laid_out(10, **NOISE).sizes == (4, 3, 3)
    assert laid_out(10, evolution__label_sizes={"a": 1, "b": 1, "c": 1}, **NOISE).sizes == (4, 3, 3)
    assert laid_out(10, evolution__label_sizes={"a": 700, "b": 200, "c": 100}, **NOISE).sizes == (
        7,
        2,
        1,
    )


STEPS = (
    "api.steps has 1 entry, and evolution.iterations is 2: give api.steps one number, or 2 (one per"
)


@pytest.mark.parametrize(
    ("population", "changes", "sentence"),
    [
        (2, {}, "has 0 members of label 'c'"),
        (12, {"evolution__label_sizes": {"a": 1, "b": 1}}, "label 'c' is missing"),
        (12, {"evolution__label_sizes": {"a": 1, "b": 1, "x": 1}}, "unknown label 'x'"),
        (9, {"evolution__label_sizes": {"a": 1, "b": 1, "c": 1e-9}}, "has 0 members of label 'c'"),
        (3, {"evolution__neighbors": 2}, "has 1 members of label 'a', but each record votes for 2"),
        (30, {"api": {"kind": "improved_diffusion", "steps": [10]}}, STEPS),
        (
            30,
            {"api": {"kind": "improved_diffusion", "steps": [1, 2, 3]}},
            "set evolution.iterations to 3.",
        ),
    ],
)
def test_a_population_or_list_that_does_not_fit_is_refused(population, changes, sentence):
    with pytest.raises(RecipeError, match=re.escape(sentence)):
        laid_out(population, **changes, **NOISE)


# All runs over the records.


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({"unit": "patient"}, {}, ("of the same unit or not", "different units (patient, record)")),
        (
            {"relation": Relation.REPLACE_ONE},
            {},
            ("for one record replaced by another", "different relations"),
        ),
        (
            {"relation": Relation.ZERO_OUT, "unit": "p"},
            {"privacy__relation": "replace_one"},
            ("(p, record)",),
        ),
    ],
)
def test_the_total_over_runs_that_protect_different_neighbours_is_told_with_what_to_do(
    tmp_path, before, now, words
):
    ledger = DataSetLedger(tmp_path / "l.json")
    ledger.enter("one", histogram_releases(2.0, 2, **before), 1e-5)
    found = planned(private__ledger_file=str(ledger.path), **now)
    (told,) = (
        one
        for one in found.warnings
        if one.startswith("With this run, all 2 runs over the same records")
    )
    assert all(word in told for word in words)
    assert (
        "give all runs over the same records one `private.privacy_unit` and one `privacy.relation`"
        in told
    )
    total = ledger.enter("two", found.plan.releases, 1e-5)["epsilon"]
    assert (
        f"will have spent ε = {round_up(total)} at δ = 1e-05, {ledger.total(1e-5)['for']}. " in told
    )
    assert told in str(found)


def test_the_total_over_runs_of_one_kind_is_told_and_of_a_run_alone_it_is_not(tmp_path):
    ledger = DataSetLedger(tmp_path / "l.json")
    assert "over the same records" not in str(planned(private__ledger_file=str(ledger.path)))
    assert not ledger.path.exists()
    ledger.enter("one", histogram_releases(8.0, 2), 1e-5)
    found = planned(private__ledger_file=str(ledger.path))
    total = ledger.enter("two", found.plan.releases, 1e-5)["epsilon"]
    assert (
        f"With this run, all 2 runs over the same records will have spent ε = {round_up(total)} at "
        "δ = 1e-05." in found.warnings
    )
    ledger.path.write_text("{")
    assert any(
        "is not a ledger file" in one
        for one in planned(private__ledger_file=str(ledger.path)).warnings
    )


# Calls and images.


class Plain(Shades):
    """Shades without a condition."""

    def random_api(self, request):
        return Answer(super().random_api(request).samples, Conditions())


REUSED = {"lookahead": [2, 3], "reuse_lookahead": True}
KEPT = {"lookahead": 0, "offspring": 2, "initial_variations": 1}


@pytest.mark.parametrize(
    ("api", "evolution", "images"),
    [
        (Shades(max_chunk=4), {}, 70),
        (Shades(max_chunk=2, shares="parent"), {}, 70),
        (Shades(max_chunk=2, shares="condition"), {}, 70),
        (Plain(max_chunk=7, shares="condition"), {}, 70),
        (
            Shades(max_chunk=4, shares="parent"),
            {"iterations": 1, "population": [2, 18], "lookahead": 5},
            30,
        ),
        (Shades(max_chunk=3), REUSED, 10 + 20 + (6 - 2) * 2 + 36 + (9 - 3) * 2),
        (Shades(max_chunk=3, shares="parent"), REUSED, 86),
        (Shades(max_chunk=3), KEPT | {"keep": "selected"}, 36),
        (Shades(max_chunk=3, shares="parent"), KEPT | {"keep": "winners"}, 40),
        (Shades(max_chunk=3, shares="condition"), KEPT | {"keep": "all"}, 18),
        (Shades(max_chunk=3), {"lookahead": [2, 0], "degree": [0, 0.5]}, 10 + 18),
        (Shades(), {"iterations": 0, "population": 30, "lookahead": 0}, 30),
    ],
)
def test_a_run_makes_the_planned_calls_and_images_or_fewer_where_the_votes_decide(
    tmp_path, api, evolution, images
):
    make_private(tmp_path / "private.npz")
    content = {
        "private": {
            "kind": "npz",
            "path": tmp_path / "private.npz",
            "size": 4,
            "channels": 1,
            "classes": ["a", "b"],
        },
        "api": {"kind": object_kind(api)},
        "embedding": {"kind": object_kind(Mean())},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 2, "population": [10, 12, 18], "lookahead": [3, 0]} | evolution,
    }
    recipe = Recipe.parse(content, "the test")
    found = forecast(recipe, as_generator(api))
    run = run_recipe(
        recipe, tmp_path / "run", RunContext(api=api, embedding=Mean(), progress=Progress())
    )
    with read_journal(run) as journal:
        usage, asked = journal.totals().usage, journal.phases()
    assert asked == [phase.name for phase in found.plan.phases if phase.most]
    assert found.images == images
    assert usage.images == api.asked <= images
    assert found.random == len(api.random_requests)
    assert len(api.variation_requests) <= found.variation
    assert usage.calls <= found.calls == found.random + found.variation
    keeps = any(key in evolution for key in ("keep", "reuse_lookahead"))
    assert usage.images == images or keeps
    is_exact = api.capabilities.shares == "nothing" or evolution.get("iterations") == 1
    assert usage.calls == found.calls or keeps or not is_exact
    assert found.disk == {70: 16 * (2 * 40 + 18)}.get(images, found.disk)


# Costs.


def of(**info):
    return but(Shades(max_chunk=4), info=PluginInfo(**{"hosts": ()} | info))


UNKNOWN_SIZE = (
    "because the size is at which the generator draws; calls and images alone cost up to 3.00 USD"
)
TOO_MUCH = "limits.max_cost = 5 may stop the run before its end, which needs up to 9.6"


@pytest.mark.parametrize(
    ("price", "api", "cost", "told"),
    [
        ({"image": 0.02, "call": 1, "currency": "EUR"}, of(), 30 * 0.02 + 9 * 1, TOO_MUCH),
        (
            {"million_tokens": 1, "image": 0.1},
            of(),
            None,
            "calls and images alone cost up to 3.00 USD",
        ),
        ({"call": 1}, None, None, "with a call for each of the images it would be 30.00 USD"),
        ({"megapixel": 0.5, "image": 0.1}, of(), None, UNKNOWN_SIZE),
        ({"megapixel": 0.5, "image": 0.1}, of(drawn=(1000, 2000)), 30 * (0.5 * 2 + 0.1), ""),
        ({}, of(), 0, ""),
        ({}, of(hosts=("localhost:80", "[::1]:80")), 0, ""),
        ({}, of(hosts=None), None, ""),
        ({}, of(hosts=("a.invalid",)), None, ""),
    ],
)
def test_the_cost_follows_from_prices_or_is_unknown(price, api, cost, told):
    recipe = parsed(evolution__lookahead=0, api__price=price, limits={"max_cost": 5}, **NOISE)
    found = forecast(
        recipe, api and as_generator(api), ["Unknown."] if api is None else [], samples_per_second=2
    )
    assert (found.cost, found.currency) == (
        cost and pytest.approx(cost),
        price.get("currency", "USD"),
    )
    assert (found.images, found.seconds) == (30, 15)
    assert any(told in warning for warning in found.warnings)
    assert (found.calls is None) == (found.warnings[0] == "Unknown.") == (api is None)


PAID = {"kind": "openai_images", "model": "m", "prompts": "a", "size": "512x512", "image_size": 8}
OWN = PAID | {"base_url": "http://127.0.0.1:8000/v1", "key_env": None}
FIRST, SECOND = PAID | {"price": {"image": 0.01}}, PAID | {"base_url": "https://gpu.example.org/v1"}


@pytest.mark.parametrize(
    ("api", "limits", "cost", "asked"),
    [
        (PAID, {}, "not stated", "api.openai.com"),
        (PAID, {"max_images": 100}, "not stated", ""),
        (PAID | {"price": {"image": 0}}, {}, "free", ""),
        (PAID | {"price": {"image": 0.01}}, {"max_cost": 9}, "USD", ""),
        (OWN, {}, "free", ""),
        (
            OWN | {"base_url": "http://10.0.0.7:8000/v1"},
            {"max_cost": 9},
            "not stated",
            "10.0.0.7:8000",
        ),
        (
            {"kind": "portfolio", "of": [FIRST, SECOND]},
            {"max_cost": 9},
            "not stated",
            "gpu.example.org",
        ),
        ({"kind": "portfolio", "of": [FIRST, FIRST]}, {"max_cost": 9}, "USD", ""),
    ],
)
def test_nobody_s_price_is_told_as_free_and_a_run_needs_a_limit(
    monkeypatch, api, limits, cost, asked
):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    recipe = parsed(api=api, limits=limits, **NOISE)
    for each in (recipe, Recipe.parse(recipe._content(), "stored")):
        generator, _ = set_up_generator(each.api)
        (told,) = (
            line for line in str(forecast(each, generator)).splitlines() if line.startswith("Cost ")
        )
        assert cost in told
        refused = [
            sentence
            for sentence in obstacles(each, generator)
            if f"price of {asked} is not stated" in sentence
        ]
        assert bool(refused) == bool(asked)
        if asked:
            with pytest.raises(
                RecipeError,
                match=rf"price of {asked} is not stated. Set `api\.price` .* or `limits",
            ):
                check_price(each, generator)


# Votes and noise.


def test_votes_per_candidate_follow_from_the_declared_size():
    found = planned(
        private__declared_size=800, evolution__population=[20, 40, 90], evolution__neighbors=4,
        evolution__label_sizes={"a": 3, "b": 1}, evolution__threshold=7, privacy__relation="replace_one", **NOISE,
    )  # fmt: skip
    first, second = found.signals
    assert first.candidates == 20
    assert first.by_label == pytest.approx((800 * 0.75 * 2 / 15, 800 * 0.25 * 2 / 5))
    assert second.by_label == pytest.approx((800 * 0.75 * 2 / 30, 800 * 0.25 * 2 / 10))
    assert (second.sigma, second.threshold) == (pytest.approx(5 * 2**0.5), 7)
    told = found.to_dict()
    assert told["votes_per_candidate"] == second.fewest == pytest.approx(40)
    assert (told["noise_multiplier"], told["synthetic_images"], told["warnings"]) == (5, 90, [])


def test_the_noise_share_is_that_of_sampled_noise():
    noise = np.random.default_rng(0).normal(scale=3, size=10**6)
    for threshold, votes in product([-2, 0, 4], [0, 1, 5]):
        weights = [np.maximum(noise + mean - threshold, 0).mean() for mean in (0, votes)]
        share = Signal(1, 1, 3, threshold, None, (), once=False).noise_share(votes)
        assert share == pytest.approx(weights[0] / weights[1], rel=0.02)


MANY = {"evolution__iterations": 4, "private__declared_size": 3000, "evolution__population": 4000}
SEVEN = {"private__classes": list("abcdefg")}
SUBFOLDERS = {"private__privacy_unit": "subfolder", "private__declared_units": 100}


@pytest.mark.parametrize(
    ("changes", "beginning", "count"),
    [
        (MANY, "A candidate gets 0.75 votes on average beside noise of 7.5", 3),
        (MANY | {"evolution__threshold_sigmas": 1.5}, "A candidate gets 0.75 votes", 4),
        (MANY | {"evolution__threshold_sigmas": -3}, "A candidate gets 0.75 votes", 3),
        (MANY | {"evolution__threshold": 9.5}, "A candidate gets 0.75 votes", 4),
        (MANY | {"privacy__schedule": [1, 1.5, 2, 3]}, "A candidate gets 0.75 votes", 3),
        (MANY | SUBFOLDERS, "A candidate gets 0.14 votes", 3),
        (MANY | NOISE | {"privacy__noise_multiplier": 7.5}, "A candidate gets 0.75 votes", 2),
        (MANY | SEVEN | {"evolution__population": 2100}, "A candidate gets 1.4 votes", 5),
        (
            {"private__declared_size": 30},
            "A label gets 15 votes, fewer than 5 times the noise of 3.7",
            3,
        ),
        (
            {"private__declared_size": 100, "evolution__population": 70, **SEVEN},
            "A label gets 14 votes",
            3,
        ),
        ({"private__declared_size": 3}, "A label gets 1.5 votes", 2),
    ],
)
def test_each_single_remedy_against_noise_is_enough_and_a_little_less_is_not(
    changes, beginning, count
):
    def warning(**more):
        return next(
            (one for one in planned(**changes | more).warnings if "would be enough" in one), ""
        )

    classes = changes.get("private__classes", ["a", "b"])
    labels = len(classes)

    def labelled(count):  # with as many candidates of each
        population = changes.get("evolution__population", 10)
        return {
            "private__classes": classes[:count],
            "evolution__population": count * population // labels,
        }

    assert warning().startswith(beginning)
    remedies = re.split("would be enough[^:]*: ", warning().rstrip("."))[1].split(", ")
    assert len(remedies) == count
    for remedy in remedies:
        first, *others = (
            float(number.replace(",", "")) for number in re.findall(r"[\d.,]*\d", remedy)
        )
        if "ε" in remedy:
            enough, less = {"privacy__epsilon": first}, {"privacy__epsilon": 0.9 * first}
        elif "label" in remedy:
            enough, less = labelled(int(first)), labelled(int(first) + 1)
        elif "population" in remedy:
            enough, less = (
                {"evolution__population": int(first)},
                {"evolution__population": int(first) + labels},
            )
        elif "neighbors" in remedy:
            enough, less = (
                {"evolution__neighbors": int(first)},
                {"evolution__neighbors": int(first) - 1},
            )
        else:
            sizes = [int(first), *map(int, others)]
            keys = "private__declared_size", "private__declared_units"
            enough, less = (
                dict(zip(keys, some, strict=False))
                for some in (sizes, [n * 9 // 10 for n in sizes])
            )
        assert not warning(**enough), remedy
        assert warning(**less), remedy


UNITS = {"private__declared_size": 1000, "private__privacy_unit": "subfolder"}
UNEVEN = {"evolution__population": 1000, "evolution__label_sizes": {"a": 99990, "b": 60}}
HIGH = NOISE | {
    "privacy__noise_multiplier": 1,
    "evolution__threshold": 40,
    "private__declared_size": 1000,
}


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        ({}, ["private.declared_size is missing"]),
        (
            {"private__declared_size": 3},
            ["A label gets 1.5 votes, fewer than 5"],
        ),
        # Two histograms of σ = 5.28 are worth one of 3.73; 18.7 records of each of two labels are
        # five times that.
        ({"private__declared_size": 37, "evolution__population": 2}, ["A label gets 18 votes"]),
        ({"private__declared_size": 38, "evolution__population": 2}, []),
        (
            {"private__declared_size": 10000, **UNEVEN, **NOISE, "privacy__noise_multiplier": 12},
            ["Label 'b' has too"],
        ),
        (
            {"private__declared_size": 1000, "privacy__delta": 1e-3},
            ["δ = 0.001 is not below 1/1000, one over"],
        ),
        (UNITS, ["All records of a subfolder together weigh"]),
        (UNITS | {"private__declared_units": 900}, []),
        (
            HIGH | {"evolution__population": 100},
            ["Hardly any candidate will be over the threshold of 40 votes"],
        ),
        (HIGH | {"evolution__population": 24}, []),
    ],
)
def test_what_few_records_votes_and_numbers_mean_is_warned_of(changes, sentences):
    warnings = planned(**changes).warnings
    assert [told[: len(said)] for told, said in zip(warnings, sentences, strict=True)] == sentences
