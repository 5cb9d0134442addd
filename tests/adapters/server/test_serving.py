"""The real server, started by its command: Ray Serve with its proxy, an ingress and replicas that may be killed."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from adapters.diffusion.pixel import PixelSpace
from adapters.server.formats import ARRAYS, BatchRequest, pack_request, read_answer
from adapters.server_client import ServerClient
from pe.plugins.protocols import GenerationAPI, RandomRequest
from tests.adapters.server.asking import BATCH, Pixels, apart, ask, batch, generate, get
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
    with served(*OPTIONS, "1", RAY_ADDRESS="127.0.0.1:9") as found:  # of somebody else's cluster, not to be joined
        yield found


def test_it_answers_its_client_as_the_local_adapter_does_and_counts_what_it_did(server: Server) -> None:
    before = server.metrics()
    request = wanted(20)
    assert apart(drawn(ServerClient(base_url=server.url, steps=4), request), drawn(LOCAL, request)) <= 1
    counted = {"images_total": 20, "images_sent_total": 20, "batch_images_count": 2, "queue_seconds_count": 2}
    counted |= {"engine_seconds_total": 1e-6, "answer_seconds_count": 1}
    wait_until(lambda: all(server.metrics()[name] >= before[name] + least for name, least in counted.items()))


def test_neither_its_logs_nor_ray_s_hold_a_prompt_or_a_key(server: Server) -> None:
    assert generate(server.url, {"prompt": SECRET}, KEY)[0] == 400
    wait_until(lambda: any('status="400"' in labels for _, labels, _ in server.lines()))
    logs = server.logs()
    assert '"message": "answered"' in logs
    assert [secret for secret in (SECRET, KEY) if secret in logs] == []


def test_ray_s_proxy_is_not_led_astray(server: Server) -> None:
    for sent in odd_headers():
        check(server.url, sent)
    assert get(server.url, "/readyz") == (200, {"status": "ok"})


def test_all_that_can_be_reached_without_a_token_listens_on_loopback(server: Server) -> None:
    found = listening(server.titles())
    assert {port for address, port in found if address in LOOPBACK} >= {int(server.url.rpartition(":")[2])}
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


def shares(server: Server) -> set[str]:
    """The replicas that made images."""
    return {labels for name, labels, _ in server.lines() if name == "pe_server_images_total"}


Answers = list[tuple[BatchRequest, Any]]


@contextmanager
def load(asked: Callable[[BatchRequest], Any], clients: int) -> Iterator[Answers]:
    """Clients that ask again and again, until the end of the block; an answer None is none."""
    answers: Answers = []
    over = threading.Event()

    def ask_on(client: int) -> None:
        for number in range(10**6):
            if over.is_set():
                return
            request = wanted(8, first=10**7 * client + 8 * number)
            if (answer := asked(request)) is not None:
                answers.append((request, answer))

    with ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask_on, client) for client in range(clients)]
        try:
            wait_until(lambda: len(answers) >= clients)
            yield answers
        finally:
            over.set()
    for each in asking:
        each.result()


def answered(answers: Answers, more: int) -> None:
    aim = len(answers) + more
    wait_until(lambda: len(answers) >= aim)


@pytest.fixture(scope="module")
def two() -> Iterator[Server]:
    """A server of two replicas, which have both made images."""
    with served(*OPTIONS, "2") as found:
        wait_until(lambda: batch(found.url, wanted(64)) and len(shares(found)) == 2)
        yield found


@pytest.mark.slow
@pytest.mark.parametrize(("deployment", "refused"), [("engine", set()), ("ingress", {408, 429, 503})])
def test_one_that_is_killed_under_load_costs_nothing_but_time(two: Server, deployment: str, refused: set[int]) -> None:
    before, known = two.replicas(deployment), shares(two)

    def asked(request: BatchRequest) -> Pixels | None:
        status, answer, _ = ask(two.url + BATCH, pack_request(request), content_type=ARRAYS)
        assert status == 200 or status in refused  # come again
        return read_answer(answer, 8).images if status == 200 else time.sleep(0.2)

    with load(asked, clients=6) as answers:
        os.kill(before[0], signal.SIGKILL)
        answered(answers, 12)  # more than had been under way
    with load(asked, clients=1) as later:  # one, which leaves the cores to what starts
        while len(two.replicas(deployment)) < len(before) or (deployment == "engine" and not shares(two) - known):
            answered(later, 4)
    answers += later
    for request, images in answers[:: len(answers) // 6]:
        assert apart(images, drawn(LOCAL, request)) <= 1
    assert before[0] not in two.replicas(deployment)
