"""The client over every kind of model and way to vary: what the server makes is what the local
adapter makes.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from adapters.diffusion.improved import ImprovedDiffusion
from adapters.diffusion.pixel import PixelSpace
from adapters.diffusion.text_to_image import TextToImage
from adapters.server_client import ServerClient
from pe.engine.health import endpoint_findings
from pe.errors import RecipeError
from pe.plugins.protocols import Answer, Failed, GenerationAPI, RandomRequest, VariationRequest
from tests.adapters.diffusion import tiny, tiny_edit
from tests.adapters.diffusion.test_improved import SMALL, weights
from tests.adapters.server.asking import apart, get, near

CLASSES: dict[str | int, Any] = {"a": "7", "b": ["A", 3]}
LABELS = tuple("abba")
SEEDS = np.random.default_rng(4).integers(0, 2**64, len(LABELS), dtype=np.uint64)


def client(url: str, **settings: Any) -> ServerClient:
    return ServerClient(**({"base_url": url, "classes": CLASSES, "steps": 4} | settings))


def drawn(api: GenerationAPI) -> Answer:
    return api.random_api(RandomRequest(LABELS, SEEDS))


def rejection(api: GenerationAPI) -> str:
    """Why the server draws none of these images, whatever their seeds."""
    missing = drawn(api).missing
    (miss,) = set(missing.values())
    assert len(missing) == len(LABELS)
    assert isinstance(miss, Failed)
    assert miss.rejected
    return miss.reason


def varied(api: GenerationAPI, parents: Answer, degree: float, t: int = 1) -> Answer:
    return api.variation_api(
        VariationRequest(parents.samples, LABELS, parents.conditions, SEEDS + 1, degree, t)
    )


def assert_same(remote: GenerationAPI, local: GenerationAPI) -> Answer:
    """They draw the same samples, and vary them alike; the samples."""
    parents, theirs = drawn(local), drawn(remote)
    assert apart(theirs.samples.array, parents.samples.array) <= 1
    for name in parents.conditions:
        np.testing.assert_array_equal(theirs.conditions[name], parents.conditions[name])
    for degree in (0, 0.5, 1.0):
        one, other = (varied(api, parents, degree) for api in (remote, local))
        assert not one.missing, one.missing
        assert apart(one.samples.array, other.samples.array) <= 1
        assert (one.usage is None or one.usage.calls) == (degree > 0)
    assert remote.capabilities.degree == local.capabilities.degree
    return parents


def test_a_pixel_model_with_a_schedule_of_steps(small: str) -> None:
    local = PixelSpace(model="small", classes=CLASSES, steps=4, device="cpu", batch_size=3)
    parents = assert_same(client(small), local)
    staged = client(small, steps=[4, 6])
    six = varied(PixelSpace(model="small", classes=CLASSES, steps=6, device="cpu"), parents, 0.5)
    assert apart(varied(staged, parents, 0.5, t=2).samples.array, six.samples.array) <= 1
    assert staged.describe_degree(0.5, 2) == "noised and denoised, the last 3 of 6 steps"
    missing = varied(client(small), parents, 0.1).missing
    assert sorted(missing) == list(range(len(LABELS)))
    assert "leaves no denoising step" in missing[0].reason


def test_what_the_model_cannot_do_is_said_in_one_sentence(small: str) -> None:
    assert (
        rejection(client(small, steps=51))
        == "HTTP 400: `num_inference_steps` must be from 1 to 50."
    )
    assert "takes no words" in rejection(client(small, classes=None, prompts="a cat"))
    with pytest.raises(RecipeError, match="no class named 'cat'"):
        drawn(client(small, classes={"a": "cat", "b": 1}))


def described(url: str, *names: str) -> list[Any]:
    known = get(url, "/v1/models")[1]["data"][0]["pe"]
    return [known[name] for name in names]


def options(given: dict[str, Any]) -> list[str]:
    return [
        part for name, value in given.items() for part in ("--set", f"{name}={json.dumps(value)}")
    ]


def test_a_checkpoint_of_improved_diffusion(tmp_path: Path) -> None:
    file = str(tmp_path / "improved.safetensors")
    save_file(weights(SMALL), file)
    common: dict[str, Any] = {"spacing": "stride", "rescaled": True, "size": 8}
    with near(file, *options(common)) as url:
        assert_same(
            ServerClient(base_url=url, steps=5),
            ImprovedDiffusion(model=file, steps=5, device="cpu", **common),
        )
        assert described(url, "class_count", "shape", "guidance") == [7, [8, 8, 3], False]
        for _ in range(11):  # the replica goes on, where as many breakdowns would end it
            missing = drawn(ServerClient(base_url=url, steps=1)).missing
        assert missing[0].reason == "`steps` is 1. It must be from 2 to 4000."
        assert "No whole stride" in drawn(ServerClient(base_url=url, steps=300)).missing[0].reason
        assert "The model takes no guidance" in rejection(
            ServerClient(base_url=url, steps=5, guidance=2)
        )


def test_a_pixel_model_is_guided_where_one_of_its_classes_stands_for_none(tmp_path: Path) -> None:
    model = tiny.pixel_folder(tmp_path / "model", classes=7)
    with near(model, "--guidance", "1", "--set", "eta=1") as url:
        local = PixelSpace(model=model, steps=4, guidance=3, eta=1, device="cpu")
        assert_same(ServerClient(base_url=url, steps=4, guidance=3), local)
        assert described(url, "class_count", "guidance", "vary", "degree") == [
            6,
            True,
            "noise",
            "exact",
        ]
    (tmp_path / "model" / "classes.json").write_text(
        json.dumps({"classes": [f"kind {i}" for i in range(6)]})
    )
    with near(model) as url:
        assert described(url, "guidance") == [True]  # all its classes but one have names


def test_a_model_that_varies_by_structure_says_so_and_is_not_asked_for_noise(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    pipeline = tiny.stable_diffusion()
    pipeline.save_pretrained(tmp_path / "model")
    tiny_edit.control_net(pipeline.unet).save_pretrained(tmp_path / "net")
    model, more = str(tmp_path / "model"), {"controlnet": str(tmp_path / "net"), "sampler": "euler"}
    common: dict[str, Any] = {"prompts": "a {label}", "steps": 3, "size": 64}
    with near(model, *options(more)) as url:
        remote = ServerClient(base_url=url, vary="structure", **common)
        assert_same(remote, TextToImage(model=model, device="cpu", batch_size=2, **common, **more))
        assert (
            remote.describe_degree(0.5)
            == "drawn anew, with a weight of 0.5 for the parent's structure"
        )
        assert described(url, "vary", "degree") == ["structure", "exact"]
        said = rejection(ServerClient(base_url=url, **common))
        assert "by structure, not by noise. Set `vary: structure` in the recipe" in said
        line = "the server varies images by structure, the degree obeyed exactly"
        for stated, state in (("structure", "ok"), ("noise", "problem")):
            told = endpoint_findings("diffusion_server", {"base_url": url, "vary": stated})
            assert [one.state for one in told if one.what == line] == [state]
