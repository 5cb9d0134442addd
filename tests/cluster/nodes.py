"""A real Ray cluster of two nodes, each with an address of its own on loopback; its owner asks for a token."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from pe.plugins import start_ray

ROOT = Path(__file__).parents[2]
STORE = 80 * 2**20
"""Bytes of a node's memory for objects, the fewest that Ray takes."""
HEAD, OTHER = "127.0.0.2", "127.0.0.3"
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "PYTHONPATH": str(ROOT),  # the workers import tests.cluster.things
}
_QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 100,
    "health_check_failure_threshold": 5,
    "metrics_report_interval_ms": 200,
}
"""How soon a dead node is noticed, and how often metrics are told."""


class Nodes:
    """The cluster; a core on each node.

    Attributes:
        folder: where both nodes write.
        address: of the head.
        dashboard: host and port.
        environment: what a process needs that joins.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = _ENVIRONMENT | {"RAY_AUTH_TOKEN": start_ray._token(), "RAY_TMPDIR": str(folder)}
        self._cluster = Cluster(shutdown_at_exit=False)

    def start(self) -> Nodes:
        """Start both nodes."""
        with self.as_owner():
            start_ray._read_environment()
            owns = {"no_monitor": True, "_system_config": _QUICK}
            self._add(HEAD, include_dashboard=True, dashboard_host=HEAD, dashboard_port=0, **owns)
        self.address, self.dashboard = str(self._cluster.address), str(self._cluster.webui_url)
        self.other()
        return self

    def other(self) -> tuple[int, ...]:
        """The processes of the other node, its raylet first; it is started unless it is there."""
        for node in set(self._cluster.worker_nodes):
            if not node.any_processes_alive():
                self._cluster.worker_nodes.remove(node)
        if not self._cluster.worker_nodes:
            with self.as_owner():
                self._add(OTHER)
        (node,) = self._cluster.worker_nodes
        return tuple(descendants(node.all_processes["raylet"][0].process.pid))

    def running(self, title: str) -> bool:
        """Whether a worker does what has this title."""
        raylets = [node.all_processes["raylet"][0].process.pid for node in self._cluster.list_all_nodes()]
        for pid in (pid for raylet in raylets for pid in descendants(raylet)):
            if _command(pid).startswith(title):
                return True
        return False

    def end(self) -> None:
        """End all that was started."""
        ours = [pid for pid in descendants(os.getpid())[1:] if str(self.folder) in _command(pid)]
        ours = [pid for one in ours for pid in descendants(one)]
        for node in self._cluster.list_all_nodes():
            node.kill_all_processes(check_alive=False, wait=True)
        for pid in ours:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _add(self, address: str, **more: Any) -> None:
        self._cluster.add_node(
            node_ip_address=address, num_cpus=1, object_store_memory=STORE, include_log_monitor=False, **more
        )

    @contextmanager
    def as_owner(self) -> Iterator[None]:
        """Inside, this process has what the cluster asks for in its environment."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            yield


@contextmanager
def joined(nodes: Nodes) -> Iterator[None]:
    """Inside, this process is part of the cluster."""
    with nodes.as_owner():
        start_ray.start_ray(nodes.address, extra="ray", purpose="a test")
        try:
            yield
        finally:
            ray.shutdown()


def descendants(pid: int) -> list[int]:
    """The process and all that came from it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""
