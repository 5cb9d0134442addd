"""What `pe plan` foretells is what a run then does."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from math import ceil
from pathlib import Path

import numpy as np
import pytest

from pe.data.samples import Conditions
from pe.engine.execution import Surroundings, run_recipe
from pe.errors import PluginError, RecipeError
from pe.histogram import histogram_release
from pe.planning.build import object_kind, set_up_generator
from pe.planning.calls import Span, variation_calls
from pe.planning.choice import MOST_NOISE, Signal
from pe.planning.forecast import Forecast, forecast
from pe.plugins.protocols import Answer, PluginInfo, RandomRequest, info_of
from pe.privacy.release import Relation
from pe.recipe.schema import ApiSpec, Recipe
from pe.steps import Step
from pe.store.run import Run
from pe.store.writer import read_journal
from tests.durability.driver import make_private
from tests.generators import Mean, Shades
from tests.recipe.test_schema import with_


class Plain(Shades):
    """Shades without a condition."""

    def random_api(self, request: RandomRequest) -> Answer:
        return Answer(super().random_api(request).samples, Conditions())


def planned(**changes: object) -> Forecast:
    recipe = Recipe.parse(with_(**changes), "here")
    return forecast(recipe, Shades(max_chunk=1024))


def recipe_for(api: Shades, folder: Path, **evolution: object) -> Recipe:
    make_private(folder / "private.npz")
    private = {"kind": "npz", "path": folder / "private.npz", "size": 4, "channels": 1, "classes": ["a", "b"]}
    content = {
        "private": private,
        "api": {"kind": object_kind(api)},
        "embedding": {"kind": object_kind(Mean())},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 2, "population": [10, 12, 18], "lookahead": [3, 0]} | evolution,
    }
    return Recipe.parse(content, "the test")


def carry_out(api: Shades, folder: Path, **evolution: object) -> Forecast:
    """The forecast of a run, once the run is done and its images are found to be those foretold."""
    recipe = recipe_for(api, folder, **evolution)
    found = forecast(recipe, api)
    run = run_recipe(recipe, folder / "run", Surroundings(api=api, embedding=Mean()))
    with read_journal(run) as journal:
        totals = journal.totals()
    assert found.images.least <= totals.usage.images <= found.images.most
    assert totals.usage.images == api.asked
    assert found.calls is not None
    assert found.calls.least <= totals.usage.calls <= found.calls.most
    assert (found.random.least, found.random.most) == (len(api.random_requests),) * 2
    assert found.variation.least <= len(api.variation_requests) <= found.variation.most
    return found


class Written(Shades):
    """Shades that state to be texts."""

    info = PluginInfo(modality="texts", hosts=())


def test_of_a_text_the_disk_takes_the_longest_that_is_declared(tmp_path: Path) -> None:
    images = recipe_for(Shades(), tmp_path)
    private = {"kind": "text_table", "path": "notes.csv", "longest": 300, "label_column": "x", "classes": ["a", "b"]}
    texts = Recipe.parse(images.model_dump(mode="json", exclude_unset=True) | {"private": private}, "the test")
    found, other = forecast(texts, Written()).disk, forecast(images, Shades()).disk
    assert found is not None
    assert other is not None
    assert [forecast(one, None).to_dict()["noun"] for one in (texts, images)] == ["texts", "images"]
    assert found * 16 == other * 300


@pytest.mark.parametrize("max_chunk", [4, 7, 1000])
def test_where_items_share_nothing_the_calls_are_exact(tmp_path: Path, max_chunk: int) -> None:
    api = Shades(max_chunk=max_chunk)
    found = carry_out(api, tmp_path)
    assert found.variation.least == found.variation.most == len(api.variation_requests)
    assert found.to_dict()["api_calls"] == {
        "random": len(api.random_requests),
        "variation": len(api.variation_requests),
        "images": 10 + (30 + 12) + 18,
    }


@pytest.mark.parametrize("max_chunk", [2, 7])
@pytest.mark.parametrize("kind", [Shades, Plain])
@pytest.mark.parametrize("shares", ["parent", "condition"])
def test_where_items_share_something_the_calls_lie_between_the_bounds(
    tmp_path: Path, kind: type[Shades], shares: str, max_chunk: int
) -> None:
    api = kind(max_chunk=max_chunk, shares=shares)
    found = carry_out(api, tmp_path)
    if (kind, shares) == (Plain, "condition"):
        assert found.variation.least == len(api.variation_requests)
    assert re.search(r"The run makes \d+ to \d+ calls", found.warnings[0])


@pytest.mark.parametrize("shares", ["nothing", "parent", "condition"])
def test_where_lookahead_is_reused_images_and_calls_lie_between_the_bounds(tmp_path: Path, shares: str) -> None:
    api = Shades(max_chunk=3, shares=shares)
    found = carry_out(api, tmp_path, lookahead=[2, 3], reuse_lookahead=True)
    assert found.images == Span(10 + 20 + 36, 10 + 20 + (6 - 2) * 2 + 36 + (9 - 3) * 2)
    assert api.asked < 10 + 20 + 12 + 36 + 18
    assert any("66 to 86 images" in warning for warning in found.warnings)
    assert found.to_dict()["api_calls_at_least"]["images"] == 66


@pytest.mark.parametrize("shares", ["nothing", "parent", "condition"])
@pytest.mark.parametrize(("keep", "images"), [("selected", (20, 26)), ("winners", (16, 30)), ("all", (8, 8))])
def test_kept_candidates_cost_nothing(tmp_path: Path, shares: str, keep: str, images: tuple[int, int]) -> None:
    api = Shades(max_chunk=3, shares=shares)
    found = carry_out(api, tmp_path, lookahead=0, keep=keep, offspring=2, initial_variations=1)
    least, most = images
    assert found.images == Span(10 + least, 10 + most)


@pytest.mark.parametrize("shares", ["nothing", "parent", "condition"])
def test_at_degree_0_the_chosen_are_taken_as_they_are_and_nothing_is_asked_for(tmp_path: Path, shares: str) -> None:
    api = Shades(max_chunk=3, shares=shares)
    found = carry_out(api, tmp_path, lookahead=[2, 0], reuse_lookahead=True, degree=[0, 0.5])
    assert [one.images for one in found.iterations] == [Span(10, 10), Span(), Span(18, 18)]
    assert found.iterations[1].variation == Span()
    first, chosen, _ = Run.open(tmp_path / "run").populations()
    np.testing.assert_array_equal(chosen.samples.array, first.samples.array[chosen.parents])
    np.testing.assert_array_equal(chosen.conditions["tint"], first.conditions["tint"][chosen.parents])


@pytest.mark.parametrize("max_chunk", [2, 4, 5])
def test_with_one_parent_per_label_the_calls_by_parent_are_exact(tmp_path: Path, max_chunk: int) -> None:
    api = Shades(max_chunk=max_chunk, shares="parent")
    found = carry_out(api, tmp_path, iterations=1, population=[2, 18], lookahead=5)
    assert found.variation.least == found.variation.most == len(api.variation_requests)


def test_the_bounds_of_calls_by_parent_are_reached() -> None:
    release = histogram_release(1, 1.0, Relation.ADD_REMOVE)
    for items, parents, chunk, reuse in product(range(8), range(1, 4), range(1, 4), range(3)):
        shared = [
            sum(ceil(max(count - reuse, 0) / chunk) for count in counts)
            for counts in product(range(items + 1), repeat=parents)
            if sum(counts) == items
        ]
        step = Step(1, (items,), 0.5, reuse, 0.0, release, reuse=reuse)
        span = variation_calls((parents,), step, Shades(max_chunk=chunk, shares="parent"))
        ahead = parents * ceil(reuse / chunk)
        assert (span.least - ahead, span.most - ahead) == (min(shared), max(shared)), (items, parents, chunk, reuse)


def test_cost_and_time_follow_from_prices_and_rate() -> None:
    changes = {"api__price": {"image": 0.02, "call": 1, "currency": "EUR"}, "limits": {"max_cost": 5}}
    recipe = Recipe.parse(with_(evolution__lookahead=0, **changes), "here")
    found = forecast(recipe, Shades(max_chunk=4), samples_per_second=2)
    assert found.cost == pytest.approx(30 * 0.02 + 9 * 1)
    assert found.currency == "EUR"
    assert found.seconds == 15
    assert any("limits.max_cost = 5 stops the run before its end, which needs 9.6" in one for one in found.warnings)


def test_what_depends_on_tokens_or_unknown_calls_is_unknown() -> None:
    tokens = {"api__price": {"million_tokens": 1, "image": 0.1}, "limits": {"max_cost": 50}}
    found = planned(evolution__lookahead=0, **tokens)
    assert found.cost is None
    assert "calls and images alone cost 3.00 USD or more" in found.warnings[0]
    calls = {"api__price": {"call": 1}, "limits": {"max_cost": 50}}
    found = forecast(Recipe.parse(with_(evolution__lookahead=0, **calls), "here"), None, ["Unknown."])
    assert (found.cost, found.calls, found.images) == (None, None, Span(30, 30))
    assert found.warnings[0] == "Unknown."
    assert "with a call for each of the images it would be 30.00 USD" in found.warnings[1]
    assert found.to_dict()["api_calls"] == {"random": None, "variation": None, "images": 30}


def test_a_price_per_megapixel_is_of_the_images_as_they_are_drawn() -> None:
    changes = {"api__price": {"megapixel": 0.5, "image": 0.1}, "limits": {"max_cost": 50}}
    recipe, api = Recipe.parse(with_(evolution__lookahead=0, **changes), "here"), Shades()
    found = forecast(recipe, api)
    assert found.cost is None
    assert "because the size is at which the generator draws; calls and images alone cost 3.00 USD" in found.warnings[0]
    api.info = replace(info_of(api), drawn=(1000, 2000))
    assert forecast(recipe, api).cost == pytest.approx(30 * (0.5 * 2 + 0.1))


def test_votes_per_candidate_follow_from_the_declared_size() -> None:
    found = planned(
        private__declared_size=800, evolution__population=[20, 40, 90], evolution__neighbors=4,
        evolution__label_sizes={"a": 3, "b": 1}, evolution__threshold=7, privacy__relation="replace_one",
        privacy__epsilon=None, privacy__noise_multiplier=5,
    )  # fmt: skip
    first, second = found.signals
    assert first.candidates == 20
    assert first.by_label == pytest.approx((800 * 0.75 * 2 / 15, 800 * 0.25 * 2 / 5))
    assert second.by_label == pytest.approx((800 * 0.75 * 2 / 30, 800 * 0.25 * 2 / 10))
    assert (second.sigma, second.threshold) == (pytest.approx(5 * 2**0.5), 7)
    assert found.to_dict()["votes_per_candidate"] == second.fewest == pytest.approx(40)
    assert found.to_dict()["noise_multiplier"] == 5
    assert found.warnings == ()


def test_the_noise_share_is_that_of_sampled_noise() -> None:
    noise = np.random.default_rng(0).normal(scale=3, size=10**6)
    for threshold, votes in product([-2, 0, 4], [0, 1, 5]):
        weights = [np.maximum(noise + mean - threshold, 0).mean() for mean in (0, votes)]
        share = Signal(1, 1, 3, threshold, None, (), once=False).noise_share(votes)
        assert share == pytest.approx(weights[0] / weights[1], rel=0.02)


@pytest.mark.parametrize("sigmas", [0, 1.5, -3])
def test_the_suggested_population_is_the_largest_without_a_warning(sigmas: float) -> None:
    changes = {"private__declared_size": 3000, "evolution__threshold_sigmas": sigmas, "evolution__iterations": 4}
    (warning,) = planned(evolution__population=5000, **changes).warnings
    assert warning.startswith("The population is too large for the private set: 0.6 votes per candidate against noise")
    suggested = int(re.search(r"population of at most (\d+)", warning)[1])
    within = planned(evolution__population=suggested, **changes)
    assert within.warnings == ()
    assert all(signal.noise_share(signal.votes) <= MOST_NOISE for signal in within.signals)
    assert "too large" in planned(evolution__population=suggested + 2, **changes).warnings[0]


def test_more_votes_per_record_are_proposed_where_they_mend_it() -> None:
    changes = {"private__declared_size": 3000, "evolution__iterations": 4, "evolution__population": 2000}
    (warning,) = planned(**changes).warnings
    more = int(re.search(r"population of at most \d+, evolution\.neighbors: (\d+), or", warning)[1])
    assert planned(**changes, evolution__neighbors=more).warnings == ()
    assert "too large" in planned(**changes, evolution__neighbors=more - 1).warnings[0]


def test_a_private_set_too_small_for_any_population_is_told_so() -> None:
    few, warning = planned(private__declared_size=3).warnings
    assert few.startswith("A label has about 1.5 votes, fewer than 5 times the noise")
    assert "no population is small enough, so take a larger epsilon" in warning


def test_a_threshold_that_hardly_any_candidate_passes_is_told() -> None:
    changes = {"private__declared_size": 1000, "privacy__epsilon": None, "privacy__noise_multiplier": 1}
    (warning,) = planned(evolution__population=100, evolution__threshold=40, **changes).warnings
    assert "Hardly any candidate will be over the threshold of 40 votes" in warning
    suggested = int(re.search(r"population of at most (\d+)", warning)[1])
    assert suggested == 24
    assert planned(evolution__population=suggested, evolution__threshold=40, **changes).warnings == ()


def test_a_label_with_hardly_a_record_is_named() -> None:
    found = planned(
        private__declared_size=10000, evolution__population=1000, evolution__label_sizes={"a": 99990, "b": 60},
        privacy__epsilon=None, privacy__noise_multiplier=12,
    )  # fmt: skip
    assert [warning[:9] for warning in found.warnings] == ["Label 'b'"]


def test_delta_and_the_declared_size_are_checked() -> None:
    assert any("declared_size is missing" in warning for warning in planned().warnings)
    found = planned(private__declared_size=1000, privacy__delta=1e-3)
    assert found.warnings[0].startswith("δ = 0.001 is not below 1/1000, one over the declared number of records")
    found = planned(private__declared_size=1000, private__privacy_unit="subfolder")
    assert len(found.warnings) == 1
    assert "fewer votes per candidate than foretold: state private.declared_units" in found.warnings[0]
    units = {"private__privacy_unit": "subfolder", "private__declared_units": 900}
    assert planned(private__declared_size=1000, **units).warnings == ()


def test_without_iterations_there_is_no_histogram() -> None:
    found = planned(private__declared_size=1000, evolution__iterations=0, evolution__population=30).to_dict()
    assert found["epsilon"] == 0
    assert found["noise_multiplier"] is found["votes_per_candidate"] is None
    assert found["api_calls"] == {"random": 1, "variation": 0, "images": 30}


def test_a_generator_that_cannot_be_set_up_here_leaves_the_calls_unknown() -> None:
    api, why = set_up_generator(ApiSpec(kind="public_images", path="nowhere"))
    assert api is None
    assert re.search("The number of calls is unknown, because the generator cannot be set up here: .*nowhere", why)
    assert set_up_generator(ApiSpec(kind="object:mine.Own"))[1].endswith("mine.Own is an object of your own.")


def test_a_mistake_in_the_generator_s_settings_is_an_error() -> None:
    with pytest.raises(PluginError, match="Unknown adapter 'none'"):
        set_up_generator(ApiSpec(kind="none"))
    with pytest.raises(RecipeError, match="siz"):
        set_up_generator(ApiSpec(kind="glyphs", siz=3))


def test_the_plan_of_a_fitted_generator_tells_its_releases_and_what_is_left_unused() -> None:
    fitted = {"api__kind": "dp_merf", "private__declared_size": 1000, "evolution__iterations": 0}
    found = planned(**fitted)
    assert [release.name for release in found.fit] == ["fit/mean_features"]
    assert found.fit_epsilon == found.epsilon == pytest.approx(1, rel=1e-3)
    assert found.warnings == ()
    half = planned(**fitted, api__fit={"budget_share": 0.5})
    assert half.epsilon == pytest.approx(0.5, rel=1e-3)
    assert half.warnings[0].startswith("Nothing uses 0.5 of privacy.epsilon, because api.fit.budget_share is 0.5")
    evolved = planned(**fitted | {"evolution__iterations": 2}, api__fit={"budget_share": 0.5})
    assert evolved.fit_epsilon == pytest.approx(0.5, rel=1e-3)
    assert evolved.epsilon == pytest.approx(1, rel=1e-3)
    assert not any("Nothing uses" in warning for warning in evolved.warnings)


def test_the_synthetic_images_are_those_of_the_last_population() -> None:
    assert planned().synthetic == 10
    assert planned(evolution__population=[4, 6, 40]).to_dict()["synthetic_images"] == 40


def test_a_population_of_one_candidate_a_label_can_be_planned() -> None:
    found = planned(private__declared_size=3000, evolution__population=2)
    assert not any("over the threshold" in warning for warning in found.warnings)


@pytest.mark.parametrize(("size", "warned"), [(37, True), (38, False)])
def test_too_few_records_to_gain_by_evolving_are_warned_of(size: int, warned: bool) -> None:
    """Two histograms of σ = 5.28 are worth one of 3.73; 18.7 records of each of the two labels are five times that."""
    found = planned(private__declared_size=size, evolution__lookahead=0).warnings
    assert any("over so few, samples that were never voted for" in one for one in found) is warned
