"""What `pe serve` is told and refuses before Ray starts, what Ray builds from it, and which model a
replica takes.
"""

import json
import re
import shlex
import socket
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
import yaml
from click.testing import CliRunner
from safetensors.torch import save_file

from adapters.diffusion.pixel import PixelFiles
from adapters.server import deploy
from adapters.server.checks import ServeSettings, digest_of
from adapters.server.command import serve
from adapters.server.deploy import MIDDLEWARES, room_for
from adapters.server.models import find_model, load_served_model
from pe.errors import RecipeError
from tests.adapters.diffusion import tiny
from tests.adapters.diffusion.test_improved import SMALL, weights
from tests.adapters.server.asking import settings_of


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a model of each kind: their settings, and weights of one alone."""
    monkeypatch.chdir(tmp_path)
    for name, kind in (
        ("sd", "StableDiffusionPipeline"),
        ("edits", "StableDiffusionInstructPix2PixPipeline"),
    ):
        (tmp_path / name).mkdir()
        index = {"_class_name": kind, "text_encoder": ["transformers", "CLIPTextModel"]}
        (tmp_path / name / "model_index.json").write_text(json.dumps(index))
    tiny.pixel_folder(tmp_path / "plain")
    save_file(weights(SMALL), tmp_path / "improved.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    return tmp_path


def test_places_that_are_here_get_their_whole_paths(here: Path) -> None:
    options = (
        "lora={other.safetensors: -0.5, owner/name: 1}",
        "variation_model=edits",
        "components={vae: edits, unet: a/b}",
    )
    found = settings_of("sd", *(part for option in options for part in ("--set", option)))
    assert found.model == str(here / "sd")
    assert found.generator["lora"] == {str(here / "other.safetensors"): -0.5, "owner/name": 1}
    assert found.generator["variation_model"] == str(here / "edits")
    assert found.generator["components"] == {"vae": str(here / "edits"), "unet": "a/b"}
    adapter = (
        "ip_adapter={pretrained_model_name_or_path_or_dict: edits, subfolder: edits, weight_name: "
        "a.safetensors}"
    )
    named = settings_of(
        "sd", "--set", adapter, "--set", "lora=[other.safetensors, owner/name]"
    ).generator
    assert named["ip_adapter"]["pretrained_model_name_or_path_or_dict"] == str(here / "edits")
    assert (named["ip_adapter"]["subfolder"], named["lora"][0]) == (
        "edits",
        str(here / "other.safetensors"),
    )


REFUSED: dict[str, tuple[str, str]] = {
    "sd --set contrlnet=edits": ("--set", "unknown key 'contrlnet'; did you mean 'controlnet'?"),
    "sd --set vary=instruction": ("sd", "cannot vary by instruction"),
    "edits": ("edits", "cannot generate images from text"),
    "sd --set vary": ("--set vary", "write NAME=VALUE"),
    "sd --set vary=noise --set vary=noise": ("--set vary", "twice"),
    "sd --set model=edits": ("--set", "Remove it"),
    "plain --guidance 2": ("--guidance is 2", "has no classes. Leave it out"),
    "small --guidance 2": (
        "--guidance is 2",
        "has a name for every class",
    ),
    "improved.safetensors --steps 1": ("`steps` is 1", "from 2 to 4000"),
    "other.safetensors": ("other.json is missing", "belongs to the model"),
    "/nowhere/model": ("", "there is nothing at '/nowhere/model'"),
    "small --limit imags=3": ("", "did you mean 'images'"),
    "small --api-key-env NOT_SET": ("", "NOT_SET is not set"),
    "small --host 0.0.0.0": ("", "--api-key-env"),
    "small --host :: --print-config": ("", "--api-key-env"),
    "small --api-key-env SHORT": ("", "fewer than 16"),
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_served_is_one_sentence_before_ray_is_started(line, here, monkeypatch):
    monkeypatch.setenv("SHORT", "short")
    monkeypatch.setattr(deploy, "start", lambda *_: pytest.fail("Ray was to be started"))
    result = CliRunner().invoke(serve, line.split())
    assert isinstance(result.exception, RecipeError), result.exception
    for words in REFUSED[line]:
        assert words in str(result.exception)


def test_a_port_that_is_taken_is_said_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = CliRunner().invoke(serve, ["small", "--port", str(taken.getsockname()[1])])
    assert "take another --port" in str(result.exception)


def test_the_deployment_has_the_room_that_there_is() -> None:
    def room(cores: float, cards: float, **given: Any) -> tuple[float, float, int]:
        return room_for(ServeSettings(model="small", **given), {"CPU": cores, "GPU": cards})

    assert room(4, 0) == (0, 3, 1)
    assert room(2, 0, replicas=4) == (0, 0.25, 1)
    assert room(65, 8) == (1, 8, 8)
    assert room(65, 8, gpus_per_replica=0.5) == (0.5, 4, 16)


def test_offline_the_named_revision_s_index_in_the_cache_decides_the_kind_of_model(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    words = {
        "_class_name": "StableDiffusionPipeline",
        "text_encoder": ["transformers", "CLIPTextModel"],
    }
    for commit, index in (("main", {"unet": ["diffusers", "UNet2DModel"]}), ("words", words)):
        contents = {
            f"refs/{commit}": commit,
            f"snapshots/{commit}/model_index.json": json.dumps(index),
            f"snapshots/{commit}/unet/config.json": '{"_class_name": "UNet2DModel", "sample_size": '
            "8}",
            f"snapshots/{commit}/scheduler/scheduler_config.json": '{"_class_name": '
            '"DDIMScheduler"}',
        }
        for name, content in contents.items():
            place = tmp_path / "models--somebody--model" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)
    for revision, most in (({"revision": "words"}, 64), ({}, 256)):
        settings = ServeSettings(model="somebody/model", generator={"offline": True} | revision)
        assert find_model(settings).most == most


@pytest.mark.parametrize(
    ("share", "bounds", "loads"),
    [
        ("0", [], ["cpu"]),  # though Ray does not hide the GPUs from it
        ("0.5", [(0.5, "cuda:0"), (0.5, "cuda:1")], ["cuda:0", "cuda:1"]),
        ("1", [], ["cuda:0", "cuda:1"]),
    ],
)
def test_a_replica_bounds_its_memory_to_its_share_before_the_model_is_loaded(
    share, bounds, loads, monkeypatch
):
    found: list[Any] = []
    whole = PixelFiles.load

    def load_on(self: PixelFiles, device: torch.device, *given: Any, **named: Any) -> Any:
        found.append(str(device))
        return whole(self, torch.device("cpu"), *given, **named)

    def bound(fraction: float, device: torch.device) -> None:
        found.append((fraction, str(device)))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", bound)
    monkeypatch.setattr(PixelFiles, "load", load_on)
    load_served_model(settings_of("small", "--gpus-per-replica", share))
    assert (found[: len(bounds)], sorted(found[len(bounds) :])) == (bounds, loads)


ROOT = Path(__file__).parents[3]
KUBERAY = (ROOT / "examples/kuberay/rayservice.yaml").read_text(encoding="utf-8")
KEY = "a-key-that-nobody-guesses"


def test_the_manifest_for_kubernetes_is_what_the_command_in_it_prints_which_holds_no_key(
    monkeypatch,
):
    from ray.serve.schema import ServeDeploySchema

    (command,) = re.findall(r"^# +(pe serve .* --print-config)$", KUBERAY, re.M)
    monkeypatch.setenv("PE_KEYS", KEY)
    printed = CliRunner().invoke(serve, shlex.split(command)[2:], catch_exceptions=False).output
    assert KEY not in printed
    config = yaml.safe_load(KUBERAY)["spec"]["serveConfigV2"]
    assert yaml.safe_load(config.replace("0" * 64, digest_of(KEY))) == yaml.safe_load(printed)
    (application,) = ServeDeploySchema.model_validate(yaml.safe_load(config)).applications
    # whatever Ray has when it reads the file
    assert ServeSettings.model_validate(application.args).gpus_per_replica == 1
    assert application.import_path == "adapters.server.deploy:build"
    cluster = yaml.safe_load(KUBERAY)["spec"]["rayClusterConfig"]
    assert cluster["authOptions"]["mode"] == "token"
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        env = {
            each["name"]: each["value"]
            for each in group["template"]["spec"]["containers"][0]["env"]
        }
        assert env["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] == MIDDLEWARES
