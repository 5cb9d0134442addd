"""Which files of the hub decide what kind of model is served: those of the revision that is named, fetched or not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest

from adapters.diffusion.text_model import TextLoader, TextSettings
from adapters.server.checks import Settings
from adapters.server.replica import PixelFamily, TextFamily, family_of

INDEX = {"main": {"unet": ["diffusers", "UNet2DModel"]}, "words": {"text_encoder": ["transformers", "CLIPTextModel"]}}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """What is asked of the hub, which has nothing; its cache has a model whose revisions are of two kinds."""
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            self.send_response(404)
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()

        def log_message(self, *_: object) -> None:
            pass

    repository = tmp_path / "models--somebody--model"
    (repository / "refs").mkdir(parents=True)
    for i, (revision, index) in enumerate(INDEX.items()):
        folder = repository / "snapshots" / (commit := f"{i}" * 40)
        for part in ("unet", "scheduler"):
            (folder / part).mkdir(parents=True)
        (folder / "scheduler" / "scheduler_config.json").write_text('{"_class_name": "DDIMScheduler"}')
        (repository / "refs" / revision).write_text(commit)
        (folder / "model_index.json").write_text(json.dumps(index))
        unet = {"_class_name": "UNet2DModel", "sample_size": 8, "in_channels": 3}
        (folder / "unet" / "config.json").write_text(json.dumps(unet))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
    address = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    yield asked
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("revision", "kind"), [("words", TextFamily), ("main", PixelFamily), (None, PixelFamily)])
def test_offline_the_named_revision_s_index_decides_and_nobody_is_asked(
    hub: list[str], revision: str | None, kind: type
) -> None:
    given = {"offline": True} | ({} if revision is None else {"revision": revision})
    assert isinstance(family_of(Settings(model="somebody/model", generator=given)), kind)
    assert hub == []


def test_else_the_named_revision_is_asked_for(hub: list[str]) -> None:
    assert isinstance(family_of(Settings(model="somebody/model", generator={"revision": "words"})), TextFamily)
    assert {path.split("/resolve/")[-1] for path in hub if "/resolve/" in path} == {"words/model_index.json"}


@pytest.mark.filterwarnings("ignore:The `local_dir_use_symlinks`:UserWarning")  # of diffusers
@pytest.mark.parametrize("offline", [True, False])
def test_a_control_net_is_fetched_only_if_it_may_be(hub: list[str], offline: bool) -> None:
    with pytest.raises(OSError, match="somebody/net"):
        TextLoader(TextSettings(model="a/b", controlnet="somebody/net"), offline=offline)._controlnet(None)
    assert bool(hub) == (not offline)
