"""Whether a generator heeds the degree and its parents: how that is judged, and how a run tries it
before all else.
"""

import json
from contextlib import nullcontext
from html import unescape

import numpy as np
import pytest
from click.testing import CliRunner

from pe.cli.view import view
from pe.data.images import Images
from pe.engine.execution import RunContext, resume_run, run_recipe, stored_recipe
from pe.engine.ladder import FEWEST, SPACES, DegreeVariations, chance, judge, measure
from pe.errors import APIError, LimitReached
from pe.planning.calls import IMAGES, PARENTS
from pe.planning.forecast import forecast
from pe.planning.parts import set_up_generator
from pe.recipe.schema import Recipe
from pe.report.pages import shareable_report
from pe.store.export import examine
from pe.store.run import Run
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import SIDE, OpenAIServer
from tests.endpoints.serving import serving
from tests.engine.small import Told
from tests.generators import Mean

NOISE = Images(np.random.default_rng(0).integers(0, 256, (PARENTS, 8, 8, 1)).astype(np.uint8))


def judged(low, high):
    """The verdict on variations at these distances from their parents, (2, m)."""

    def rung(degree, apart):
        whole = np.broadcast_to(apart, (2, np.shape(apart)[-1]))
        count = whole.shape[1]
        spaces = {"nearest": dict.fromkeys(SPACES, count), "astray": dict.fromkeys(SPACES, 0)}
        return DegreeVariations(
            degree, np.arange(count), NOISE, dict(zip(SPACES, whole, strict=True)), **spaces
        )

    return judge(rung(0.1, low), rung(1.0, high), "").degree


def varied(degree, parents, seed):
    """A share `degree` of the pixels is new."""
    rng = np.random.default_rng(seed)
    new = rng.integers(0, 256, parents.pixels.shape).astype(np.uint8)
    return Images(np.where(rng.random(parents.pixels.shape) < degree, new, parents.pixels))


def ladder(low, high, batch=PARENTS, parents=NOISE):
    def requests(samples):
        groups = np.split(np.arange(len(samples)), range(batch, len(samples), batch))
        return [(group, samples.take(group)) for group in groups]

    return judge(
        *(measure(d, parents, requests(made), Mean()) for d, made in ((0.1, low), (1.0, high))), ""
    ).degree


def found(share):
    """How often a degree is called heeded whose differences in distance have this mean, in their
    own scatter.
    """
    rng = np.random.default_rng(1)
    pairs = (5 + rng.standard_normal((2, 2, PARENTS)) / np.sqrt(2) for _ in range(600))
    return sum(judged(low, high + share) == "heeded" for low, high in pairs) / 600


def test_an_honest_generator_passes_however_noisy_and_one_that_ignores_the_degree_seldom():
    assert found(1.5) > 0.99
    assert found(2) > 0.998
    assert found(0) < 0.15


SAME = NOISE.take([0] * PARENTS)
ALIKE = varied(0.75, NOISE, 3)


@pytest.mark.parametrize(
    ("low", "high", "batch", "parents", "verdict"),
    [
        (ALIKE, ALIKE, PARENTS, NOISE, "ignored"),
        (NOISE, NOISE, PARENTS, NOISE, "ignored"),
        (varied(0.1, NOISE, 1), varied(1.0, NOISE, 1), 1, NOISE, "heeded"),
        (varied(0.1, NOISE, 1), varied(1.0, NOISE, 1), 3, NOISE, "heeded"),
        (
            varied(0.1, SAME, 1),
            varied(1.0, SAME, 1),
            PARENTS,
            SAME,
            "heeded",
        ),  # equal ones are not mixed up
    ],
)
def test_variations_of_their_own_parents_pass_and_equal_answers_never(
    low, high, batch, parents, verdict
):
    assert ladder(low, high, batch, parents) == verdict


@pytest.mark.parametrize(("batch", "first"), [(2, True), (8, True), (8, False)])
def test_parents_that_are_mixed_up_are_found(batch, first):
    """All from the first of a request; or in reverse."""
    places = np.arange(PARENTS)
    taken = NOISE.take(places // batch * batch if first else places[::-1])
    assert ladder(varied(0.1, taken, 1), varied(1.0, taken, 1), batch) == "mixed up"


def test_a_growth_that_is_worth_nothing_is_none_too_few_are_not_judged_and_one_without_a_vector_counts_by_its_pixels():
    low = np.tile(
        [[86.6], [4.79]], PARENTS
    )  # as of a server that ignores the degree, in pixels and in the embedding
    assert judged(low, low * [[1.001], [1.038]]) == "ignored"
    assert judged(low, low * [[1.001], [1.2]]) == "heeded"
    assert judged(np.ones(FEWEST - 1), np.ones(PARENTS)) == "unknown"
    low, high = np.ones((2, PARENTS)), 1 + np.random.default_rng(0).random((2, PARENTS))
    low[1] = np.nan
    assert judged(low, high) == "heeded"
    assert chance(np.full(PARENTS, np.nan)) == 1


# The trial of a run.


POPULATION, DEGREES = 10, [0.6, 0.3]


def recipe(folder, url, api=None, **changes):
    endpoint = {
        "base_url": url,
        "prompts": "a",
        "image_size": SIDE,
        "key_env": None,
        "price": {"image": 0.1},
    }
    endpoint |= {"server": None}
    openai = endpoint | {
        "kind": "openai_images",
        "base_url": f"{url}/v1",
        "model": "m",
        "degree_field": "strength",
    }
    content = {
        "private": {
            "kind": "npz",
            "path": folder / "private.npz",
            "size": SIDE,
            "classes": ["a", "b"],
        },
        "api": (endpoint if "kind" in (api or {}) else openai) | (api or {}),
        "embedding": {"kind": "pixels", "size": 8},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"population": POPULATION, "degree": DEGREES} | changes.pop("evolution", {}),
        "limits": {"max_cost": 100} | changes.pop("limits", {}),
    }
    return Recipe.parse(content | changes, "the test")


