"""Many at once, and replicas that die: nobody sees the others, and nothing is lost but time."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from adapters.server.formats import ARRAYS, BatchAnswer, BatchRequest, pack_request, read_answer
from tests.adapters.server.asking import apart, batch, post
from tests.adapters.server.conftest import SMALL
from tests.adapters.server.serving import PATIENCE, Server, Servers

RETRYABLE = (408, 429, 503)


def mixed(count: int) -> list[BatchRequest]:
    """Requests for 1 to 3 images, new ones and variations of several degrees and steps."""
    dice, rng = random.Random(3), np.random.default_rng(3)
    requests = []
    for _ in range(count):
        n, degree = dice.randrange(1, 4), dice.choice((None, 0.5, 0.7, 1.0))
        images = None if degree is None else rng.integers(0, 256, (n, 28, 28, 1)).astype(np.uint8)
        seeds = rng.integers(0, 2**64, n, dtype=np.uint64)
        requests.append(BatchRequest(seeds, degree, dice.choice((2, 3)), images=images, classes=rng.integers(0, 62, n)))
    return requests


class Load:
    """Clients that ask again and again, until the end of the block."""

    def __init__(self, server: Server, clients: int = 6) -> None:
        self._server, self._over = server, threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(clients)]
        self.answers: list[tuple[BatchRequest, int, bytes]] = []

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _ask(self, client: int) -> None:
        rng = np.random.default_rng(client)
        while not self._over.is_set():
            wanted = BatchRequest(rng.integers(0, 2**64, 8, dtype=np.uint64), steps=2)
            status, answer, _ = post(self._server, "/v1/batch/images", pack_request(wanted), ARRAYS)
            self.answers.append((wanted, status, answer))
            if status != 200:
                time.sleep(0.2)

    def wait(self, count: int) -> None:
        """Until so many more were answered well."""
        aim = self.good + count
        deadline = time.monotonic() + PATIENCE
        while self.good < aim:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    @property
    def good(self) -> int:
        return sum(status == 200 for _, status, _ in self.answers)


def check(load: Load, server: Server, most_refused: int) -> None:
    """Every request was answered, well or with an error that asks to come again."""
    refused = [json.loads(answer)["error"]["type"] for _, status, answer in load.answers if status != 200]
    assert all(status in (200, *RETRYABLE) for _, status, _ in load.answers)
    assert len(refused) <= most_refused
    whole: list[tuple[BatchRequest, BatchAnswer]] = [
        (wanted, read_answer(answer, 8)) for wanted, status, answer in load.answers if status == 200
    ]
    assert all(len(made.images) == 8 for _, made in whole)
    for wanted, made in whole[:: max(1, len(whole) // 6)]:
        assert apart(made.images, batch(server, wanted).images) <= 1


@dataclass(frozen=True)
class Killed:
    """What a replica's death under load left.

    Attributes:
        victim: its process.
        known: the replicas that had made images.
        load: what was asked before, at and after its death.
    """

    victim: int
    known: frozenset[str]
    load: Load


@pytest.fixture(scope="module")
def killed(servers: Servers) -> Killed:
    """A replica is killed, once; another starts while the tests that follow ask for more."""
    server = servers.running(SMALL)
    deadline = time.monotonic() + PATIENCE
    while len(known := frozenset(server.shares())) < 2:
        assert time.monotonic() < deadline
        batch(server, BatchRequest(np.arange(64, dtype=np.uint64), steps=1))
    victim = server.replicas()[0]
    with Load(server) as load:
        load.wait(6)
        os.kill(victim, signal.SIGKILL)
        load.wait(12)  # more than had been under way
    return Killed(victim, known, load)


def test_a_replica_that_is_killed_under_load_costs_no_request(killed: Killed, small: Server) -> None:
    check(killed.load, small, most_refused=0)  # a replica was asked again what the dead one lost
    assert killed.victim not in small.replicas()


BATCHES = "pe_server_batch_images_count"


def test_64_clients_at_once_get_what_each_gets_alone(small: Server) -> None:
    requests = mixed(64)
    before, batches_before = small.images_made(), small.metrics().get(BATCHES, 0.0)
    with ThreadPoolExecutor(64) as clients:
        together = list(clients.map(lambda wanted: batch(small, wanted), requests))
    in_all = before + sum(map(len, requests))
    assert small.images_made(at_least=in_all) == in_all
    assert small.metrics()[BATCHES] - batches_before < 0.75 * len(requests)  # they shared forward passes
    assert [len(made.images) for made in together] == list(map(len, requests))
    for wanted, made in list(zip(requests, together, strict=True))[::4]:
        assert apart(made.images, batch(small, wanted).images) <= 1


def test_one_bad_item_fails_alone(small: Server) -> None:
    """No item can be bad in itself here but a whole job can; the others' do not fail with it."""
    image = np.zeros((1, 28, 28, 1), np.uint8)
    bad = BatchRequest(np.zeros(1, np.uint64), 0.01, 4, images=image)
    good = BatchRequest(np.arange(3, dtype=np.uint64), steps=4)
    with ThreadPoolExecutor(8) as clients:
        made = list(clients.map(lambda wanted: batch(small, wanted), [bad, good] * 4))
    assert all("leaves no denoising step" in one.missing[0].reason for one in made[::2])
    assert all(len(one.images) == 3 for one in made[1::2])


def test_a_replica_that_died_is_replaced_and_no_request_notices(killed: Killed, small: Server) -> None:
    deadline = time.monotonic() + PATIENCE
    with Load(small, clients=1) as load:  # one, which leaves the cores to what starts
        while not set(small.shares()) - killed.known:  # until another has its share of the work
            assert time.monotonic() < deadline
            load.wait(4)
    check(load, small, most_refused=0)
    assert len(small.replicas()) == 2


def test_an_ingress_that_is_killed_under_load_loses_nothing_but_a_retryable_error(small: Server) -> None:
    victim = small.replicas("ingress")[0]
    with Load(small) as load:
        load.wait(6)
        os.kill(victim, signal.SIGKILL)
        load.wait(12)  # more than had been under way, so from the new one
    check(load, small, most_refused=400)
    assert small.replicas("ingress") != [victim]
