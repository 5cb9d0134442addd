"""ComfyUI's workflows: the places in them, what is refused before anything is sent, and what a job leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from adapters.comfyui import ComfyUI
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import Failed
from tests.adapters.test_job_hosts import random, varied
from tests.endpoints.comfy_server import RANDOM, ComfyServer, workflows
from tests.endpoints.serving import serving

GIVEN = {"base_url": "http://127.0.0.1:1", "prompts": "a {label}", "image_size": 16, "poll": 0.002}


@contextmanager
def comfy(folder: Path, **settings: Any) -> Iterator[tuple[ComfyUI, ComfyServer]]:
    server = ComfyServer()
    with serving(server) as url:
        yield ComfyUI(**workflows(folder) | GIVEN | {"base_url": url} | settings), server


def test_a_request_fills_in_every_place_and_leaves_the_rest(tmp_path: Path) -> None:
    with comfy(tmp_path, batch=3, size=(16, 16)) as (api, server):
        assert len(random(api, 3).samples) == 3
        assert len(varied(api, 0.4, 100, 2).samples) == 2
        assert api.capabilities.max_chunk == 3
        assert api.capabilities.degree == "exact"
        assert "denoise = 0.4" in api.describe_degree(0.4)
        new, variation = (job.body for job in server.jobs.values())
    assert new["6"]["inputs"] == {"text": "a cat", "clip": ["4", 1]}
    assert new["5"]["inputs"] == {"width": 16, "height": 16, "batch_size": 3}
    assert (new["3"]["inputs"]["seed"], new["3"]["inputs"]["denoise"]) == (40, 1.0)
    assert variation["3"]["inputs"]["denoise"] == 0.4
    assert variation["10"]["inputs"]["image"] in server.uploads
    assert json.loads((tmp_path / "random.json").read_text()) == RANDOM


def test_without_a_place_for_the_degree_it_is_put_in_words(tmp_path: Path) -> None:
    flows = workflows(tmp_path)
    del flows["variations"]["denoise"]
    with comfy(tmp_path, **flows) as (api, server):
        varied(api, 0.4, 100)
        assert api.capabilities.degree == "wording"
        (job,) = server.jobs.values()
    assert "close variation" in job.body["6"]["inputs"]["text"]


def test_a_value_may_go_to_several_places(tmp_path: Path) -> None:
    flows = workflows(tmp_path)
    flows["random"]["prompt"] = ["6.text", "9.filename_prefix"]
    with comfy(tmp_path, **flows) as (api, server):
        random(api)
        (job,) = server.jobs.values()
    assert job.body["6"]["inputs"]["text"] == job.body["9"]["inputs"]["filename_prefix"] == "a cat"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": "6.txt"}, "random.prompt: .* has no 6.txt; did you mean '6.text'"),
        ({"prompt": "60.text"}, "has no 60.text; known are '3', '5', '6', '9'"),
        ({"seed": "seed"}, "a place is NODE.INPUT"),
        ({"seed": "3.latent_image"}, "3.latent_image is connected to another node"),
        ({"batch": None}, "random.batch names no place"),
        ({"width": None, "size": 32}, "random has no places for width and height"),
        ({"file": "nowhere.json"}, "random.file: nowhere.json cannot be read"),
        ({"file": "torn.json"}, "is no JSON"),
        ({"file": "editor.json"}, "is no workflow in API format"),
    ],
)
def test_a_wrong_workflow_is_refused_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("torn.json").write_text('{"3"')
    Path("editor.json").write_text('{"nodes": [], "links": []}')
    flows, size = workflows(tmp_path), change.pop("size", None)
    flows["random"] = {name: value for name, value in (flows["random"] | change).items() if value is not None}
    with pytest.raises(RecipeError, match=words):
        ComfyUI(**flows, **GIVEN, batch=1 if size else 2, **({"size": size} if size else {}))


def test_the_server_s_words_on_a_bad_workflow_stop_the_run(tmp_path: Path) -> None:
    with comfy(tmp_path) as (api, _), pytest.raises(APIError, match="Prompt outputs failed validation"):
        varied(api, 0.125, 9)


def test_a_failed_node_is_named(tmp_path: Path) -> None:
    with comfy(tmp_path) as (api, server):
        server.outcomes = ["failed", "cancelled"]
        assert random(api, seed=1).missing == {0: Failed("KSampler failed: Allocation on device")}
        assert "cancelled" in random(api, seed=2).missing[0].reason


def test_a_named_output_is_taken_whatever_else_is_saved(tmp_path: Path) -> None:
    flows = workflows(tmp_path)
    flows["random"]["output"] = 7
    with comfy(tmp_path, **flows) as (api, _):
        assert "0 images" in random(api).missing[0].reason


def test_a_job_that_is_given_up_leaves_the_queue(tmp_path: Path) -> None:
    with comfy(tmp_path, job_timeout=0.05) as (api, server):
        server.finished = 0
        random(api)
        assert not server.jobs
