"""A run on a Ray cluster of two nodes that others set up: what it releases, who may die, and what
Ray keeps.
"""

import json
import os
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.util import state

from pe.cluster.work import on_ray
from pe.plugins.start_ray import start_ray
from pe.recipe.schema import Recipe
from tests.cluster import runs
from tests.cluster.nodes import HEAD, OTHER, Nodes, two_nodes
from tests.cluster.processes import wait_until
from tests.cluster.things import CANARY, end_node

pytestmark = pytest.mark.slow  # what test_ray.py holds of one node, over two


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with two_nodes() as found:
        yield found


@pytest.fixture
def both(nodes: Nodes) -> Iterator[Nodes]:
    """The cluster, both nodes alive, joined by this process."""
    nodes.other()
    start_ray(nodes.address, extra="ray", purpose="a test")
    try:
        wait_until(lambda: sum(node["Alive"] for node in ray.nodes()) == 2)
        yield nodes
    finally:
        ray.shutdown()


def test_the_votes_and_blocks_of_a_node_that_ends_are_counted_and_embedded_again(
    both: Nodes, tmp_path: Path
) -> None:
    marker = tmp_path / "ended"
    # candidates, whose votes stay on the node that counted them until they are asked for
    many = 20_000
    runs.check_lost_votes(marker, partial(end_node, both.other(), marker), candidates=many)
    marker = tmp_path / "ended again"
    runs.check_lost_blocks(
        marker, partial(end_node, both.other(), marker), runs.some(90, 255, step=8)
    )  # in each block


def test_the_machines_to_which_private_records_go_are_named(nodes: Nodes, tmp_path: Path) -> None:
    nodes.other()
    recipe = Recipe.parse(runs.content(runs.write_private(tmp_path)), "a test")
    with on_ray(nodes.address, recipe) as work:
        run = runs.carry_out(recipe, tmp_path / "run", work).folder
    record = json.loads((run / "confidential/audit-record.json").read_text())
    assert [one["hosts"] for one in record["recipients"] if one["who"] == "Ray's workers"] == [
        [HEAD, OTHER]
    ]


LISTS = ("list_actors", "list_objects", "list_workers", "list_jobs")  # of the state API
PAGES = (
    "api/v0/tasks?detail=1&limit=1000",
    "api/v0/actors?detail=1",
    "api/v0/objects",
    "logical/actors",
    "events",
)


def test_nothing_private_reaches_what_a_cluster_tells_or_keeps(
    both: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = runs.some(48, CANARY, step=16)  # one in each block
    found = runs.embed_and_vote(dataset)
    assert np.isfinite(found.vectors).all(axis=1).sum() == 45
    assert CANARY.decode() in caplog.text  # of the run: confidential/log.txt

    held = ray.put(dataset)
    ours = [("job_id", "=", ray.get_runtime_context().get_job_id())]
    tasks = partial(state.list_tasks, address=both.dashboard, filters=ours, detail=True)
    wait_until(
        lambda: sum(task.func_or_class_name == "votes" for task in tasks()) == 3
    )  # it is told with a delay
    told = {"list_tasks": tasks(), "timeline": ray.timeline()}
    told |= {name: getattr(state, name)(address=both.dashboard, detail=True) for name in LISTS}
    assert told["list_objects"]
    del held
    told |= {page: read(f"{both.dashboard}/{page}") for page in PAGES}
    hosts = {
        one["NodeManagerAddress"]: one["MetricsExportPort"] for one in ray.nodes() if one["Alive"]
    }
    metrics = {host: partial(read, f"http://{host}:{port}/metrics") for host, port in hosts.items()}
    wait_until(lambda: 'Name="votes"' in metrics[HEAD]())
    told |= {host: metric() for host, metric in metrics.items()}
    assert {"embed", "votes"} <= {task.func_or_class_name for task in told["list_tasks"]}
    assert all("ray_node_mem_used" in told[address] for address in (HEAD, OTHER))
    assert [name for name, what in told.items() if CANARY.decode() in str(what)] == []

    files = [file for file in both.folder.rglob("*") if file.is_file() and not file.is_symlink()]
    assert any("worker" in file.name for file in files)
    assert [file for file in files if CANARY in file.read_bytes()] == []


def read(url: str) -> str:
    request = urllib.request.Request(
        url, headers={"Authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())
