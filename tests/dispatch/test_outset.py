"""A phase whose first requests all fail for one reason stops before it is paid for."""

import numpy as np
import pytest

from adapters.http import retries
from adapters.openai_images import OpenAIImages
from pe.dispatch.limits import Meter
from pe.errors import APIError
from pe.plugins.price import Price
from pe.plugins.protocols import Answer, Failed
from tests.dispatch.runs import dispatcher
from tests.endpoints.faults import Script
from tests.endpoints.openai_server import OpenAIServer
from tests.endpoints.serving import serving
from tests.generators import Moody, Shades, images_of

LABELS = np.zeros(60, np.int32)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(retries, "FIRST", 0.001)
    monkeypatch.setattr(retries, "MOST", 0.01)


def endpoint(url, **settings):
    given = {
        "model": "m",
        "base_url": f"{url}/v1",
        "key_env": None,
        "prompts": "a {label}",
        "image_size": 16,
    }
    return OpenAIImages(**given | {"size": "64x64", "timeout": 5, "server": None} | settings)


@pytest.mark.parametrize(("n", "concurrency", "calls"), [(1, 20, 20), (4, 1, 3)])
def test_a_server_of_another_size_costs_a_dozen_images_or_a_round_of_the_workers(
    tmp_path, n, concurrency, calls
):
    script, stops = Script(), 6 if n == 4 else 1  # six: more often than an item may fail
    with serving(server := OpenAIServer(script, side=32)) as url:
        api = endpoint(url, n=n, concurrency=concurrency)
        most = max(calls, api.capabilities.concurrency)
        meter = Meter(price=Price(call=0.5))
        for stop in range(1, stops + 1):
            with pytest.raises(APIError) as error:
                dispatcher(tmp_path / "run", api, meter=meter).random(LABELS)
            assert len(script.requests) <= most * stop
        each = len(script.requests) // stops
        sentence = (
            rf"32.*64.*which took {each} calls and {each / 2:.2f} USD: .* `pe run RUN` goes on"
        )
        assert error.match(sentence)
        server.side = 64
        assert len(dispatcher(tmp_path / "run", api).random(LABELS).samples) == len(LABELS)


def test_a_phase_smaller_than_that_is_judged_over_its_attempts(tmp_path):
    with (
        serving(OpenAIServer(Script(), side=32)) as url,
        pytest.raises(APIError, match="which took 12 calls:"),
    ):
        dispatcher(tmp_path / "run", endpoint(url, concurrency=1)).random(LABELS[:4])


class Late(Shades):
    """Makes nothing for the first requests, each for the reason that `reasons` gives."""

    def __init__(self, reasons):
        super().__init__(max_chunk=4)
        self._reasons = reasons

    def random_api(self, request):
        answer = super().random_api(request)
        if not self._reasons:
            return answer
        reason = self._reasons.pop(0)
        return Answer(
            images_of(np.zeros(0)), missing={i: Failed(reason) for i in range(len(request))}
        )


@pytest.mark.parametrize(
    ("reasons", "stops"),
    [
        (["19 bytes", "3 bytes", "7 bytes"], True),
        (["one", "two", "one"], False),
        (["one", "one"], False),
    ],
)
def test_reasons_are_the_same_if_they_differ_in_numbers_alone(tmp_path, reasons, stops):
    dispatch = dispatcher(tmp_path / "run", Late(reasons))
    if stops:
        with pytest.raises(APIError, match=r"one reason \(7 bytes\), which took 3 calls:"):
            dispatch.random(LABELS)
    else:
        assert len(dispatch.random(LABELS).samples) == len(LABELS)


def test_a_phase_that_has_begun_well_goes_on_as_before(tmp_path):
    api = Moody(fail=2, max_chunk=4)
    assert len(dispatcher(tmp_path / "run", api, attempts=60).random(LABELS).samples) == len(LABELS)
