"""What each foreign server makes of our adapters' requests, and a run over it that is killed on its
way.
"""

from contextlib import nullcontext

import numpy as np
import pytest

from pe.engine.execution import RunContext, resume_run
from pe.errors import APIError, PEError
from pe.recipe.schema import Recipe
from pe.store.run import Run
from pe.store.writer import read_journal
from tests.peers.conftest import killed
from tests.peers.routes import ROUTES, distance, draw, pixels, vary

pytestmark = pytest.mark.timeout(1200)

CASES = [
    pytest.param(route, case, id=f"{route.name}: {case}")
    for route in ROUTES
    for case in route.wrong
]
POPULATION = 20
IMAGES = 2 * POPULATION + 16
"""S_0, a variation of each of its parents, and what measuring the degree takes."""


def test_it_draws_different_images_and_varies_a_parent_by_the_degree_and_the_seed_or_is_known_not_to(
    route, url
):
    api, parents = route.open(url), route.parents(90)
    one, other = pixels(draw(api, seed=7)), pixels(draw(api, seed=900))
    assert one.shape == (1, route.side, route.side, route.channels)
    assert (distance(one, other) > 1) == (route.name != "stable-diffusion.cpp, images API")
    dark, light = (pixels(vary(api, route.parents(shade), 0.5)).mean() for shade in (40, 200))
    assert dark < light
    moved = [distance(pixels(vary(api, parents, degree)), parents) for degree in (0.1, 0.5, 1.0)]
    assert (moved[0] < moved[1] < moved[2] and 2 * moved[0] < moved[2]) == route.degree, moved
    new = distance(one, pixels(draw(api, seed=7))) == 0
    varied = distance(pixels(vary(api, parents, 0.5)), pixels(vary(api, parents, 0.5))) == 0
    assert (new and varied) == route.seed


@pytest.mark.parametrize(("route", "case"), CASES)
def test_what_is_wrong_is_told_in_the_server_s_words(route, case, request):
    settings, words = route.wrong[case]
    api = route.open(request.getfixturevalue(route.server), **settings)
    try:
        found = vary(api, route.parents(0), 0.5) if "wording" in case else draw(api)
        said = "; ".join(miss.reason for miss in found.missing.values())
    except APIError as error:
        said = str(error).partition("rejects the request with ")[2]
    assert words in said


def test_a_run_that_is_killed_goes_on_and_asks_for_nothing_twice(route, url, tmp_path):
    """The run measures first whether the server heeds the degree, and stops where it does not."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (60, route.side, route.side, route.channels)).astype(np.uint8)
    np.savez(tmp_path / "private.npz", images=images, labels=np.array(["3", "7"] * 30))
    shape = {"size": route.side, "channels": route.channels, "classes": ["3", "7"]}
    content = {
        "private": {"kind": "npz", "path": str(tmp_path / "private.npz")} | shape,
        "api": route.recipe(url, tries=3, concurrency=2),
        "embedding": {"kind": "pixels"},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {
            "iterations": 1,
            "population": POPULATION,
            "degree": 0.5,
            "measure_degree": "always",
        },
    }
    run = killed(tmp_path, content, chunks=3)
    heeds = (
        nullcontext()
        if route.degree
        else pytest.raises(PEError, match=r"not heed the degree|mixes parents up")
    )
    if (
        route.degree or route.seed
    ):  # one that ignores it and draws at random passes once in ten runs
        with heeds:
            resume_run(run, RunContext())
    content["evolution"]["measure_degree"] = "always" if route.degree else "never"
    resume_run(run, RunContext(), Recipe.parse(content, "the test"))
    done = Run.open(run)
    with read_journal(done) as journal:
        assert journal.totals().usage.images == IMAGES
    assert len(done.synthetic) == POPULATION
