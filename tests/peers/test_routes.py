"""What each foreign server makes of our adapters' requests; all that is found stands on the page of results."""

from __future__ import annotations

import numpy as np
import pytest

from pe.errors import APIError
from tests.peers.conftest import Findings, cell
from tests.peers.routes import ROUTES, Route, distance, draw, pixels, vary

pytestmark = pytest.mark.timeout(900)

SHADES = (10, 90, 170, 250)
CASES = [pytest.param(route, case, id=f"{route.name}: {case}") for route in ROUTES for case in route.wrong]


def test_random_api_draws_different_images(route: Route, url: str, findings: Findings) -> None:
    one, other = pixels(draw(route.open(url), seed=7)), pixels(draw(route.open(url), seed=900))
    assert one.shape == (1, route.side, route.side, route.channels)
    findings[route.name]["RANDOM_API"] = "works" if distance(one, other) > 1 else "every image is the same"
    assert (distance(one, other) > 1) == (route.name != "stable-diffusion.cpp, images API")


def test_variation_api_varies_its_own_parent(route: Route, url: str, findings: Findings) -> None:
    api = route.open(url)
    means = [float(pixels(vary(api, route.parents(shade), 0.5)).mean()) for shade in (40, 200)]
    right = means[0] < means[1]
    findings[route.name]["VARIATION_API"] = "works" if right else "parents are not told apart"
    assert right


def test_the_degree_is_heeded_or_known_not_to_be(route: Route, url: str, findings: Findings) -> None:
    api, parents = route.open(url), route.parents(90)
    moved = [distance(pixels(vary(api, parents, degree)), parents) for degree in (0.1, 0.5, 1.0)]
    heeded = moved[0] < moved[1] < moved[2] and 2 * moved[0] < moved[2]
    told = ", ".join(f"{each:.1f}" for each in moved)
    findings[route.name]["distance at 0.1, 0.5, 1"] = f"{told}: {'heeded' if heeded else 'not heeded'}"
    assert heeded == route.degree


def test_equal_seeds_give_equal_images_or_are_known_not_to(route: Route, url: str, findings: Findings) -> None:
    api, parents = route.open(url), route.parents(90)
    new = distance(pixels(draw(api)), pixels(draw(api))) == 0
    varied = distance(pixels(vary(api, parents, 0.5)), pixels(vary(api, parents, 0.5))) == 0
    words = {True: "equal", False: "differ"}
    findings[route.name]["equal seeds"] = f"new {words[new]}, varied {words[varied]}"
    assert (new and varied) == route.seed


def test_several_parents_of_a_request(route: Route, url: str, findings: Findings) -> None:
    if not route.several:
        findings[route.name]["several parents"] = "never sent"
        return
    api = route.open(url, several_parents=True, batch=len(SHADES))
    try:
        came = pixels(vary(api, route.parents(*SHADES), 0.5))
        alone = [pixels(vary(route.open(url), route.parents(shade), 0.5, 7 + i)) for i, shade in enumerate(SHADES)]
        right = [distance(one, other[0]) < 1 for one, other in zip(came, alone, strict=True)]
        told = "each is varied" if all(right) else "the first alone is varied" if right[0] else "mixed up"
    except (APIError, AssertionError):
        told = "refused"
    findings[route.name]["several parents"] = told
    assert route.several in told


@pytest.mark.parametrize(("route", "case"), CASES)
def test_what_is_wrong_is_told_in_the_server_s_words(
    route: Route, case: str, request: pytest.FixtureRequest, findings: Findings
) -> None:
    url = request.getfixturevalue(route.server)
    settings, words = route.wrong[case]
    api = route.open(url, **settings)
    parents = np.zeros((1, api.info.shape[0], api.info.shape[1], route.channels), dtype=np.uint8)
    ask = (lambda: vary(api, parents, 0.5)) if "wording" in case else (lambda: draw(api))
    try:
        said = "; ".join(miss.reason for miss in ask().missing.values())
    except APIError as error:
        said = str(error).partition("rejects the request with ")[2]
    findings[route.name][case] = cell(said, {url: "http://…"})
    assert words in said
