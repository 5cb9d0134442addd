"""Images that an answer names by their addresses: paid when the answer comes, fetched until they come, paid once."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.http import policy as policy_module
from adapters.openai_images import OpenAIImages
from pe.dispatch.dispatcher import Dispatcher
from pe.errors import APIError
from pe.store.writer import RunWriter
from tests.adapters.http.test_environment import by_tls
from tests.endpoints.authority import Authority
from tests.endpoints.faults import Script, fail
from tests.endpoints.job_host import png
from tests.endpoints.serving import serving

HEALING = ["429 milliseconds", "500", "503 html", "dropped", "html"]
GONE = ["403", "404", "410"]


class LinkServer:
    """Answers with addresses of images; `links` says which of the requests for these fail, and `calls` are billed."""

    def __init__(self, *links: str, share: float = 0.0) -> None:
        self.links, self.calls, self._names = (
            Script(first=links, share=share, faults=tuple(HEALING)),
            0,
            itertools.count(),
        )

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive()) and (body := body + message.get("body", b"")) is not None:
            if not message.get("more_body"):
                break
        if scope["method"] == "POST":
            self.calls += 1
            base = f"https://{dict(scope['headers'])[b'host'].decode()}"
            entries = [{"url": f"{base}/{next(self._names)}.png"} for _ in range(json.loads(body)["n"])]
            answer, status = json.dumps({"data": entries, "usage": {"total_tokens": 10}}).encode(), 200
        else:
            fault = self.links.next()
            if fault and fault not in GONE and await fail(fault, send):
                return
            answer, status = (b"", int(fault)) if fault else (png(int(scope["path"][1:-4]), 16), 200)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": answer})


@contextmanager
def asking(
    server: LinkServer, authority: Authority, monkeypatch: pytest.MonkeyPatch, patience: float = 60
) -> Iterator[OpenAIImages]:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.root))
    monkeypatch.setattr(policy_module, "FIRST", 0.01)
    with serving(server, **by_tls(authority, loop="asyncio")) as url:
        given: dict[str, Any] = {"model": "m", "prompts": "a {label}", "image_size": 16, "timeout": 5, "n": 4}
        given["patience"] = patience
        api = OpenAIImages(base_url=f"{url}/v1", key_env=None, server=None, response_format=None, **given)
        yield api
        api._client.close()  # before the server's loop ends


def population(folder: Path, api: OpenAIImages, count: int = 8) -> np.ndarray:
    run = RunWriter.reopen(folder) if folder.exists() else RunWriter.create(folder, {"recipe.yaml": b""})
    try:
        made = Dispatcher(api, run, ("cat",), seed=3).random(np.zeros(count, np.int32)).samples.array
        usage = run.journal.totals().usage
        assert (usage.calls, usage.images) == (count // 4, count)
        assert usage.tokens == 10 * usage.calls
        return made
    finally:
        run.lock.release()
        run.journal.close()


@pytest.mark.parametrize("fault", HEALING)
def test_a_fetch_that_fails_for_now_is_made_again_and_its_image_paid_for_once(
    fault: str, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = LinkServer(fault, "", fault, fault)
    with asking(server, authority, monkeypatch) as api:
        made = population(tmp_path / "run", api)
    assert sorted(made[:, 0, 0, 0].tolist()) == list(range(8))
    assert server.calls == 2


def test_links_that_often_fail_are_fetched_one_by_one(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = LinkServer(share=0.3)
    with asking(server, authority, monkeypatch) as api:
        population(tmp_path / "run", api, count=24)
    assert server.calls == 6
    assert server.links.seen[""] == 24


@pytest.mark.parametrize("fault", GONE)
def test_a_link_that_is_gone_is_a_failed_item_and_costs_no_other_of_its_answer(
    fault: str, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = LinkServer("", fault)
    run = RunWriter.create(tmp_path / "run", {"recipe.yaml": b""})
    with asking(server, authority, monkeypatch) as api:
        Dispatcher(api, run, ("cat",), seed=3).random(np.zeros(8, np.int32))
    assert server.calls == 3
    assert [miss.reason for miss in run.journal.misses("population/0")] == [
        f"an image could not be fetched: HTTP {fault}: no words"
    ]


def test_links_that_stay_away_stop_the_run_and_a_resumed_one_fetches_what_is_paid(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = LinkServer(*["500"] * 100)
    with asking(server, authority, monkeypatch, patience=0.2) as api:
        with pytest.raises(APIError, match=r"an image could not be fetched: scripted"):
            population(tmp_path / "run", api)
        paid, server.links = server.calls, Script()
        made = population(tmp_path / "run", api)
    assert sorted(made[:, 0, 0, 0].tolist()) == list(range(8))
    assert paid >= 1
    assert server.calls == 2
