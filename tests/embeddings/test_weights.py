"""Weight files: what is missing, altered or more than weights ends in one sentence; offline fetches
nothing.
"""

import hashlib
import socket

import huggingface_hub.constants
import pytest
import torch
from huggingface_hub.utils import _detect_agent
from safetensors.torch import save_file
from starlette.responses import Response

from embeddings.networks import WEIGHTS, DINOv2, EfficientNetLite, Inception, OpenCLIP
from embeddings.sentence_transformers import SentenceTransformers
from pe.data.texts import Texts
from pe.errors import RecipeError
from pe.plugins.weights import Published, find_published, given_file, read_weights
from tests.embeddings import sentences
from tests.embeddings.networks import dinov2_folder, images, networks, open_clip_files, tiny_dinov2
from tests.endpoints.serving import serving
from tests.flaws import FLAWS, spoil

RIGHT = hashlib.sha256(b"weights").hexdigest()


class Shelf:
    """An ASGI app that serves one file under every path and notes what it was asked for."""

    def __init__(self):
        self.content, self.asked, self.url = None, [], ""

    async def __call__(self, scope, receive, send):
        self.asked.append(scope["path"])
        await Response(self.content or b"", 404 if self.content is None else 200)(
            scope, receive, send
        )


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A server in the place of the internet, and empty caches."""
    shelf = Shelf()
    with serving(shelf) as shelf.url:
        for name, value in {
            "ENDPOINT": shelf.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": shelf.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(tmp_path / "hub"),
            "AGENT_HARNESSES_PATH": str(tmp_path / "harnesses"),
        }.items():
            monkeypatch.setattr(huggingface_hub.constants, name, value)
        monkeypatch.setattr(_detect_agent, "_registry", None)
        monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
        yield shelf


def test_published_weights_that_are_not_what_was_published_or_not_there_are_refused(
    shelf, tmp_path
):
    shelf.content = b"other weights"
    published, folder = (
        Published("w.pth", f"{shelf.url}/w.pth", RIGHT),
        tmp_path / "torch/hub/checkpoints",
    )
    with pytest.raises(RecipeError, match=r"does not give the published w\.pth"):
        find_published(published, offline=False)
    assert list(folder.iterdir()) == []
    (folder / "w.pth").write_bytes(b"tampered")
    with pytest.raises(RecipeError, match="SHA-256"):
        find_published(published, offline=True)
    nowhere = Published("x.pth", "http://127.0.0.1:9/x.pth", RIGHT)
    with pytest.raises(
        RecipeError, match=r"x\.pth cannot be fetched .*get it from http://127.* put it in .*/hub/"
    ):
        find_published(nowhere, offline=False)


def asked_to_embed(embedding):
    embedding.embed(Texts.of(["a"]) if embedding.noun == "texts" else images(1))


@pytest.mark.parametrize(
    ("embedding", "says"),
    [
        (
            Inception(offline=True),
            rf"{WEIGHTS.name} are not here, and `offline` is true: get it from .*put it in",
        ),
        (
            OpenCLIP(offline=True),
            r"are not here and offline is true: get open_clip_model\.safetensors .*laion/CLIP",
        ),
        (
            DINOv2(model="/no/where/at/all", offline=True),
            "'/no/where/at/all' are not here .*facebook/dinov2-base",
        ),
        (
            SentenceTransformers(model="some/encoder", offline=True),
            r"'some/encoder' cannot be loaded \(offline is true, and there is no such folder and "
            r"none in the cache\)",
        ),
    ],
)
def test_offline_fetches_nothing_and_says_what_is_missing(shelf, embedding, says):
    with pytest.raises(RecipeError, match=says) as caught:
        asked_to_embed(embedding)
    assert "\n" not in str(caught.value)
    assert shelf.asked == []


def test_a_local_file_is_named_where_it_is_missing_or_has_another_hash(tmp_path):
    with pytest.raises(RecipeError, match=r"embedding\.weights`: there is no file"):
        Inception(weights=str(tmp_path / "none.pth")).embed(images(1))
    file = tmp_path / WEIGHTS.name
    file.write_bytes(b"weights")
    for settings in ({"weights": str(file)}, {"weights": str(file), "sha256": "0" * 64}):
        with pytest.raises(RecipeError, match="is not the right file"):
            Inception(**settings).embed(images(1))
    assert given_file(str(file), RIGHT.upper(), {}, offline=True) == file
    with pytest.raises(RecipeError, match="name the file too"):
        Inception(sha256="0" * 64)


def test_a_url_is_fetched_once_and_only_with_its_hash(shelf, tmp_path):
    shelf.content, url = b"weights", f"{shelf.url}/mirror/w.pth"
    for embedding in (Inception(weights=url), OpenCLIP(weights=url)):
        with pytest.raises(RecipeError, match=r"Set `embedding\.sha256` to its hash"):
            embedding.embed(images(1))
    with pytest.raises(RecipeError, match=r"w\.pth are not here, and `offline` is true"):
        given_file(url, RIGHT, {}, offline=True)
    assert shelf.asked == []
    with pytest.raises(RecipeError, match="its SHA-256 differs"):
        given_file(url, "0" * 64, {}, offline=False)
    for offline in (False, True):
        file = given_file(url, RIGHT, {}, offline)
        assert file == tmp_path / "torch/hub/checkpoints/w.pth"
        assert file.read_bytes() == b"weights"
    assert shelf.asked == ["/mirror/w.pth"] * 2


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_weight_file_that_did_not_come_whole_is_named_by_each_embedding(flaw, tmp_path):
    tensors, common = {"a.weight": torch.zeros(64)}, {"device": "cpu"}
    save_file(tensors, tmp_path / "inception.safetensors")
    torch.save(tensors, tmp_path / "lite.pth")
    config, tower = open_clip_files(tmp_path)
    encoder, static = sentences.encoder(tmp_path / "encoder"), sentences.static(tmp_path / "static")
    places = {
        tiny_dinov2(dinov2_folder(tmp_path)): "dinov2/model.safetensors",
        Inception(
            weights=str(tmp_path / "inception.safetensors"), **common
        ): "inception.safetensors",
        EfficientNetLite(weights=str(tmp_path / "lite.pth"), **common): "lite.pth",
        OpenCLIP(model=str(config), weights=str(tower), **common): "tiny.pt",
        SentenceTransformers(model=encoder, **common): "encoder/model.safetensors",
        SentenceTransformers(model=static, **common): "static/model.safetensors",
    }
    for embedding, name in places.items():
        spoil(tmp_path / name, flaw)
        with pytest.raises(RecipeError, match=rf"{name} is {flaw}.*: download the file itself"):
            asked_to_embed(embedding)
    with pytest.raises(RecipeError, match=rf"tiny\.pt is {flaw}"):
        given_file(str(tower), RIGHT, {}, offline=True)


def test_a_cut_file_of_old_torch_is_told_to_be_cut_or_no_weights(tmp_path):
    torch.save({"a": torch.zeros(64)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    spoil(tmp_path / "old.pt", "cut")
    with pytest.raises(
        RecipeError,
        match=r"old\.pt is cut, or it is not plain weights. Code in files is never run",
    ):
        read_weights(tmp_path / "old.pt")


def in_the_hub_s_cache(repository, folder):
    """A place for the repository's files, as a download leaves it."""
    place = folder / "hub" / f"models--{repository.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text("abc")
    (place / "snapshots").mkdir()
    return place / "snapshots/abc"