def carry_out(wanted, folder):
    """Run it; what was warned of the parents."""
    told = Told()
    run_recipe(wanted, folder / "run", RunContext(progress=told))
    return [warning for warning in told.warnings if "parents" in warning]


def go_on(folder, *changes):
    return resume_run(
        folder / "run", RunContext(progress=Told()), stored_recipe(folder / "run", changes)
    )


@pytest.fixture
def folder(tmp_path):
    records = np.random.default_rng(0).integers(0, 255, (60, SIDE, SIDE, 3)).astype(np.uint8)
    np.savez(tmp_path / "private.npz", images=records, labels=np.array(["a", "b"] * 30))
    return tmp_path


def test_a_server_that_varies_its_parents_is_told_as_tried(folder):
    script = Script()
    with serving(OpenAIServer(script, heeds="strength")) as url:
        wanted = recipe(folder, url)
        planned = forecast(wanted, set_up_generator(wanted.api)[0])
        assert carry_out(wanted, folder) == []
    assert script.delivered == IMAGES + 3 * POPULATION == planned.images == planned.calls
    assert planned.cost == pytest.approx(0.1 * script.delivered)
    assert f"{'try':>3}{IMAGES:>7}" in str(planned)
    assert "first tried on 8 new samples, each varied at 0.3" in str(planned)
    assert {float(body["strength"]) for body in script.requests if "strength" in body} == {0.6, 0.3}
    run = Run.open(folder / "run")
    told = (
        "of 8 variations of degree 0.3, 8 lie nearest to their own parents, and 0 lie with "
        "another's"
    )
    assert (run.degree, planned.degree, planned.to_dict()["measured_by"]) == (
        told,
        "wording",
        IMAGES,
    )
    assert told in unescape(shareable_report(run))
    assert told in " ".join(CliRunner().invoke(view, [str(run.folder), "--text"]).output.split())
    assert "degree.json" in [one["file"] for one in run.guarantee["covered"]]
    assert examine(run.folder)[1] == []


def test_one_that_ignores_them_stops_the_run_before_it_has_cost_much(folder):
    script = Script()
    with serving(OpenAIServer(script)) as url:
        wanted = recipe(folder, url, limits={"max_concurrency": 1})
        said = (
            r"OpenAIImages does not vary the parents it is handed: of 8 variations of degree 0.3, "
            r"[0-3] lie nearest"
        )
        for attempt in (lambda: carry_out(wanted, folder), lambda: go_on(folder)):
            with pytest.raises(APIError, match=said) as caught:
                attempt()
            assert f"pe run {folder / 'run'} --set evolution.measure_degree=…` with `never`" in str(
                caught.value
            )
            assert script.delivered == IMAGES
        assert Run.open(folder / "run").populations() == []
        go_on(folder, "evolution.measure_degree=never")
    assert script.delivered == IMAGES + 3 * POPULATION


@pytest.mark.parametrize(("before", "goes_on"), [("heeded", True), ("mixed up", False)])
def test_limits_hold_and_what_was_answered_or_found_by_a_version_before_is_not_asked_again(
    folder, before, goes_on
):
    script = Script()
    with serving(OpenAIServer(script, heeds="strength")) as url:
        wanted = recipe(folder, url, limits={"max_images": PARENTS + 3})
        with pytest.raises(LimitReached, match=r"3 of 8 samples of degree/0.3 are there; `pe run"):
            carry_out(wanted, folder)
        assert script.delivered == PARENTS + 3
        assert (
            "degree/0.3: 3 of at most 8 samples"
            in CliRunner().invoke(view, [str(folder / "run"), "--text"]).output
        )
        if not goes_on:
            (folder / "run/degree.json").write_text(json.dumps({"degree": before, "told": "so"}))
        with nullcontext() if goes_on else pytest.raises(APIError, match=r"is handed: so;"):
            go_on(folder, "limits.max_images=200")
    assert not goes_on or script.delivered == IMAGES + 3 * POPULATION


@pytest.mark.parametrize(
    ("api", "evolution", "measured"),
    [
        ({}, {}, True),
        ({}, {"degree": [0.5, 0.5]}, False),
        ({"degree_exact": True}, {}, False),
        ({"degree_exact": True}, {"measure_degree": "always"}, True),
        ({"kind": "sdapi", "batch": 8}, {}, False),
        ({"kind": "sdapi", "batch": 8, "several_parents": True}, {"degree": [0.5, 0.5]}, True),
    ],
)
def test_it_is_measured_where_the_plan_leans_on_what_nobody_has_shown(
    folder, api, evolution, measured
):
    wanted = recipe(folder, "http://localhost", api=api, evolution=evolution)
    planned = forecast(wanted, set_up_generator(wanted.api)[0])
    assert bool(planned.trial) == measured
    assert ("first tried" in str(planned)) == measured
