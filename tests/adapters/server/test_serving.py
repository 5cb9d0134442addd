"""The real server, started by its command: Ray Serve with its proxy and replicas that may be
killed.
"""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from adapters.diffusion.pixel import PixelSpace
from adapters.server.formats import ARRAYS, BatchRequest, pack_request, read_answer
from adapters.server_client import ServerClient
from pe.plugins.protocols import GenerationAPI, RandomRequest
from tests.adapters.server.asking import BATCH, Pixels, apart, ask, generate, get
from tests.adapters.server.serving import Server, served
from tests.adapters.server.test_malformed import check, odd_headers
from tests.cluster.processes import LOOPBACK, listening, wait_until

KEY, SECRET = "a-key-that-nobody-guesses", "marmalade"
OPTIONS = ("small", "--steps", "4", "--max-batch", "16", "--replicas")
LOCAL = PixelSpace(model="small", steps=4, device="cpu")


def drawn(api: GenerationAPI, request: BatchRequest) -> Pixels:
    return api.random_api(RandomRequest(("a",) * len(request), request.seeds)).samples.array


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served(
        *OPTIONS, "1", RAY_ADDRESS="127.0.0.1:9"
    ) as found:  # of somebody else's cluster, not to be joined
        yield found


def test_it_answers_its_client_as_the_local_adapter_does_and_counts_what_it_did(
    server: Server,
) -> None:
    before = server.metrics()
    request = wanted(20)
    assert (
        apart(drawn(ServerClient(base_url=server.url, steps=4), request), drawn(LOCAL, request))
        <= 1
    )
    counted = {
        "images_total": 20,
        "batch_images_count": 2,
        "queue_seconds_count": 2,
        "engine_seconds_total": 1e-6,
    }
    counted |= {"ray_serve_num_http_requests_total": 1}
    wait_until(
        lambda: all(
            server.metrics()[name] >= before[name] + least for name, least in counted.items()
        )
    )


def test_neither_its_logs_nor_ray_s_hold_a_prompt_or_a_key(server: Server) -> None:
    assert generate(server.url, {"prompt": SECRET}, KEY)[0] == 400
    wait_until(
        lambda: '"message": "answered"' in server.logs() and '"status": 400' in server.logs()
    )
    logs = server.logs()
    assert [secret for secret in (SECRET, KEY) if secret in logs] == []


def test_ray_s_proxy_is_not_led_astray(server: Server) -> None:
    for sent in odd_headers():
        check(server.url, sent)
    assert get(server.url, "/readyz") == (200, {"status": "ok"})


def test_all_that_can_be_reached_without_a_token_listens_on_loopback(server: Server) -> None:
    found = listening(server.titles())
    assert {port for address, port in found if address in LOOPBACK} >= {
        int(server.url.rpartition(":")[2])
    }
    for _, port in [each for each in found if each[0] not in LOOPBACK]:
        assert refuses_strangers(port), port


def refuses_strangers(port: int) -> bool:
    """Whether a gRPC port, which Ray opens in each replica for the others, asks for Ray's token."""
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
        try:
            call(b"", timeout=10)
        except grpc.RpcError as error:
            return bool(error.code() is grpc.StatusCode.UNAUTHENTICATED)
    return False


def test_none_of_its_processes_gives_way_to_what_else_the_machine_does(server: Server) -> None:
    nice = {name: os.getpriority(os.PRIO_PROCESS, pid) for pid, name in server.titles().items()}
    assert set(nice.values()) == {os.getpriority(os.PRIO_PROCESS, 0)}, nice


def test_it_ends_when_what_is_under_way_is_answered(server: Server) -> None:
    body = pack_request(wanted(32, steps=20))
    with ThreadPoolExecutor(1) as client:
        under_way = client.submit(ask, server.url + BATCH, body, content_type=ARRAYS)
        time.sleep(0.3)
        assert not under_way.done()
        assert server.end() == 0
        status, answer, _ = under_way.result()
    assert status == 200
    assert len(read_answer(answer, 32).images) == 32
    wait_until(lambda: not server.titles(), 10)


def wanted(count: int, first: int = 0, steps: int = 4) -> BatchRequest:
    return BatchRequest(np.arange(first, first + count, dtype=np.uint64), steps=steps)


@pytest.mark.slow
def test_a_replica_that_is_killed_under_load_costs_our_client_nothing_but_time() -> None:
    with served(*OPTIONS, "2") as server, ThreadPoolExecutor(12) as clients:
        before = server.replicas()
        client = ServerClient(base_url=server.url, steps=4, concurrency=12)
        requests = [wanted(64, first=64 * i) for i in range(8)]
        answers = [clients.submit(drawn, client, request) for request in requests]
        time.sleep(0.7)
        os.kill(before[0], signal.SIGKILL)
        for request, answer in list(zip(requests, answers, strict=True))[::3]:
            assert apart(answer.result(), drawn(LOCAL, request)) <= 1
        assert all(len(answer.result()) == 64 for answer in answers)
        wait_until(lambda: len({*server.replicas()} - {before[0]}) == 2)
