"""What all hosts' adapters have in common, against their scripted servers on loopback."""

from __future__ import annotations

import numpy as np
import pytest

from pe.errors import APIError
from pe.plugins.protocols import Failed, Refused
from tests.adapters.hosts.asking import SIDE, random, varied
from tests.endpoints.faults import TRANSPORT, Script
from tests.endpoints.hosts import HOSTS, Make

EACH = pytest.mark.parametrize("host", HOSTS)


@EACH
def test_one_image_comes_by_one_call_that_shows_the_key(make: Make, canary: str, host: str) -> None:
    api, script = make(host)
    answer = random(api)
    assert answer.samples.array.shape == (1, SIDE, SIDE, 3)
    assert (answer.usage.calls, answer.usage.images) == (1, 1)
    assert script.keys == {HOSTS[host].keyed.format(canary)}


@EACH
def test_degrees_move_a_variation_away_from_its_parent(make: Make, host: str) -> None:
    api, script = make(host)
    near, far = (varied(api, degree).samples.array.astype(int) for degree in (0.2, 1.0))
    assert np.abs(near - 10).mean() < 0.3 * np.abs(far - 10).mean()
    assert varied(api, 0.0).samples.array[0, 0, 0, 0] == 10
    assert len(script.requests) == 2  # degree 0 makes no call
    assert api.describe_degree(0.5)


@EACH
@pytest.mark.parametrize("fault", TRANSPORT)
def test_transport_faults_are_retried(make: Make, host: str, fault: str) -> None:
    api, _ = make(host, Script(first=(fault,)))
    answer = random(api)
    assert len(answer.samples) == 1
    assert answer.usage.calls == 2


@EACH
def test_a_refusal_is_told_apart_from_a_broken_image(make: Make, host: str) -> None:
    refusals = HOSTS[host].refusals
    api, script = make(host, Script(first=(*refusals, "truncated")))
    for _ in refusals:
        answer = random(api)
        assert isinstance(answer.missing[0], Refused)
        assert answer.usage.calls == 1
    assert isinstance(random(api).missing[0], Failed)
    assert len(script.requests) == len(refusals) + 1


@EACH
def test_what_cannot_heal_stops_the_run_without_the_key(make: Make, canary: str, host: str) -> None:
    api, _ = make(host, path="/nowhere")
    with pytest.raises(APIError, match="HTTP 404: Not Found") as error:
        random(api)
    assert canary not in str(error.value)
