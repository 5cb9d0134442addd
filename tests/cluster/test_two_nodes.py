"""A run on a Ray cluster of two nodes that others set up: what it releases, who may die, and what Ray keeps."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ray
import yaml
from ray.util import state

from pe.engine.execution import Surroundings, run_recipe
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


def test_the_votes_and_blocks_of_a_node_that_ends_are_counted_and_embedded_again(both: Nodes, tmp_path: Path) -> None:
    marker = tmp_path / "ended"
    many = 20_000  # candidates, whose votes stay on the node that counted them until they are asked for
    runs.check_lost_votes(marker, partial(end_node, both.other(), marker), candidates=many)
    marker = tmp_path / "ended again"
    runs.check_lost_blocks(marker, partial(end_node, both.other(), marker), runs.some(90, 255, step=8))  # in each block


def test_a_run_whose_process_was_killed_goes_on_as_if_it_had_not_been(nodes: Nodes, tmp_path: Path) -> None:
    nodes.other()
    file, run, pe = tmp_path / "recipe.yaml", tmp_path / "run", Path(sys.executable).with_name("pe")
    recipe = runs.content(runs.write_private(tmp_path, 40_000), iterations=1, neighbors=6)
    recipe["private"] |= {"privacy_unit": "record", "declared_units": None, "declared_size": 40_000}
    file.write_text(yaml.safe_dump(recipe | {"api": {"kind": "glyphs"}, "privacy": "none"}))  # to vote takes a second
    with subprocess.Popen([pe, "run", file, "--out", run, "--ray", nodes.address]) as started:
        try:
            wait_until(lambda: nodes.running("ray::votes") or started.poll() is not None)
        finally:
            started.kill()
    assert started.returncode == -signal.SIGKILL
    assert (run / "confidential/embeddings/private_embeddings.npy").exists()
    assert list((run / "releases").iterdir()) == []
    wait_until(lambda: not nodes.running("ray::votes"))  # Ray ends the workers of a process that is gone
    subprocess.run([pe, "resume", run, "--ray", nodes.address], check=True)
    record = json.loads((run / "confidential/audit-record.json").read_text())
    assert {"who": "Ray's workers", "hosts": [HEAD, OTHER]}.items() <= record["recipients"][2].items()
    never_killed = run_recipe(Recipe.load(file), tmp_path / "whole", Surroundings())
    assert runs.released(run) == runs.released(never_killed.folder)


LISTS = ("list_actors", "list_objects", "list_workers", "list_jobs")  # of the state API
PAGES = ("api/v0/tasks?detail=1&limit=1000", "api/v0/actors?detail=1", "api/v0/objects", "logical/actors", "events")


def test_nothing_private_reaches_what_a_cluster_tells_or_keeps(both: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    dataset = runs.some(48, CANARY, step=16)  # one in each block
    found = runs.embed_and_vote(dataset)
    assert np.isfinite(found.vectors).all(axis=1).sum() == 45
    assert CANARY.decode() in caplog.text  # of the run: confidential/log.txt

    held = ray.put(dataset)
    ours = [("job_id", "=", ray.get_runtime_context().get_job_id())]
    tasks = partial(state.list_tasks, address=both.dashboard, filters=ours, detail=True)
    wait_until(lambda: sum(task.func_or_class_name == "votes" for task in tasks()) == 3)  # it is told with a delay
    told = {"list_tasks": tasks(), "timeline": ray.timeline()}
    told |= {name: getattr(state, name)(address=both.dashboard, detail=True) for name in LISTS}
    assert told["list_objects"]
    del held
    told |= {page: read(f"{both.dashboard}/{page}") for page in PAGES}
    hosts = {one["NodeManagerAddress"]: one["MetricsExportPort"] for one in ray.nodes() if one["Alive"]}
    metrics = {host: partial(read, f"http://{host}:{port}/metrics") for host, port in hosts.items()}
    wait_until(lambda: 'Name="votes"' in metrics[HEAD]())
    told |= {host: metric() for host, metric in metrics.items()}
    assert "Embedder" in str(told["list_actors"])
    assert all("ray_node_mem_used" in told[address] for address in (HEAD, OTHER))
    assert [name for name, what in told.items() if CANARY.decode() in str(what)] == []

    files = [file for file in both.folder.rglob("*") if file.is_file() and not file.is_symlink()]
    assert any("worker" in file.name for file in files)
    assert [file for file in files if CANARY in file.read_bytes()] == []


def read(url: str) -> str:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())
