"""When a run has a public clock, and what its deadlines follow from."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adapters.pools import PublicImages
from adapters.sdapi import SDAPI
from embeddings.pixels import Pixels
from pe.data.images import Images
from pe.nearest import nearest
from pe.planning.clock import EMBEDDING, clock_terms, deadlines, held_back, round_up
from pe.planning.layout import fit_dry_runs, lay_out
from pe.plugins.protocols import PluginInfo, info_of
from pe.recipe.schema import Recipe
from tests.adapters.trained.diffusion.small import NETWORK
from tests.generators import Mean, Shades

SIZES = (256, 10_000)


class Undeclared(Shades):
    info = PluginInfo()


class Remote(Shades):
    info = PluginInfo(hosts=("api.example",))


def recipe(declared: int | None = 256, iterations: int = 2, **privacy: Any) -> Recipe:
    private = {"kind": "npz", "path": "p.npz", "size": 8, "channels": 1, "classes": ["a", "b"]}
    return Recipe.parse(
        {
            "private": private | ({} if declared is None else {"declared_size": declared}),
            "api": {"kind": "object:tests.generators.Shades"},
            "privacy": {"epsilon": 4, "delta": 1e-5, **privacy},
            "evolution": {"iterations": iterations, "population": 200, "lookahead": 0},
        },
        "the test",
    )


@pytest.mark.parametrize(
    ("api", "wanted", "declared", "on", "why", "warned"),
    [
        (Remote(), "auto", 256, True, "on: requests go to api.example", False),
        (Undeclared(), "auto", 256, True, "on: requests go to an object that declares no hosts", False),
        (None, "auto", 256, True, "on: requests go to an object that declares no hosts", False),
        (Shades(), "auto", 256, False, "off: no other machine sees how long private work takes", False),
        (Shades(), "always", 256, True, "on: privacy.public_clock is 'always'", False),
        (Remote(), "auto", None, False, "off: private.declared_size is missing", True),
        (Shades(), "auto", None, False, "off: no other machine sees how long private work takes", False),
        (Remote(), "never", 256, False, "off: privacy.public_clock is 'never'", True),
        (Shades(), "never", 256, False, "off: privacy.public_clock is 'never'", False),
    ],
)
def test_a_clock_is_on_where_requests_leave_the_process(
    api: Shades | None, wanted: str, declared: int | None, on: bool, why: str, warned: bool
) -> None:
    terms = clock_terms(recipe(declared, public_clock=wanted), api)
    assert (terms.on, terms.why) == (on, why)
    assert bool(terms.warning) == warned
    assert ("state private.declared_size" in terms.warning) == warned


def test_every_shipped_generator_and_embedding_says_whom_it_asks() -> None:
    assert info_of(SDAPI(base_url="http://h.example:7860", prompts=["x"], image_size=8)).hosts == ("h.example:7860",)
    assert PublicImages.info.hosts == Pixels.info.hosts == ()


def test_each_piece_of_private_work_has_a_deadline_that_follows_from_public_numbers() -> None:
    for declared in SIZES:
        wanted = recipe(declared)
        plan = lay_out(wanted)
        seconds, unheld = deadlines(wanted, plan, Mean())
        assert list(seconds) == [EMBEDDING, "histogram/1", "histogram/2"]
        assert not unheld
        assert all(value >= 0.1 and value == round_up(value) for value in seconds.values())


class Slow(Mean):
    """Counts the images that it is shown, all black."""

    shown = 0

    def embed(self, samples: Images) -> Any:
        assert not samples.array.any()
        self.shown += len(samples)
        return super().embed(samples)


def test_a_try_shows_the_embedding_nothing_but_black_images() -> None:
    embedding = Slow()
    wanted = recipe(10_000)
    deadlines(wanted, lay_out(wanted), embedding)
    assert embedding.shown == 2 * embedding.batch_size


def test_a_fit_is_held_by_its_dry_run_and_else_told_to_have_no_deadline() -> None:
    private = {"kind": "npz", "path": "p.npz", "size": 8, "channels": 1, "classes": ["a"], "declared_size": 64}
    training = {"steps": 4, "expected_batch": 64, "block": 2}  # all records in every step: accounted in no time
    content = {
        "private": private,
        "api": {"kind": "dpdm", "training": training, "network": NETWORK, "device": "cpu"},
        "privacy": {"epsilon": 4, "delta": 1e-3, "public_clock": "always"},
        "evolution": {"iterations": 0, "population": 8},
    }
    wanted = Recipe.parse(content, "the test")
    plan = lay_out(wanted)
    tried = [replace(one, seconds_per_step=10.0) for one in fit_dry_runs(wanted)]
    seconds, unheld = deadlines(wanted, plan, Mean(), tried)
    assert seconds["fit/training/1"] == seconds["fit/training/2"] == 100  # 2 steps × 10 s × 3, rounded up
    assert not unheld
    assert deadlines(wanted, plan, Mean())[1] == ["fit/training/1", "fit/training/2"]


def test_a_search_is_held_for_as_long_as_the_most_costly_candidates_take() -> None:
    """Whoever makes the candidates may plant some that are equally near to every record, which are settled in pairs."""
    wanted = recipe(3000)
    plan = lay_out(wanted)
    records, candidates = np.random.default_rng(0).standard_normal((2, 3000, 784), np.float32)
    records[:, 0], candidates[:] = 0, candidates[0]
    candidates[:, 0] = np.arange(3000) * np.float32(1e-12)
    held, taken = [], []
    for _ in range(3):  # other processes take time, too, now from the one and now from the other
        held.append(deadlines(wanted, plan, Pixels(features="gradients", size=28))[0]["histogram/1"])
        started = time.perf_counter()
        nearest(records, candidates[:100], 1, metric="l2", backend="auto")  # 100 of a label
        taken.append(time.perf_counter() - started)
    assert min(taken) < max(held)


def test_larger_files_have_time_to_be_decoded() -> None:
    small, large = (recipe(1000).model_dump(mode="json") for _ in range(2))
    large["private"]["largest_side"] = 1024
    seconds = []
    for content in (small, large):
        wanted = Recipe.parse(content, "the test")
        plan = lay_out(wanted)
        seconds.append(deadlines(wanted, plan, Mean())[0][EMBEDDING])
    assert seconds[1] >= 4 * seconds[0]


def test_an_embedding_on_another_machine_is_not_tried_by_a_plan() -> None:
    class Elsewhere(Mean):
        info = PluginInfo(hosts=("vectors.example",))

        def embed(self, samples: Images) -> Any:
            raise AssertionError("asked")

    wanted = recipe()
    plan = lay_out(wanted)
    assert held_back(wanted, plan, Remote(), Elsewhere()).seconds == {}
    assert held_back(wanted, plan, Remote(), Mean()).seconds


@pytest.mark.parametrize(("seconds", "wanted"), [(0.2, 0.2), (0.21, 0.5), (1.0, 1.0), (51, 100), (0.05, 0.05), (7, 10)])
def test_deadlines_are_round(seconds: float, wanted: float) -> None:
    assert round_up(seconds) == pytest.approx(wanted)
