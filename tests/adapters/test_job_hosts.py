"""What holds for every host that answers by jobs, over its scripted server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.http import jobs as waiting
from adapters.http import policy as policy_module
from adapters.http.jobs import JobHost as Generator
from pe.data.images import Images
from pe.data.samples import Conditions
from pe.errors import APIError, Unavailable
from pe.plugins.protocols import Answer, Failed, JobNote, LooksAtEndpoint, RandomRequest, Refused, VariationRequest
from tests.endpoints.job_host import JobHost
from tests.endpoints.job_hosts import SERVERS, hosted

CANARY = "canary-51b2"
OURS = ("comfyui",)
"""Hosts whose jobs have ids of ours."""
FAULTS = ("429 milliseconds", "500", "dropped", "html")
"""One at each request of a job; tests/adapters/test_sdapi_and_hf.py has all that the policy retries."""
Make = Callable[..., tuple[Generator[Any], JobHost]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", CANARY)
    monkeypatch.setattr(policy_module, "FIRST", 0.02)
    monkeypatch.setattr(policy_module, "MOST", 0.2)
    monkeypatch.setattr(waiting, "GRACE", 0.05)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture(params=SERVERS)
def make(request: pytest.FixtureRequest, stack: ExitStack, tmp_path: Path) -> Make:
    def made(**settings: Any) -> tuple[Generator[Any], JobHost]:
        return stack.enter_context(hosted(request.param, tmp_path, **{"key_env": "THE_KEY"} | settings))

    return made


def random(api: Generator[Any], count: int = 1, job: JobNote | None = None, seed: int = 40) -> Answer:
    seeds = np.arange(count, dtype=np.uint64) + np.uint64(seed)
    labels = ("cat",) * count
    return api.random_api(RandomRequest(labels, seeds, api.draw_conditions(labels, seeds), job or JobNote()))


def varied(api: Generator[Any], degree: float, shade: int, count: int = 1) -> Answer:
    pixels = np.full((count, 16, 16, 3), shade, np.uint8)
    conditions = Conditions({"prompt": np.array(["a cat"] * count)})
    seeds = np.arange(count, dtype=np.uint64)
    return api.variation_api(VariationRequest(Images(pixels), ("cat",) * count, conditions, seeds, degree))


def test_a_request_is_a_job_and_its_images_are_fetched(make: Make) -> None:
    api, server = make()
    answer = random(api)
    assert answer.samples.array[:, 0, 0, 0].tolist() == [40 * 37 % 256]
    assert (answer.usage.calls, answer.usage.images) == (1, 1)
    assert varied(api, 0.4, 100).samples.array[0, 0, 0, 0] == 60
    assert list(server.submitted.values()) == [1, 1]
    assert all(CANARY in key for key in server.script.keys - {""})
    assert all(CANARY not in str(headers) for headers in server.fetched)


def test_no_host_of_jobs_can_be_looked_at_without_a_job(make: Make) -> None:
    assert not isinstance(type(make()[0]), LooksAtEndpoint)


def test_degree_0_makes_no_job(make: Make) -> None:
    api, server = make()
    assert varied(api, 0.0, 7).samples.array[0, 0, 0, 0] == 7
    assert not server.jobs


@pytest.mark.parametrize(("place", "fault"), [(i % 4, fault) for i, fault in enumerate(FAULTS)])
def test_a_fault_at_any_request_of_a_job_heals(make: Make, place: int, fault: str) -> None:
    api, server = make(timeout=0.5)
    server.script._first = [""] * place + [fault]
    assert len(random(api).samples) == 1
    assert server.script.seen[fault] == 1
    assert len(server.jobs) == 1


def test_a_job_without_a_result_is_an_outcome(make: Make) -> None:
    api, server = make()
    for seed, outcome in enumerate(server.knows):
        server.outcomes = [outcome]
        answer = random(api, seed=seed)
        assert isinstance(answer.missing[0], Refused if outcome == "refusal" else Failed)
        assert answer.usage.calls == 1
        assert len(server.jobs) == seed + 1


def test_a_torn_image_fails_alone_and_so_does_one_of_another_size(make: Make) -> None:
    api, server = make()
    server.outcomes = ["torn", "large"]
    assert "truncated" in random(api, seed=1).missing[0].reason
    assert bool(random(api, seed=2).missing) == (api._rule.fixed_size is not None)


def test_a_noted_job_is_waited_for_and_not_submitted_again(make: Make) -> None:
    api, server = make()
    kept: list[str] = []
    random(api, job=JobNote(keep=kept.append))
    assert len(kept) == 1
    answer = random(api, job=JobNote(kept[0], calls=1, keep=kept.append))
    assert len(answer.samples) == 1
    assert answer.usage.calls == 1
    assert (len(server.jobs), len(kept)) == (1, 1)


def test_a_job_is_noted_before_anyone_looks_at_it(make: Make) -> None:
    api, server = make()
    looked: list[int] = []
    random(api, job=JobNote(keep=lambda _: looked.append(sum(job.looks for job in server.jobs.values()))))
    assert looked == [0]


def test_a_job_that_the_host_has_forgotten_is_submitted_again_and_counted(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    api, server = make()
    kept: list[str] = []
    random(api, job=JobNote(keep=kept.append))
    server.jobs.clear()
    answer = random(api, job=JobNote(kept[0], calls=1))
    assert len(answer.samples) == 1
    assert answer.usage.calls == 2
    assert "submitted again" in caplog.text


def test_a_host_that_knows_nothing_of_what_it_takes_is_asked_once(make: Make) -> None:
    api, server = make()
    server.outcomes = ["unknown"]
    answer = random(api)
    assert isinstance(answer.missing[0], Failed)
    assert "does not know" in answer.missing[0].reason
    assert answer.usage.calls == 1


def test_a_job_that_does_not_end_in_time_has_failed(make: Make) -> None:
    api, server = make(job_timeout=0.05)
    server.finished = 0
    answer = random(api)
    assert "job_timeout" in answer.missing[0].reason


def test_what_cannot_heal_stops_the_run_without_the_key(make: Make) -> None:
    api, _ = make(base_url="http://127.0.0.1:9", tries=1, patience=0.1)
    with pytest.raises(Unavailable, match="Connect"):
        random(api)
    good, _ = make()
    api, _ = make(base_url=f"{good._config.base_url}/nowhere")
    with pytest.raises(APIError, match="HTTP 404: Not Found") as error:
        random(api)
    assert CANARY not in str(error.value)


def test_a_lost_answer_costs_nothing_where_the_id_is_ours(make: Make) -> None:
    api, server = make()
    server.script._first = [""] * server.submit_at + ["lost"]
    answer = random(api)
    assert len(answer.samples) == 1
    assert len(server.jobs) == (1 if type(api).__name__.lower() in OURS else 2)
    assert answer.usage.calls == len(server.jobs)
