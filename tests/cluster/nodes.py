"""A real Ray cluster of two nodes, each with an address of its own on loopback; its owner asks for
a token.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from pe.plugins import start_ray
from tests.cluster.processes import descendants, kill, title

ROOT = Path(__file__).parents[2]
STORE = 80 * 2**20  # bytes of a node's memory for objects, the fewest that Ray takes
HEAD, OTHER = "127.0.0.2", "127.0.0.3"
_SOON = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 100,
    "health_check_failure_threshold": 5,
}
_SOON["metrics_report_interval_ms"] = 200  # and how soon a dead node is noticed


class Nodes:
    """The cluster, with a core on each node; both write to `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cluster = Cluster(shutdown_at_exit=False)
        ours = {
            "dashboard_host": HEAD,
            "dashboard_port": 0,
            "no_monitor": True,
            "_system_config": _SOON,
        }
        self._add(HEAD, include_dashboard=True, **ours)
        self.address, self.dashboard = (
            str(self._cluster.address),
            f"http://{self._cluster.webui_url}",
        )
        self.other()

    def other(self) -> tuple[int, ...]:
        """The processes of the other node, its raylet first; it is started unless it is there."""
        for node in set(self._cluster.worker_nodes):
            if not node.any_processes_alive():
                self._cluster.worker_nodes.remove(node)
        if not self._cluster.worker_nodes:
            self._add(OTHER)
        (node,) = self._cluster.worker_nodes
        return _processes(node)

    def end(self) -> None:
        ours = [pid for pid in descendants(os.getpid())[1:] if str(self.folder) in title(pid)]
        ours = [pid for one in ours for pid in descendants(one)]
        for node in self._cluster.list_all_nodes():
            node.kill_all_processes(check_alive=False, wait=True)
        kill(ours)

    def _add(self, address: str, **more: Any) -> None:
        self._cluster.add_node(
            node_ip_address=address,
            num_cpus=1,
            object_store_memory=STORE,
            include_log_monitor=False,
            **more,
        )


def _processes(node: Any) -> tuple[int, ...]:
    return tuple(descendants(node.all_processes["raylet"][0].process.pid))


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    """The cluster, until the end of the block; so long the environment is its owner's, and all who
    join inherit it.
    """
    owner_s = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": start_ray._token(),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    owner_s |= {
        "RAY_worker_niceness": "0",
        "PYTHONPATH": str(ROOT),
    }  # the workers import tests.cluster.things
    with (
        tempfile.TemporaryDirectory(prefix="t-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in (owner_s | {"RAY_TMPDIR": folder}).items():
            patch.setenv(name, value)
        start_ray._read_environment()
        nodes = Nodes(Path(folder))
        try:
            yield nodes
        finally:
            nodes.end()
