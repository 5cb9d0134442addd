"""What each foreign server makes of our adapters' requests, and a run over it that is killed on its way."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pe.engine.execution import Surroundings, resume_run
from pe.errors import APIError, PEError
from pe.recipe.schema import Recipe
from pe.store.run import Run
from pe.store.writer import read_journal
from tests.peers.conftest import killed
from tests.peers.routes import ROUTES, Route, distance, draw, pixels, vary

pytestmark = pytest.mark.timeout(1200)

SHADES = (10, 90, 170, 250)
CASES = [pytest.param(route, case, id=f"{route.name}: {case}") for route in ROUTES for case in route.wrong]
POPULATION = 20
IMAGES = 2 * POPULATION + 16
"""S_0, a variation of each of its parents, and what measuring the degree takes."""


def test_random_api_draws_different_images(route: Route, url: str) -> None:
    one, other = pixels(draw(route.open(url), seed=7)), pixels(draw(route.open(url), seed=900))
    assert one.shape == (1, route.side, route.side, route.channels)
    assert (distance(one, other) > 1) == (route.name != "stable-diffusion.cpp, images API")


def test_variation_api_varies_its_own_parent(route: Route, url: str) -> None:
    api = route.open(url)
    means = [float(pixels(vary(api, route.parents(shade), 0.5)).mean()) for shade in (40, 200)]
    assert means[0] < means[1]


def test_the_degree_is_heeded_or_known_not_to_be(route: Route, url: str) -> None:
    api, parents = route.open(url), route.parents(90)
    moved = [distance(pixels(vary(api, parents, degree)), parents) for degree in (0.1, 0.5, 1.0)]
    assert (moved[0] < moved[1] < moved[2] and 2 * moved[0] < moved[2]) == route.degree, moved


def test_equal_seeds_give_equal_images_or_are_known_not_to(route: Route, url: str) -> None:
    api, parents = route.open(url), route.parents(90)
    new = distance(pixels(draw(api)), pixels(draw(api))) == 0
    varied = distance(pixels(vary(api, parents, 0.5)), pixels(vary(api, parents, 0.5))) == 0
    assert (new and varied) == route.seed


@pytest.mark.parametrize("route", [route for route in ROUTES if route.several], indirect=True)
def test_several_parents_of_a_request(route: Route, url: str) -> None:
    api = route.open(url, several_parents=True, batch=len(SHADES))
    try:
        came = pixels(vary(api, route.parents(*SHADES), 0.5))
        alone = [pixels(vary(route.open(url), route.parents(shade), 0.5, 7 + i)) for i, shade in enumerate(SHADES)]
        right = [distance(one, other[0]) < 1 for one, other in zip(came, alone, strict=True)]
        told = "each" if all(right) else "first" if right[0] else "mixed up"
    except (APIError, AssertionError):
        told = "refused"
    assert told == route.several


@pytest.mark.parametrize(("route", "case"), CASES)
def test_what_is_wrong_is_told_in_the_server_s_words(route: Route, case: str, request: pytest.FixtureRequest) -> None:
    settings, words = route.wrong[case]
    api = route.open(request.getfixturevalue(route.server), **settings)
    parents = np.zeros((1, api.info.shape[0], api.info.shape[1], route.channels), dtype=np.uint8)
    ask = (lambda: vary(api, parents, 0.5)) if "wording" in case else (lambda: draw(api))
    try:
        said = "; ".join(miss.reason for miss in ask().missing.values())
    except APIError as error:
        said = str(error).partition("rejects the request with ")[2]
    assert words in said


def recipe(route: Route, url: str, private: Path) -> dict[str, Any]:
    shape = {"size": route.side, "channels": route.channels, "classes": ["3", "7"]}
    return {
        "private": {"kind": "npz", "path": str(private)} | shape,
        "api": route.recipe(url, tries=3, concurrency=2),
        "embedding": {"kind": "pixels"},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": POPULATION, "degree": 0.5, "measure_degree": "always"},
    }


def test_a_run_that_is_killed_goes_on_and_asks_for_nothing_twice(route: Route, url: str, tmp_path: Path) -> None:
    """The run measures first whether the server heeds the degree, and stops where it does not."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (60, route.side, route.side, route.channels)).astype(np.uint8)
    np.savez(tmp_path / "private.npz", images=images, labels=np.array(["3", "7"] * 30))
    content = recipe(route, url, tmp_path / "private.npz")
    run = killed(tmp_path, content, chunks=3)
    heeds = nullcontext() if route.degree else pytest.raises(PEError, match=r"not heed the degree|mixes parents up")
    if route.degree or route.seed:  # one that ignores it and draws at random passes once in ten runs
        with heeds:
            resume_run(run, Surroundings())
    content["evolution"]["measure_degree"] = "always" if route.degree else "never"
    resume_run(run, Surroundings(), Recipe.parse(content, "the test"))
    done = Run.open(run)
    with read_journal(done) as journal:
        assert journal.totals().usage.images == IMAGES
    assert len(done.synthetic) == POPULATION
