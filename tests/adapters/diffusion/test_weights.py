"""Where weights come from: nothing is fetched when offline, and what is missing is said in one sentence."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from adapters.diffusion.improved import ImprovedDiffusion
from adapters.diffusion.pixel import PixelSpace
from adapters.diffusion.text_to_image import TextToImage
from pe.errors import PEError, RecipeError
from pe.plugins.protocols import RandomRequest
from tests.adapters.diffusion import tiny

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # diffusers and numpy 2

ONE = RandomRequest(("a",), np.array([3], dtype=np.uint64))
MAKERS: dict[str, Callable[..., Any]] = {
    "text": lambda **settings: TextToImage(prompts="a", size=32, steps=2, device="cpu", **settings),
    "pixels": lambda **settings: PixelSpace(steps=2, device="cpu", **settings),
}


class Touched(Exception):
    """Somebody opened a connection."""


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every connection and every name look-up raises; torch.hub and the hub's cache are empty folders."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Touched

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))


def one_sentence(error: PEError) -> str:
    said = str(error)
    assert "\n" not in said
    assert said.endswith(".")
    return said


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("kind", MAKERS)
def test_offline_asks_nobody_and_says_where_to_get_the_model(kind: str) -> None:
    with pytest.raises(RecipeError) as caught:
        MAKERS[kind](model="owner/name", offline=True).random_api(ONE)
    assert one_sentence(caught.value) == (
        "The weights of owner/name are not here and offline is true: get it from https://huggingface.co/owner/name on "
        "a machine with a network (`hf download owner/name --local-dir FOLDER`), put the folder here and name it "
        "under model."
    )


@pytest.mark.usefixtures("no_network")
def test_offline_asks_nobody_for_a_published_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        ImprovedDiffusion(device="cpu", offline=True).random_api(ONE)
    folder = tmp_path / "torch" / "hub" / "checkpoints"
    assert one_sentence(caught.value) == (
        "The weights imagenet64_cond_270M_250K.pt are not here and offline is true: get it from "
        "https://openaipublic.blob.core.windows.net/diffusion/march-2021/imagenet64_cond_270M_250K.pt and put it in "
        f"{folder}, or name its place under model."
    )
    assert not folder.exists()


@pytest.mark.parametrize("kind", MAKERS)
def test_no_network_ends_in_a_sentence(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    unreachable(monkeypatch)
    with pytest.raises(RecipeError) as caught:
        MAKERS[kind](model="owner/name").random_api(ONE)
    assert "The weights of owner/name cannot be fetched (" in one_sentence(caught.value)
    assert "hf download owner/name --local-dir FOLDER" in str(caught.value)


def test_no_network_for_a_published_checkpoint_ends_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    unreachable(monkeypatch)
    with pytest.raises(RecipeError) as caught:
        ImprovedDiffusion(model="imagenet64_uncond_100M_1500K", device="cpu").random_api(ONE)
    assert "The weights imagenet64_uncond_100M_1500K.pt cannot be fetched (" in one_sentence(caught.value)
    assert f"put it in {tmp_path}/hub/checkpoints, or name its place under model" in str(caught.value)


def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name resolves, as on a machine without a network."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("kind", MAKERS)
def test_the_hub_s_cache_serves_offline(kind: str, tmp_path: Path) -> None:
    snapshot = tmp_path / "cache" / "models--owner--name" / "snapshots" / ("0" * 40)
    torch.manual_seed(0)
    if kind == "text":
        tiny.stable_diffusion().save_pretrained(snapshot)
    else:
        tiny.pixel_folder(snapshot)
    refs = tmp_path / "cache" / "models--owner--name" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    assert len(MAKERS[kind](model="owner/name", offline=True).random_api(ONE).samples) == 1


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("kind", MAKERS)
def test_a_folder_asks_nobody_even_when_not_offline(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    if kind == "text":
        tiny.stable_diffusion().save_pretrained(tmp_path / "model")
    else:
        tiny.pixel_folder(tmp_path / "model")
    assert len(MAKERS[kind](model=str(tmp_path / "model")).random_api(ONE).samples) == 1


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("kind", MAKERS)
def test_a_path_with_nothing_there_ends_in_a_sentence(kind: str, tmp_path: Path) -> None:
    for path in (str(tmp_path / "nothing"), "./nothing", "nothing.safetensors", "a/b/c"):
        with pytest.raises(RecipeError, match="there is nothing at"):
            MAKERS[kind](model=path).random_api(ONE)


class Bomb:
    """An object whose unpickling runs code."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_code_in_weights_is_never_run(tmp_path: Path) -> None:
    """Not even looked for: of a pipeline, files that can hold code are left alone, whatever they hold."""
    torch.manual_seed(0)
    ran = tmp_path / "ran"
    for name in ("plain", "bomb"):
        tiny.stable_diffusion().save_pretrained(tmp_path / name)
        for weights in (tmp_path / name).rglob("*.safetensors"):
            pickled = weights.with_name("pytorch_model.bin" if weights.stem == "model" else f"{weights.stem}.bin")
            if name == "bomb":
                pickled.write_bytes(pickle.dumps(Bomb(ran)))
            else:
                torch.save(load_file(weights), pickled)
            weights.unlink()
        with pytest.raises(RecipeError, match=r"cannot be loaded \(.*put the whole model there"):
            MAKERS["text"](model=str(tmp_path / name)).random_api(ONE)
    (tmp_path / "model.pt").write_bytes(pickle.dumps(Bomb(ran)))
    torch.save({"state_dict": Bomb(ran)}, tmp_path / "zipped.pt")
    for name in ("model.pt", "zipped.pt"):
        with pytest.raises(RecipeError, match=r"is no .safetensors file, and files that may hold code are not read"):
            MAKERS["pixels"](model=str(tmp_path / name)).random_api(ONE)
        with pytest.raises(RecipeError, match="holds no plain weights, and code in files is never run"):
            ImprovedDiffusion(model=str(tmp_path / name), device="cpu").random_api(ONE)
    assert not ran.exists()


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for make in MAKERS.values():
        with pytest.raises(PEError, match=r"A local diffusion model needs diffusers, .*\[diffusion\]'"):
            make(model=str(tmp_path)).random_api(ONE)
