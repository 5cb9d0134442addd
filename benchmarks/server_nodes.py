"""What clients see when a node of the diffusion server's cluster dies: two Ray nodes on this machine, one is killed.

    python benchmarks/server_nodes.py

The shipped model, `pe serve --address`, a replica on each node. Six clients ask over plain HTTP, and ask again what was
not answered. All processes of the node without Ray's head are killed at once: with the server's ingress on it, and
without. Writes results/server_nodes.md.
"""

from __future__ import annotations

import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from record import keep, where

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' cluster

from adapters.server.formats import NPZ, Wanted, wanted_to_npz
from tests.adapters.server.nodes import Nodes, nodes
from tests.adapters.server.serving import Asked, Server, begin

CLIENTS, IMAGES, BEFORE, AFTER = 6, 8, 60, 120


@dataclass
class Load:
    """Clients that ask until they are stopped.

    Attributes:
        server: that they ask.
        good: when answers came.
        bad: when, and what came in place of one.
    """

    server: Server
    good: list[float] = field(default_factory=list)
    bad: list[tuple[float, str]] = field(default_factory=list)

    def ask(self, client: int, over: threading.Event) -> None:
        """Again and again; half a second later what was not answered."""
        seeds = np.random.default_rng(client)
        while not over.is_set():
            body = wanted_to_npz(Wanted(seeds.integers(0, 2**64, IMAGES, dtype=np.uint64), steps=2))
            request = urllib.request.Request(f"{self.server.url}/v1/batch/images", body, {"Content-Type": NPZ})
            while (why := self._once(request)) and not over.is_set():
                self.bad.append((time.monotonic(), why))
                time.sleep(0.5)

    def _once(self, request: urllib.request.Request) -> str:
        try:
            urllib.request.urlopen(request, timeout=120).read()
        except urllib.error.HTTPError as error:
            return f"status {error.code}"
        except OSError as error:
            return type(error).__name__
        self.good.append(time.monotonic())
        return ""

    def wait(self, count: int) -> None:
        """Until so many answers came in all."""
        while len(self.good) < count:
            time.sleep(0.1)


def measure(cluster: Nodes, server: Server) -> str:
    """A row: where the ingress was, what came in place of answers, and how long none came."""
    with_ingress = bool(cluster.replicas(cluster.other, "ingress"))
    load, over = Load(server), threading.Event()
    clients = [threading.Thread(target=load.ask, args=(i, over)) for i in range(CLIENTS)]
    for client in clients:
        client.start()
    load.wait(BEFORE)
    killed = time.monotonic()
    cluster.kill(cluster.other)
    load.wait(BEFORE + AFTER)
    replaced = time.monotonic()
    while len(cluster.replicas(cluster.head)) < 2:
        time.sleep(0.1)
    replaced = time.monotonic() - killed
    over.set()
    for client in clients:
        client.join()
    early = [at for at in load.bad if at[0] < killed]
    assert not early, early
    times = sorted(load.good)
    pause = max(later - at for at, later in pairwise(times) if later > killed)
    came = ", ".join(f"{count} × {why}" for why, count in sorted(Counter(why for _, why in load.bad).items()))
    last = max((at - killed for at, _ in load.bad), default=0.0)
    return (
        f"| {'with' if with_ingress else 'without'} the ingress | {came or 'nothing'} | {last:.1f} | {pause:.1f} "
        f"| {replaced:.0f} |"
    )


def main() -> None:
    rows: dict[bool, str] = {}
    for _ in range(6):  # where the ingress is, Ray decides
        with nodes() as cluster:
            options = ("--address", cluster.address, "--replicas", "2", "--steps", "4", "--max-batch", "16")
            server = begin(Asked("small", options, cluster.joining))
            try:
                server.wait_for()
                while not (cluster.proxies(cluster.head) and cluster.proxies(cluster.other)):
                    time.sleep(0.5)
                with_ingress = bool(cluster.replicas(cluster.other, "ingress"))
                if with_ingress not in rows:
                    rows[with_ingress] = measure(cluster, server)
                    keep("server_nodes.md", page(rows.values()))
            finally:
                server.kill()
        if len(rows) == 2:
            return


def page(rows: Iterable[str]) -> str:
    text = [
        "# A node of the diffusion server's cluster dies",
        "",
        f"{where()}. Two Ray nodes with a core each on this machine, the shipped model, a replica on each; {CLIENTS} "
        f"clients ask for {IMAGES} images each, again and again. All processes of the node without Ray's head are "
        "killed at once. `python benchmarks/server_nodes.py`",
        "",
        "| the node | came in place of answers | the last of these, s after | no answer, s | a new replica, s after |",
        "| --- | --- | --: | --: | --: |",
        *rows,
        "",
        "What was not answered was asked again, and then answered.",
    ]
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    main()
