"""A real Ray cluster of two nodes on this machine, each with a loopback address of its own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from adapters.server.application import DOOR

ROOT = Path(__file__).parents[3]
_TRIES = 5
_RUNS = """
import sys, time
from ray.cluster_utils import Cluster

def add(**more):
    for _ in range({tries}):
        try:
            return cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20, **more)
        except Exception as error:  # Ray gives its agents 15 s to start, whatever else the machine does
            print(error, file=sys.stderr)
    sys.exit(1)

cluster = Cluster()
more = {{"include_dashboard": True, "dashboard_port": {port}}} if {port} else {{}}
nodes = [add(node_ip_address="127.0.0.2", **more), add(node_ip_address="127.0.0.3")]
raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
print(json.dumps([cluster.address, *raylets]), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Nodes:
    """The cluster.

    Attributes:
        address: HOST:PORT of its head.
        dashboard: where `serve deploy` sends a file; empty: there is none.
        environment: of all who join it.
        head: process of the raylet of the node that has the controller, too.
        other: process of the other node's raylet.
    """

    address: str
    dashboard: str
    environment: dict[str, str]
    head: int
    other: int

    @property
    def joining(self) -> tuple[tuple[str, str], ...]:
        """The environment, as `serving.Asked` has it."""
        return tuple(self.environment.items())

    def replicas(self, node: int, deployment: str = "engine") -> list[int]:
        """The processes of a deployment's replicas on a node."""
        return self._named(node, f"ray::ServeReplica:pe:{deployment}")

    def proxies(self, node: int) -> list[int]:
        """The processes of a node that take requests."""
        return self._named(node, "ray::ProxyActor")

    def kill(self, node: int) -> None:
        """All processes of a node at once, as if its power went off."""
        for pid in [node, *_family(node)]:
            os.kill(pid, signal.SIGKILL)

    def _named(self, node: int, name: str) -> list[int]:
        return [pid for pid, said in _family(node).items() if said.startswith(name)]


def _family(raylet: int) -> dict[int, str]:
    """The processes that a raylet has started, and what they call themselves."""
    found = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == raylet:
                    found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it has just ended
    return found


@contextmanager
def nodes(dashboard_port: int = 0) -> Iterator[Nodes]:
    """Two nodes with a core each; with a port, the head has Ray's dashboard there."""
    with tempfile.TemporaryDirectory(prefix="n-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
            "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": DOOR,
            "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "100",
            "RAY_TMPDIR": folder,  # nobody else's Ray finds this one
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        script = _RUNS.format(tries=_TRIES, port=dashboard_port)
        process = subprocess.Popen(
            [sys.executable, "-c", f"import json\n{script}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            address, head, other = json.loads(process.stdout.readline())
            where = f"http://127.0.0.1:{dashboard_port}" if dashboard_port else ""
            yield Nodes(address, where, environment, head, other)
        finally:
            process.communicate(timeout=60)
            _end(process.pid)


def _end(session: int) -> None:
    """Leave nothing of it."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit() and _in(each.name, session)]
        if not left:
            return
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _in(pid: str, session: int) -> bool:
    try:
        return os.getsid(int(pid)) == session
    except OSError:
        return False
