"""Every kind of model that the server runs, and every way to vary: what it makes is what the local adapter makes."""

from __future__ import annotations

import io
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from diffusers import DiffusionPipeline
from PIL import Image
from safetensors.torch import save_file

from adapters.diffusion.improved import ImprovedDiffusion
from adapters.diffusion.pixel import PixelSpace
from adapters.diffusion.text_to_image import TextToImage
from adapters.http.servers import recognised
from adapters.server_client import ServerClient
from pe.engine.health import endpoint_findings
from pe.engine.probe import probe_ladder
from pe.errors import APIError
from pe.planning.build import object_kind
from pe.plugins.protocols import Answer, GenerationAPI, RandomRequest, VariationRequest
from pe.recipe.schema import Recipe
from tests.adapters.diffusion import tiny, tiny_edit, tiny_more
from tests.adapters.diffusion.test_improved import SMALL, weights
from tests.adapters.server.asking import apart, pixels, png
from tests.adapters.server.near import near

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # diffusers and numpy 2
    pytest.mark.filterwarnings("ignore:Using extra keyword arguments:DeprecationWarning"),  # of Ray
]

LABELS = tuple("abba")
SEEDS = np.random.default_rng(4).integers(0, 2**64, len(LABELS), dtype=np.uint64)
SIDE = 64


def drawn(api: GenerationAPI) -> Answer:
    return api.random_api(RandomRequest(LABELS, SEEDS))


def varied(api: GenerationAPI, parents: Answer, degree: float) -> Answer:
    return api.variation_api(VariationRequest(parents.samples, LABELS, parents.conditions, SEEDS + 1, degree))


def assert_same(remote: GenerationAPI, local: GenerationAPI) -> None:
    """They draw the same samples, and vary them alike."""
    parents, theirs = drawn(local), drawn(remote)
    assert apart(theirs.samples.array, parents.samples.array) <= 1
    for name in parents.conditions:
        np.testing.assert_array_equal(theirs.conditions[name], parents.conditions[name])
    for degree in (0.5, 1.0):
        one, other = (varied(api, parents, degree) for api in (remote, local))
        assert not one.missing, one.missing
        assert apart(one.samples.array, other.samples.array) <= 1
    assert remote.capabilities.degree == local.capabilities.degree


def described(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=20) as answer:
        found: dict[str, Any] = json.load(answer)["data"][0]["pe"]
    return found


def improved(folder: Path) -> str:
    save_file(weights(SMALL), folder / "improved.safetensors")
    return str(folder / "improved.safetensors")


