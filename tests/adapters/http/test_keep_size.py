"""Samples that are kept as they were drawn: parents go back out at that size, and the result has the other."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from adapters.hf_inference import HFInference
from adapters.openai_images import OpenAIImages
from adapters.sdapi import SDAPI
from pe.data.decoding import convert_pixels
from pe.data.images import Images
from pe.data.population import NO_PARENT, Population
from pe.data.samples import DRAWN, Conditions
from pe.dispatch.answers import Standing, decode, encode
from pe.dispatch.work import Work
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.engine.extend import extend_run
from pe.errors import LimitReached, RecipeError
from pe.planning.build import build_generator
from pe.planning.forecast import forecast
from pe.plugins.protocols import RandomRequest, VariationRequest
from pe.recipe.schema import Recipe
from pe.report.sections import shareable_report
from pe.store.run import Run
from tests.durability.driver import make_private
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import OpenAIServer
from tests.endpoints.serving import serving

SMALL, LARGE = 4, 72
SEEDS = np.arange(2, dtype=np.uint64)


def settings(url: str, **others: object) -> dict[str, object]:
    given = {"model": "m", "base_url": f"{url}/v1", "key_env": None, "prompts": "a {label}", "timeout": 5, "n": 2}
    return given | {"image_size": SMALL, "channels": 1, "size": f"{LARGE}x{LARGE}", "keep_size": True} | others


def recipe(folder: Path, url: str, **limits: int) -> Recipe:
    make_private(folder / "private.npz")
    private = {"kind": "npz", "path": str(folder / "private.npz"), "size": SMALL, "channels": 1, "classes": ["a", "b"]}
    evolution = {"iterations": 2, "population": 6, "lookahead": 2, "reuse_lookahead": True, "degree": 0.5}
    content = {
        "private": private | {"declared_size": 30},
        "api": {"kind": "openai_images"} | settings(url),
        "privacy": {"epsilon": 50, "delta": 0.01, "public_clock": "never"},
        "evolution": evolution,
        "limits": limits,
    }
    return Recipe.parse(content, "the test")


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def test_a_parent_arrives_at_the_size_at_which_it_was_drawn_and_the_result_has_the_other(tmp_path: Path) -> None:
    script, folder = Script(), tmp_path / "run"
    with serving(server := OpenAIServer(script, side=LARGE)) as url:
        with pytest.raises(LimitReached):
            run_recipe(recipe(tmp_path, url, max_images=20), folder, Surroundings())
        resume_run(folder, Surroundings(), recipe(tmp_path, url, max_images=1000))
        extend_run(folder, 4, 0.5, Surroundings(), ("limits.max_images=1000",))
    drawn = {pixels(data).tobytes() for data in server.drawn}
    parents = [pixels(data) for request in script.requests for data in request["parents"] or ()]
    assert len(parents) > 10
    assert {parent.shape for parent in parents} == {(LARGE, LARGE, 3)}
    assert all(parent.tobytes() in drawn for parent in parents)
    run = Run.open(folder)
    for population in (*run.populations(), *run.extensions()):
        kept = population.conditions[DRAWN]
        assert {one.tobytes() for one in kept} <= drawn
        for sample, one in zip(population.samples.array, kept, strict=True):
            np.testing.assert_array_equal(
                sample, convert_pixels(one, size=(SMALL, SMALL), resize="crop", channels=1, name="it")
            )
    with np.load(run.export(tmp_path / "copy") / "synthetic.npz") as synthetic:
        assert synthetic["images"].shape == (6, SMALL, SMALL, 1)
    assert b"<html" in shareable_report(run).encode()


def test_without_it_parents_go_out_at_the_size_of_samples() -> None:
    script = Script()
    with serving(OpenAIServer(script, side=LARGE)) as url:
        api = OpenAIImages(**settings(url, keep_size=False))
        request = VariationRequest(Images(np.zeros((2, 4, 4, 1), np.uint8)), ("a",) * 2, Conditions(), SEEDS, 0.5)
        assert not api.variation_api(request).conditions
    assert pixels(script.requests[0]["parents"][0]).shape == (SMALL, SMALL, 3)


def test_it_wants_one_size_that_is_known() -> None:
    for size in (None, "auto"):
        with pytest.raises(RecipeError, match="keep_size: true needs one known size"):
            OpenAIImages(**settings("http://127.0.0.1:1", size=size))
    with pytest.raises(RecipeError, match="keep_size"):
        HFInference(model="m", prompts="a", image_size=8, keep_size=True)
    given = {"base_url": "http://127.0.0.1:1", "prompts": "a", "image_size": 8, "keep_size": True}
    assert SDAPI(**given).info.kept is None  # it draws at image_size
    assert SDAPI(**given, size=16).info.kept == (16, 16)
    assert HFInference(model="m", prompts="a", image_size=8, size=16, keep_size=True).info.drawn == (16, 16)


def test_what_comes_is_kept_at_a_size_of_one_s_own_where_the_endpoint_draws_at_any() -> None:
    script = Script()
    with serving(OpenAIServer(script, side=LARGE)) as url:
        api = OpenAIImages(**settings(url, size=None, keep_size=LARGE // 2))
        assert api.info.kept == (LARGE // 2,) * 2
        prompts = Conditions({"prompt": np.array(["a"] * 2)})
        made = api.random_api(RandomRequest(labels=("a",) * 2, conditions=prompts, seeds=SEEDS))
        api.variation_api(VariationRequest(made.samples, ("a",) * 2, made.conditions, SEEDS, 0.5))
    assert made.conditions[DRAWN].shape == (2, LARGE // 2, LARGE // 2, 3)
    sent = [pixels(data) for request in script.requests for data in request["parents"] or ()]
    assert {one.tobytes() for one in sent} <= {one.tobytes() for one in made.conditions[DRAWN]}
    assert {one.shape for one in sent} == {(LARGE // 2, LARGE // 2, 3)}


def test_what_was_drawn_does_not_part_requests_and_is_packed_as_samples_are() -> None:
    drawn = np.arange(3 * 80 * 70 * 3, dtype=np.uint32).astype(np.uint8).reshape(3, 80, 70, 3)
    columns = {"images": np.zeros((3, 4, 4, 1), np.uint8), f"condition.{DRAWN}": drawn, "items": np.arange(3)}
    data = np.frombuffer(b"".join(encode(columns)), np.uint8)
    assert len(data) < drawn.size / 2
    found = decode(data)
    assert found.keys() == columns.keys()
    for name, column in columns.items():
        np.testing.assert_array_equal(found[name], column)
    labels = np.zeros(3, np.int32)
    given = {"base_url": "http://127.0.0.1:1", "prompts": "a", "image_size": 4, "size": 80, "keep_size": True}
    api = SDAPI(**given, batch=8, several_parents=True)
    prompts = Conditions({"prompt": np.array(["a"] * 3), DRAWN: drawn})
    source = Population(Images(columns["images"]), labels, prompts, np.full(3, NO_PARENT))
    work = Work("population/1", labels, ("a",), 1, np.arange(3), source, 0.5)
    assert [len(chunk) for chunk in work.chunks(np.arange(3), Standing.untouched(3), api)] == [3]


def test_the_plan_states_the_disk(tmp_path: Path) -> None:
    one = recipe(tmp_path, "http://127.0.0.1:1")
    found = forecast(one, build_generator(one))
    each = SMALL * SMALL + 3 * LARGE * LARGE
    assert found.disk == max(2 * 3 * 6 * each + 6 * SMALL * SMALL, each * (3 * 6 + 6 + 12))
    assert "Disk        up to 0.561 MB for samples" in str(found)
    assert forecast(one, None).disk is None
