"""Where weights come from: nothing is fetched when offline, and what is missing is said in one
sentence.
"""

import os
import pickle
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from adapters.diffusion.improved import ImprovedDiffusion
from adapters.diffusion.pixel import PixelSpace
from adapters.diffusion.text_to_image import TextToImage
from pe.errors import PEError, RecipeError
from pe.plugins.protocols import RandomRequest
from tests.adapters.diffusion import tiny, tiny_edit, tiny_more
from tests.adapters.diffusion.kinds import QUIET
from tests.flaws import FLAWS, spoil

pytestmark = QUIET

ONE = RandomRequest(("a",), np.array([3], dtype=np.uint64))
MAKERS = {
    "text": lambda **settings: TextToImage(prompts="a", size=32, steps=2, device="cpu", **settings),
    "pixels": lambda **settings: PixelSpace(steps=2, device="cpu", **settings),
}
CHECKPOINT = "imagenet64_cond_270M_250K"
PLACE = "https://openaipublic.blob.core.windows.net/diffusion/march-2021/"


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """What is asked of a network, on a machine without one; torch.hub and the hub's cache are empty
    folders.
    """
    found = []

    def refuse(*given, **_):
        found.append(given)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    for place, name in (
        (socket.socket, "connect"),
        (socket.socket, "sendto"),
        (socket, "getaddrinfo"),
    ):
        monkeypatch.setattr(place, name, refuse)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return found


def refused(make, **settings):
    with pytest.raises(RecipeError) as caught:
        make(**settings).random_api(ONE)
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    return said


def test_offline_asks_nobody_and_says_where_to_get_the_model(asked, tmp_path):
    for make in MAKERS.values():
        said = refused(make, model="owner/name", offline=True)
        assert (
            "owner/name are not here, and `offline` is true: get it from "
            "https://huggingface.co/owner/name" in said
        )
    said = refused(ImprovedDiffusion, model=CHECKPOINT, device="cpu", offline=True)
    assert (
        f"get it from {PLACE}{CHECKPOINT}.pt and put it in {tmp_path}/torch/hub/checkpoints, or "
        "set `model` to its" in said
    )
    assert not (tmp_path / "torch").exists()
    assert not asked


def test_no_network_ends_in_a_sentence(asked, tmp_path):
    for make in MAKERS.values():
        said = refused(make, model="owner/name")
        assert "The weights of owner/name cannot be fetched (" in said
    said = refused(ImprovedDiffusion, model=CHECKPOINT, device="cpu")
    assert f"The weights {CHECKPOINT}.pt cannot be fetched (" in said
    assert asked


@pytest.mark.parametrize("kind", MAKERS)
def test_a_folder_and_offline_the_hub_s_cache_ask_nobody(kind, asked, tmp_path):
    snapshot = tmp_path / "cache" / "models--owner--name" / "snapshots" / ("0" * 40)
    if kind == "text":
        tiny.stable_diffusion().save_pretrained(snapshot)
    else:
        tiny.pixel_folder(snapshot)
    shutil.copytree(snapshot, tmp_path / "model")
    refs = tmp_path / "cache" / "models--owner--name" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    for settings in ({"model": "owner/name", "offline": True}, {"model": str(tmp_path / "model")}):
        assert len(MAKERS[kind](**settings).random_api(ONE).samples) == 1
    assert not asked


@pytest.mark.parametrize("path", ["/no/such/place", "./nothing", "nothing.safetensors", "a/b/c"])
def test_a_path_with_nothing_there_ends_in_a_sentence(path, asked):
    for make in MAKERS.values():
        assert "there is nothing at" in refused(make, model=path)
    assert not asked


