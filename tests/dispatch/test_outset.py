"""A phase whose first requests all fail for one reason stops before it is paid for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.chat import Chat
from adapters.hf_inference import HFInference
from adapters.http import policy as policy_module
from adapters.openai_images import OpenAIImages
from adapters.sdapi import SDAPI
from pe.dispatch.dispatcher import Dispatcher
from pe.dispatch.limits import Meter
from pe.errors import APIError
from pe.plugins.price import Price
from pe.plugins.protocols import Answer, Failed, RandomRequest
from pe.store.writer import RunWriter
from tests.endpoints.faults import Script
from tests.endpoints.hosts import HOSTS
from tests.endpoints.job_hosts import generator
from tests.endpoints.openai_server import OpenAIServer
from tests.endpoints.serving import serving
from tests.generators import Moody, Shades, images_of

LABELS = np.zeros(60, np.int32)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_module, "FIRST", 0.01)
    monkeypatch.setattr(policy_module, "MOST", 0.2)


def endpoint(url: str, **settings: object) -> OpenAIImages:
    given = {"model": "m", "base_url": f"{url}/v1", "key_env": None, "prompts": "a {label}", "image_size": 16}
    return OpenAIImages(**given | {"size": "64x64", "timeout": 5} | settings)


def dispatcher(folder: Path, api: object, **settings: object) -> Dispatcher:
    run = RunWriter.reopen(folder) if folder.exists() else RunWriter.create(folder, {"recipe.yaml": b""})
    run.lock.release()  # so that a test may open the run again, as after a crash
    return Dispatcher(api, run, ("cat",), seed=3, **settings)


@pytest.mark.parametrize(("n", "concurrency", "calls"), [(1, 1, 12), (1, 4, 12), (1, 20, 20), (4, 1, 3), (4, 5, 5)])
def test_a_server_of_another_size_costs_a_dozen_images_or_a_round_of_the_workers(
    tmp_path: Path, n: int, concurrency: int, calls: int
) -> None:
    script = Script()
    with serving(server := OpenAIServer(script, side=32)) as url:
        api = endpoint(url, n=n, concurrency=concurrency)
        most = max(calls, api.capabilities.concurrency)
        meter = Meter(price=Price(call=0.5))
        for stop in range(1, 7):  # more often than an item may fail
            with pytest.raises(APIError) as error:
                dispatcher(tmp_path / "run", api, meter=meter).random(LABELS)
            assert len(script.requests) <= most * stop
        each = len(script.requests) // 6
        sentence = rf"32.*64.*which took {each} calls and {each / 2:.2f} USD: .* `pe resume` goes on"
        assert error.match(sentence)
        server.side = 64
        assert len(dispatcher(tmp_path / "run", api).random(LABELS).samples) == len(LABELS)


def test_a_phase_smaller_than_that_is_judged_over_its_attempts(tmp_path: Path) -> None:
    script = Script()
    with serving(OpenAIServer(script, side=32)) as url, pytest.raises(APIError, match="which took 12 calls:"):
        dispatcher(tmp_path / "run", endpoint(url, concurrency=1)).random(LABELS[:4])


def test_what_the_policy_retries_does_not_stop_a_run_at_its_beginning(tmp_path: Path) -> None:
    script = Script(first=("500",) * 40)
    with serving(OpenAIServer(script, side=64)) as url:
        api = endpoint(url, concurrency=1, tries=2)
        assert len(dispatcher(tmp_path / "run", api).random(LABELS).samples) == len(LABELS)


class Late(Shades):
    """Makes nothing for the first requests, each for the reason that `reason` gives."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__(max_chunk=4)
        self._reasons = reasons

    def random_api(self, request: RandomRequest) -> Answer:
        answer = super().random_api(request)
        if not self._reasons:
            return answer
        reason = self._reasons.pop(0)
        return Answer(images_of(np.zeros(0)), missing={i: Failed(reason) for i in range(len(request))})


@pytest.mark.parametrize(
    ("reasons", "stops"),
    [(["19 bytes", "3 bytes", "7 bytes"], True), (["one", "two", "one"], False), (["one", "one"], False)],
)
def test_reasons_are_the_same_if_they_differ_in_numbers_alone(tmp_path: Path, reasons: list[str], stops: bool) -> None:
    dispatch = dispatcher(tmp_path / "run", Late(reasons))
    if stops:
        with pytest.raises(APIError, match=r"one reason \(7 bytes\), which took 3 calls:"):
            dispatch.random(LABELS)
    else:
        assert len(dispatch.random(LABELS).samples) == len(LABELS)


def test_a_phase_that_has_begun_well_goes_on_as_before(tmp_path: Path) -> None:
    api = Moody(fail=2, max_chunk=4)
    assert len(dispatcher(tmp_path / "run", api, attempts=60).random(LABELS).samples) == len(LABELS)


BODIES = {
    "an event stream": 'data: {"choices": [{"index": 0, "delta": {"content": "@"}}]}\n\ndata: [DONE]\n\n',
    "named events": 'event: ping\ndata: {"type": "ping"}\n\n',
    "a detail": '{"detail": "request @ is not served"}',
    "a portal's page": "<html><body>Please log in, @</body></html>",
    "null": '{"data": null, "choices": null, "images": null}',
    "nothing": '{"data": [], "choices": [], "images": []}',
    "an error": '{"error": {"message": "Provider returned error", "code": 429}}',
    "a list": "[]",
    "no bytes": "",
    "a number": "7",
}
GIVEN = {"key_env": None, "prompts": "a {label}", "timeout": 5}
APIS: dict[str, Callable[[str], Any]] = {
    "chat": lambda url: Chat(model="m", base_url=f"{url}/v1", concurrency=4, **GIVEN),
    "openai_images": endpoint,
    "sdapi": lambda url: SDAPI(base_url=url, image_size=16, **GIVEN),
    "hf_inference": lambda url: HFInference(base_url=url, image_size=16, concurrency=2, **GIVEN),
    "bfl": lambda url: generator("bfl", url, Path()),
    "together": lambda url: HOSTS["together"].make(url, prompts="a", concurrency=2),
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("kind", APIS)
def test_whole_answers_that_are_not_what_was_asked_cost_a_dozen_calls(tmp_path: Path, kind: str, body: str) -> None:
    calls = list[str]()

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        calls.append(scope["method"])
        while (await receive()).get("more_body"):
            pass
        word = "abcdefghijklmnopqrstuvwxyz"[len(calls) % 26] * 3  # no answer is as the one before
        kind = b"text/event-stream" if "event" in body else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": BODIES[body].replace("@", word).encode()})

    with serving(app) as url, pytest.raises(APIError, match=r"which took 12 calls.*`pe resume` goes on") as error:
        dispatcher(tmp_path / "run", APIS[kind](url)).random(LABELS)
    assert calls.count("POST") == 12
    named = "event" in body and kind != "hf_inference"  # whose answers are images, and no words
    assert ("an event stream; send or set stream to false" in str(error.value)) == named
