"""What `pe serve` is told of its model, and what it refuses before Ray is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from adapters.server import application
from adapters.server.checks import Settings
from adapters.server.command import serve
from pe.errors import RecipeError
from tests.adapters.diffusion import tiny
from tests.adapters.diffusion.test_improved import SMALL, weights
from tests.adapters.server.near import settings_of


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a model of each kind: their settings, and weights of one alone."""
    monkeypatch.chdir(tmp_path)
    for name, kind in (("sd", "StableDiffusionPipeline"), ("edits", "StableDiffusionInstructPix2PixPipeline")):
        (tmp_path / name).mkdir()
        index = {"_class_name": kind, "text_encoder": ["transformers", "CLIPTextModel"]}
        (tmp_path / name / "model_index.json").write_text(json.dumps(index))
    tiny.pixel_folder(tmp_path / "plain")
    save_file(weights(SMALL), tmp_path / "improved.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    return tmp_path


def test_places_that_are_here_get_their_whole_paths(here: Path) -> None:
    style = ("--lora", "other.safetensors=-0.5", "--lora", "owner/name", "--lora", "owner/name/file.safetensors=2")
    options = ("variation_model=edits", "wordings={0.5: near, 1: '{prompt}'}", "components={vae: edits, unet: a/b}")
    found = settings_of("sd", *style, *(part for option in options for part in ("--set", option)))
    assert found.model == str(here / "sd")
    assert found.generator == {
        "lora": {str(here / "other.safetensors"): -0.5, "owner/name": 1.0, "owner/name/file.safetensors": 2.0},
        "variation_model": str(here / "edits"),
        "wordings": {"0.5": "near", "1": "{prompt}"},
        "components": {"vae": str(here / "edits"), "unet": "a/b"},
    }
    adapter = "ip_adapter={pretrained_model_name_or_path_or_dict: edits, subfolder: edits, weight_name: a.safetensors}"
    named = settings_of("sd", "--set", adapter, "--set", "lora=[other.safetensors, owner/name]").generator
    assert named["ip_adapter"]["pretrained_model_name_or_path_or_dict"] == str(here / "edits")
    assert (named["ip_adapter"]["subfolder"], named["lora"][0]) == ("edits", str(here / "other.safetensors"))
    assert settings_of("improved.safetensors", "--set", "size=8").model == str(here / "improved.safetensors")
    assert settings_of("imagenet64_cond_270M_250K") == Settings(model="imagenet64_cond_270M_250K")


REFUSED: dict[str, tuple[str, str]] = {
    "sd --set contrlnet=edits": ("--set", "unknown key 'contrlnet'; did you mean 'controlnet'?"),
    "owner/name --set contrlnet=edits": ("--set", "unknown key 'contrlnet'; did you mean 'controlnet'?"),
    "small --set vary=noise": ("--set", "unknown key 'vary'; known are 'eta', 'offline', 'revision', 'sampler'."),
    "sd --set vary=sideways": ("--set", "vary must be 'noise', 'instruction', 'meaning' or 'structure'"),
    "sd --set vary=instruction": ("sd", "cannot vary by instruction"),
    "sd --set vary=meaning": ("sd", "needs an IP-Adapter: name one under ip_adapter"),
    'sd --set arguments={"true_cfg_scale":2}': ("arguments", "takes no true_cfg_scale"),
    "edits": ("edits", "makes no images from text"),
    "sd --set vary": ("--set vary", "write NAME=VALUE"),
    "sd --set vary=noise --set vary=noise": ("--set vary", "twice"),
    "sd --set vary=[": ("--set vary", "is no YAML"),
    "sd --set model=edits": ("--set", "leave it out"),
    "sd --lora other.safetensors=high": ("--lora other.safetensors=high", "write PLACE or PLACE=WEIGHT"),
    "sd --lora other.safetensors=nan": ("--lora", "write PLACE or PLACE=WEIGHT"),
    "sd --lora a/b --set lora=c/d": ("--lora and --set lora", "drop one"),
    "plain --guidance 2": ("--guidance is 2", "has no classes: leave it out"),
    "small --guidance 2": ("--guidance is 2", "has a name for each of its classes, and none for no class"),
    "improved.safetensors --guidance 2": ("--guidance is 2", "was not trained for it"),
    "improved.safetensors --steps 1": ("steps is 1", "from 2 to 4000"),
    "improved.safetensors --set spacing=even": ("--set", "spacing must be 'ends' or 'stride'"),
    "other.safetensors": ("other.json is missing", "belongs to the model"),
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_served_is_one_sentence_before_ray_is_started(
    line: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "start", lambda *_: pytest.fail("Ray was to be started"))
    result = CliRunner().invoke(serve, line.split())
    assert isinstance(result.exception, RecipeError), result.exception
    for words in REFUSED[line]:
        assert words in str(result.exception)