class Bomb:
    """An object whose unpickling runs code."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_code_in_weights_is_never_run(tmp_path):
    """Not even looked for: of a pipeline, files that can hold code are left alone, whatever they
    hold.
    """
    ran = tmp_path / "ran"
    for name in ("plain", "bomb"):
        tiny.stable_diffusion().save_pretrained(tmp_path / name)
        for weights in (tmp_path / name).rglob("*.safetensors"):
            pickled = weights.with_name(
                "pytorch_model.bin" if weights.stem == "model" else f"{weights.stem}.bin"
            )
            if name == "bomb":
                pickled.write_bytes(pickle.dumps(Bomb(ran)))
            else:
                torch.save(load_file(weights), pickled)
            weights.unlink()
        with pytest.raises(RecipeError, match=r"cannot be loaded \(.*Put the whole model there"):
            MAKERS["text"](model=str(tmp_path / name)).random_api(ONE)
    (tmp_path / "model.pt").write_bytes(pickle.dumps(Bomb(ran)))
    torch.save({"state_dict": Bomb(ran)}, tmp_path / "zipped.pt")
    for name in ("model.pt", "zipped.pt"):
        with pytest.raises(
            RecipeError, match=r"is not a .safetensors file. Other files are not read"
        ):
            MAKERS["pixels"](model=str(tmp_path / name)).random_api(ONE)
        with pytest.raises(RecipeError, match=r"not plain weights. Code in files is never run"):
            ImprovedDiffusion(model=str(tmp_path / name), device="cpu").random_api(ONE)
    assert not ran.exists()


UNET = "unet/diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A tiny model, and all that can come beside it, each by the setting that names it."""
    folder = tmp_path_factory.mktemp("places")
    torch.manual_seed(0)
    pipeline = tiny.stable_diffusion()
    pipeline.save_pretrained(folder / "model")
    tiny_edit.control_net(pipeline.unet).save_pretrained(folder / "net")
    tiny_more.lora(folder, pipeline.unet)
    tiny_edit.ip_adapter(folder / "adapter", pipeline.unet)
    tiny.pixel_folder(folder / "pixels")
    shutil.copy(folder / "model" / UNET, folder / "unet.safetensors")
    torch.save({"a": torch.zeros(64)}, folder / "improved.pt")
    return folder


def given_adapter(folder):
    names = {"subfolder": "models", "weight_name": "ip-adapter_sd15.safetensors"}
    return {
        "pretrained_model_name_or_path_or_dict": str(folder),
        "image_encoder_folder": "image_encoder",
    } | names


def text(at, **beside):
    return MAKERS["text"](model=str(at / "model"), **beside)


READERS = {
    "a model's U-Net": (f"model/{UNET}", text),
    "a model's text encoder": ("model/text_encoder/model.safetensors", text),
    "single_file": (
        "unet.safetensors",
        lambda at: text(at, single_file=str(at / "unet.safetensors")),
    ),
    "components": (
        "unet.safetensors",
        lambda at: text(at, components={"unet": str(at / "unet.safetensors")}),
    ),
    "lora": ("lora.safetensors", lambda at: text(at, lora=str(at / "lora.safetensors"))),
    "controlnet": (f"net/{Path(UNET).name}", lambda at: text(at, controlnet=str(at / "net"))),
    "ip_adapter": (
        "adapter/models/ip-adapter_sd15.safetensors",
        lambda at: text(at, ip_adapter=given_adapter(at / "adapter")),
    ),
    "a model of pixels": (f"pixels/{UNET}", lambda at: MAKERS["pixels"](model=str(at / "pixels"))),
    "improved diffusion": (
        "improved.pt",
        lambda at: ImprovedDiffusion(model=str(at / "improved.pt"), device="cpu"),
    ),
}


@pytest.mark.parametrize("flaw", FLAWS)
@pytest.mark.parametrize("reader", READERS)
def test_a_weight_file_that_did_not_come_whole_is_named_wherever_it_is_read(
    reader, flaw, places, tmp_path
):
    file, make = READERS[reader]
    shutil.copytree(places, tmp_path, dirs_exist_ok=True)
    spoil(tmp_path / file, flaw)
    with pytest.raises(
        RecipeError, match=rf"{tmp_path / file} is {flaw}.*: download the file itself"
    ):
        make(tmp_path).random_api(ONE)


def test_a_library_that_is_not_installed_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for make in MAKERS.values():
        with pytest.raises(
            PEError, match=r"A local diffusion model needs diffusers, .*\[diffusion\]'"
        ):
            make(model=str(tmp_path)).random_api(ONE)
