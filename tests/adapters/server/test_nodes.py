"""The server over two nodes of a real Ray cluster: replicas on both, and one that dies costs nothing but time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest

from adapters.diffusion.pixel import PixelSpace
from adapters.server.formats import BatchRequest
from adapters.server_client import ServerClient
from pe.plugins.protocols import GenerationAPI, RandomRequest, Seeds
from tests.adapters.server.asking import Pixels, apart, batch
from tests.adapters.server.nodes import Nodes, nodes
from tests.adapters.server.serving import PATIENCE, Asked, Server, begin

pytestmark = pytest.mark.slow

CLASSES: dict[str | int, Any] = {"a": 7}
SEEDS = np.arange(8, dtype=np.uint64)
HERE = PixelSpace(model="small", classes=CLASSES, steps=4, device="cpu")


def drawn(api: GenerationAPI, seeds: Seeds) -> Pixels:
    """The generator's images of these seeds, all of them."""
    answer = api.random_api(RandomRequest(("a",) * len(seeds), seeds))
    assert not answer.missing
    images: Pixels = answer.samples.array
    return images


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes(_free()) as found:
        yield found


@pytest.fixture(scope="module")
def served(cluster: Nodes) -> Iterator[Server]:
    """`pe serve --address` with a replica for each node."""
    options = ("--address", cluster.address, "--replicas", "2", "--steps", "4", "--max-batch", "16")
    server = begin(Asked("small", options, cluster.joining))
    try:
        server.wait_for()
        yield server
    finally:
        server.kill()


def _free() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def wait(until: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_what_pe_serve_prints_is_deployed_by_serve_deploy(tmp_path: Path) -> None:
    port, programs = _free(), str(Path(sys.executable).parent)
    with nodes(_free()) as cluster:
        environment = os.environ | cluster.environment
        options = ["small", "--replicas", "2", "--steps", "4", "--port", str(port), "--print-config"]
        printed = subprocess.run(
            [f"{programs}/pe", "serve", *options], env=environment, check=True, capture_output=True, text=True
        ).stdout
        (tmp_path / "serve.yaml").write_text(printed)
        command = [f"{programs}/serve", "deploy", str(tmp_path / "serve.yaml"), "--address", cluster.dashboard]
        wait(lambda: subprocess.run(command, env=environment, capture_output=True).returncode == 0)
        with pytest.raises(HTTPError, match="401"):  # who lacks the token
            urllib.request.urlopen(f"{cluster.dashboard}/api/serve/applications/", timeout=20)
        url = f"http://127.0.0.1:{port}"
        wait(lambda: _is_ready(url))
        there = ServerClient(base_url=url, classes=CLASSES, steps=4)
        assert apart(drawn(there, SEEDS), drawn(HERE, SEEDS)) <= 1
        wait(lambda: cluster.replicas(cluster.head) and cluster.replicas(cluster.other))


def test_each_node_has_a_replica_and_a_proxy_and_both_make_images(cluster: Nodes, served: Server) -> None:
    for node in (cluster.head, cluster.other):
        assert len(cluster.replicas(node)) == 1
        wait(partial(cluster.proxies, node))
    wait(lambda: batch(served, BatchRequest(np.arange(64, dtype=np.uint64), steps=1)) and len(served.shares()) == 2)
    assert served.status("GET", "/readyz") == 200


def test_a_node_that_dies_under_load_costs_a_client_nothing_but_time(cluster: Nodes, served: Server) -> None:
    """The ingress may have been on it: then a new one comes up, too."""
    there = ServerClient(base_url=served.url, classes=CLASSES, steps=4)
    over, answered = threading.Event(), []

    def ask(client: int) -> None:
        rng = np.random.default_rng(client)
        while not over.is_set():
            seeds = rng.integers(0, 2**64, 8, dtype=np.uint64)
            answered.append((seeds, drawn(there, seeds)))

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(ask, client) for client in range(4)]
        try:
            wait(lambda: len(answered) >= 4)
            cluster.kill(cluster.other)
            before = len(answered)
            wait(lambda: len(answered) >= before + 12)  # more than had been under way
        finally:
            over.set()
    for client in clients:
        client.result()  # none failed
    for seeds, images in answered[:: len(answered) // 6]:
        assert apart(images, drawn(HERE, seeds)) <= 1
    wait(lambda: len(cluster.replicas(cluster.head)) == 2)  # the lost one's place is taken
    assert cluster.replicas(cluster.other) == []


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=20) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