def test_offline_what_is_in_the_cache_is_read_without_a_request(shelf, tmp_path):
    assert not OpenCLIP.weights_here()
    dinov2_folder(tmp_path).rename(in_the_hub_s_cache("owner/tiny", tmp_path))
    assert tiny_dinov2("owner/tiny", offline=True).embed(images(1)).shape == (1, 32)
    place = in_the_hub_s_cache("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", tmp_path)
    place.mkdir()
    (place / "open_clip_model.safetensors").write_bytes(b"no weights")
    assert OpenCLIP.weights_here()
    with pytest.raises(RecipeError, match=r"abc/open_clip_model\.safetensors is cut or damaged"):
        OpenCLIP(offline=True, device="cpu").embed(images(1))
    save_file({"a": torch.zeros(1)}, place / "open_clip_model.safetensors")
    with pytest.raises(RecipeError, match="not the right file"):
        OpenCLIP(offline=True, device="cpu", sha256="0" * 64).embed(images(1))
    place = in_the_hub_s_cache("facebook/dinov2-base", tmp_path)
    place.mkdir()
    (place / "config.json").write_bytes(b"")
    assert not DINOv2.weights_here()  # all files make a model
    assert shelf.asked == []


def test_offline_with_all_weights_at_hand_no_name_is_looked_up_and_nothing_is_connected_to(
    tmp_path, monkeypatch
):
    """Nor by the libraries beneath, for their telemetry, say."""
    asked = []
    for place, name in (
        (socket.socket, "connect"),
        (socket.socket, "sendto"),
        (socket, "getaddrinfo"),
    ):
        monkeypatch.setattr(place, name, lambda *given, **more: asked.append(given))
    for embedding in networks(tmp_path, offline=True).values():
        asked_to_embed(embedding)
    assert not asked


def test_state_dicts_in_all_forms_are_read_alike_and_anything_else_is_refused(tmp_path):
    state = {"a.weight": torch.arange(3.0)}
    torch.save(
        {"state_dict": {"module.a.weight": state["a.weight"]}, "epoch": 3}, tmp_path / "nested.pt"
    )
    save_file(state, tmp_path / "plain.safetensors")
    for name in ("nested.pt", "plain.safetensors"):
        ((key, found),) = read_weights(tmp_path / name).items()
        assert key == "a.weight"
        assert torch.equal(found, state[key])
    for content in ([torch.zeros(1)], {"step": 3}, {"model": state}):
        torch.save(content, tmp_path / "w.pt")
        with pytest.raises(RecipeError, match="not a table of tensors"):
            read_weights(tmp_path / "w.pt")
