"""Images that an answer names by their addresses: paid when the answer comes, fetched until they
come, paid once.
"""

import itertools
import json
from contextlib import contextmanager

import numpy as np
import pytest

from adapters.openai_images import OpenAIImages
from pe.dispatch.dispatcher import Dispatcher
from pe.errors import APIError
from pe.plugins.protocols import as_generator
from pe.store.writer import RunWriter
from tests.adapters.http.test_client import by_tls
from tests.endpoints.asking import openai
from tests.endpoints.faults import Script, fail, respond
from tests.endpoints.hosted import png

HEALING = ("429 milliseconds", "500", "dropped", "html")


class LinkServer:
    """Answers with addresses of images; `links` says which of the requests for these fail, and
    `calls` are billed.
    """

    def __init__(self, *links):
        self.links, self.calls, self._names = Script(first=links), 0, itertools.count()

    async def __call__(self, scope, receive, send):
        if scope["method"] == "POST":
            self.calls += 1
            body = json.loads((await receive())["body"])
            base = f"https://{dict(scope['headers'])[b'host'].decode()}"
            entries = [{"url": f"{base}/{next(self._names)}.png"} for _ in range(body["n"])]
            await respond(
                send, 200, json.dumps({"data": entries, "usage": {"total_tokens": 10}}).encode()
            )
            return
        fault = self.links.next()
        if fault == "404":
            await respond(send, 404, b"")
        elif not (fault and await fail(fault, send)):
            await respond(send, 200, png(int(scope["path"][1:-4]), 16), kind=b"image/png")


@contextmanager
def asking(server, serve, certificate, monkeypatch, patience=60):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    url = serve(server, **by_tls(certificate, loop="asyncio"))
    api = OpenAIImages(
        **openai(url, server=None, response_format=None, timeout=5, patience=patience)
    )
    yield api
    api._client.close()  # before the server's loop ends


def population(folder, api, count=8):
    run = (
        RunWriter.reopen(folder)
        if folder.exists()
        else RunWriter.create(folder, {"recipe.yaml": b""})
    )
    try:
        made = (
            Dispatcher(as_generator(api), run, ("cat",), seed=3)
            .random(np.zeros(count, np.int32))
            .samples.array
        )
        usage = run.journal.totals().usage
        assert (usage.calls, usage.images, usage.tokens) == (count // 4, count, 10 * count // 4)
        return sorted(made[:, 0, 0, 0].tolist())
    finally:
        run.lock.release()
        run.journal.close()


@pytest.mark.parametrize("fault", HEALING)
def test_a_fetch_that_fails_for_now_is_made_again_and_its_image_paid_for_once(
    fault, serve, tmp_path, certificate, monkeypatch
):
    server = LinkServer(fault, "", fault, fault)
    with asking(server, serve, certificate, monkeypatch) as api:
        assert population(tmp_path / "run", api) == list(range(8))
    assert (server.calls, server.links.seen[""]) == (2, 8)  # and no image is fetched twice


def test_a_link_that_is_gone_is_a_failed_item_and_costs_no_other_of_its_answer(
    serve, tmp_path, certificate, monkeypatch
):
    server = LinkServer("", "404")
    run = RunWriter.create(tmp_path / "run", {"recipe.yaml": b""})
    with asking(server, serve, certificate, monkeypatch) as api:
        Dispatcher(as_generator(api), run, ("cat",), seed=3).random(np.zeros(8, np.int32))
    assert server.calls == 3
    (miss,) = run.journal.misses("population/0")
    assert miss.reason == "an image could not be fetched: HTTP 404: no words"


def test_links_that_stay_away_stop_the_run_and_a_resumed_one_fetches_what_is_paid(
    serve, tmp_path, certificate, monkeypatch
):
    server = LinkServer(*["500"] * 100)
    with asking(server, serve, certificate, monkeypatch, patience=0.1) as api:
        with pytest.raises(APIError, match=r"an image could not be fetched: scripted"):
            population(tmp_path / "run", api)
        paid, server.links = server.calls, Script()
        assert population(tmp_path / "run", api) == list(range(8))
    assert (paid >= 1, server.calls) == (True, 2)