def test_a_checkpoint_of_improved_diffusion(tmp_path: Path) -> None:
    file = improved(tmp_path)
    common: dict[str, Any] = {"spacing": "stride", "rescaled": True, "size": 8}
    options = [part for name, value in common.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    with near(file, *options) as url:
        remote = ServerClient(base_url=url, steps=5)
        assert_same(remote, ImprovedDiffusion(model=file, steps=5, device="cpu", **common))
        known = described(url)
        assert (known["class_count"], known["shape"], known["guidance"]) == (7, [8, 8, 3], False)
        for _ in range(11):  # the replica goes on, where as many breakdowns would end it
            missing = drawn(ServerClient(base_url=url, steps=1)).missing
        assert missing[0].reason == "steps is 1: it must lie from 2 to 4000."
        assert "no whole stride" in drawn(ServerClient(base_url=url, steps=300)).missing[0].reason
        with pytest.raises(APIError, match="The model has no guidance"):
            drawn(ServerClient(base_url=url, steps=5, guidance=2))


def test_a_pixel_model_is_guided_where_one_of_its_classes_stands_for_none(tmp_path: Path) -> None:
    model = tiny.pixel_folder(tmp_path / "model", classes=7)
    with near(model, "--guidance", "1", "--set", "eta=1") as url:
        assert_same(
            ServerClient(base_url=url, steps=4, guidance=3),
            PixelSpace(model=model, steps=4, guidance=3, eta=1, device="cpu"),
        )
        known = described(url)
        assert (known["class_count"], known["guidance"], known["vary"], known["degree"]) == (6, True, "noise", "exact")
    (tmp_path / "model" / "classes.json").write_text(json.dumps({"classes": [f"kind {i}" for i in range(6)]}))
    with near(model) as url:
        assert described(url)["guidance"]  # all its classes but one have names
        plain = ServerClient(base_url=url, steps=4)
        assert apart(drawn(plain).samples.array, drawn(PixelSpace(model=model, steps=4)).samples.array) <= 1


def saved(pipeline: DiffusionPipeline, folder: Path) -> str:
    pipeline.save_pretrained(folder)
    return str(folder)


def _edits(folder: Path, _: Any) -> dict[str, Any]:
    model = saved(tiny_edit.instruct_pix2pix(), folder / "edits")
    return {"variation_model": model, "wordings": {0.5: "near {prompt}", 1.0: "far"}}


def _ip_adapter(folder: Path, pipeline: Any) -> dict[str, Any]:
    lora = tiny_more.lora(folder, pipeline.unet)
    return {"ip_adapter": tiny_edit.ip_adapter(folder / "adapter", pipeline.unet), "lora": {str(lora): 0.5}}


def _controlnet(folder: Path, pipeline: Any) -> dict[str, Any]:
    return {"controlnet": saved(tiny_edit.control_net(pipeline.unet), folder / "net"), "sampler": "euler"}


@pytest.fixture
def model(tmp_path: Path) -> tuple[str, Any]:
    """A tiny Stable Diffusion, saved and as it is."""
    torch.manual_seed(0)
    pipeline = tiny.stable_diffusion()
    return saved(pipeline, tmp_path / "model"), pipeline


WAYS: dict[str, tuple[Callable[[Path, Any], dict[str, Any]], str, str]] = {
    "instruction": (_edits, "told by the server, in words of its own", "worded as “near <the prompt>”"),
    "meaning": (_ip_adapter, *["drawn anew, with a weight of 0.75 for what the parent shows"] * 2),
    "structure": (_controlnet, *["drawn anew, with a weight of 0.75 for the parent's structure"] * 2),
}


def assert_ladder(api: GenerationAPI, meaning: str) -> None:
    """`pe probe --ladder` tells and shows how it varies images."""
    content = {
        "private": {"kind": "folder", "path": "nowhere", "size": SIDE, "classes": ["a"]},
        "api": {"kind": object_kind(api)},
        "embedding": {"kind": "pixels"},
        "privacy": {"epsilon": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": 4},
    }
    found = probe_ladder(Recipe.parse(content, "the test"), None, (0, 0.25), api)
    assert f"At 0.25: {meaning}\n" in str(found)
    with Image.open(io.BytesIO(found.picture())) as picture:
        assert picture.height > 1.5 * picture.width > 4.5 * SIDE  # five parents, each with two variations


@pytest.mark.parametrize("way", [pytest.param("instruction", marks=pytest.mark.slow), "meaning", "structure"])
def test_every_way_to_vary(way: str, model: tuple[str, Any], tmp_path: Path) -> None:
    beside, *meanings = WAYS[way]
    more = beside(tmp_path, model[1])
    common: dict[str, Any] = {"prompts": "a {label}", "steps": 3, "size": SIDE}
    options = [part for name, value in more.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    with near(model[0], *options) as url:
        remote = ServerClient(base_url=url, vary=way, **common)
        local = TextToImage(model=model[0], device="cpu", batch_size=2, **common, **more)
        assert_same(remote, local)
        for api, meaning in zip((remote, local), meanings, strict=True):
            assert_ladder(api, meaning)
        assert remote.describe_degree(0) == "the parent itself, without a call"
        words = way == "instruction"
        known = described(url)
        assert (known["vary"], known["degree"]) == (way, "wording" if words else "exact")
        profile = recognised("openai_images", f"{url}/v1", lambda address: json.load(urllib.request.urlopen(address)))
        assert profile is not None
        assert ("degree_exact" in profile.sets) is not words
        with pytest.raises(APIError, match=f"by {way}, not by noise: put `vary: {way}` in the recipe"):
            drawn(ServerClient(base_url=url, **common))
        told = {
            stated: list(endpoint_findings("diffusion_server", {"base_url": url, "vary": stated}))
            for stated in (way, "noise")
        }
        line = f"the server varies images by {way}, the degree {'told in words' if words else 'obeyed exactly'}"
        assert [(one.state, one.remedy) for one in told[way] if one.what == line] == [("ok", "")]
        assert [one.state for one in told["noise"] if one.what == line] == ["problem"]
        parent = drawn(remote).samples.array[0]
        answer = openai.OpenAI(base_url=f"{url}/v1", api_key="none").images.edit(
            image=("a.png", png(parent[:40]), "image/png"), prompt="a", extra_body={"seed": 3, "num_inference_steps": 2}
        )
        assert answer.data is not None
        assert pixels(answer.data[0]).shape == (40, SIDE, 3)  # its own size, whatever the way
