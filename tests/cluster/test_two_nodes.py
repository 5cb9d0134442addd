"""A run on a Ray cluster of two nodes that others set up: what it releases, who may die, and what Ray keeps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ray
import yaml
from ray.util import state

from pe.cluster.work import RayWork
from pe.data.images import Images
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.histogram import InThisProcess, Voting, count_votes
from pe.planning.build import object_kind
from pe.private.dataset import PrivateDataset
from pe.private.embeddings import PrivateEmbeddings, embed_private
from pe.recipe.schema import Recipe
from tests.cluster.nodes import HEAD, OTHER, Nodes, joined
from tests.cluster.runs import SMALL, carry_out, content, released, some, write_private
from tests.cluster.things import CANARY, Chatty, Deadly, Dies, Flat, Together, end_node, wait_until

pytestmark = pytest.mark.slow  # what test_ray.py holds of one node, over two

BY_RECORD = {"privacy_unit": "record", "declared_units": None}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        cluster = Nodes(Path(folder))
        try:
            yield cluster.start()
        finally:
            cluster.end()


@pytest.fixture
def both(nodes: Nodes) -> Iterator[Nodes]:
    """The cluster, both nodes alive, joined by this process."""
    nodes.other()
    with joined(nodes):
        wait_until(lambda: sum(node["Alive"] for node in ray.nodes()) == 2)
        yield nodes


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("by_record", [False, True])
def test_a_run_on_two_nodes_releases_what_a_run_in_one_process_does(tmp_path: Path, by_record: bool) -> None:
    parts = content(write_private(tmp_path), **({"neighbors": 1} if by_record else {"estimate_label_sizes": 0.1}))
    if by_record:
        parts["private"] |= BY_RECORD
        parts["privacy"] |= {"relation": "add_remove"}
    (seen := tmp_path / "seen").mkdir()
    together = Together(seen)
    recipe = Recipe.parse(parts | {"embedding": {"kind": object_kind(together)}}, "a test")
    one, two = (
        released(carry_out(recipe, tmp_path / name, work, together).folder)
        for name, work in (("one", InThisProcess()), ("two", RayWork(None, 80, shard_bytes=SMALL)))
    )
    assert len(list(seen.iterdir())) == 2
    assert one == two
    assert ("class_counts.npy" in two) != by_record


@pytest.mark.parametrize("after", [0, 1])
def test_the_votes_of_a_node_that_ends_are_counted_again(both: Nodes, tmp_path: Path, after: int) -> None:
    rng = np.random.default_rng(0)
    vectors, labels = rng.standard_normal((200, 8)).astype(np.float32), rng.integers(0, 2, 200).astype(np.int32)
    private = PrivateEmbeddings(vectors, labels, np.arange(200) % 20, ("a", "b"))
    many = 20_000  # whose votes stay on the node that counted them until they are asked for
    candidates, of = rng.standard_normal((many, 8)).astype(np.float32), rng.integers(0, 2, many).astype(np.int32)
    marker = tmp_path / "ended"
    deadly = Deadly(3, end=partial(end_node, both.other(), marker, after))
    found = RayWork(None, None, shard_bytes=SMALL).count_votes(private, candidates, of, 2**16, deadly)
    assert marker.exists()
    np.testing.assert_array_equal(found, count_votes(private, candidates, of, 2**16, Voting(3)))


def test_the_blocks_of_a_node_that_ends_are_embedded_again(both: Nodes, tmp_path: Path) -> None:
    images, labels = some(90)
    images[::8] = 255  # in each block
    dataset = PrivateDataset.of(Images(images), labels, classes=("a", "b"))
    marker = tmp_path / "ended"
    dies = Dies(partial(end_node, both.other(), marker))
    found = embed_private(dataset, dies, None, RayWork(None, None).embed)
    assert marker.exists()
    np.testing.assert_array_equal(found.vectors, embed_private(dataset, Flat(), None).vectors)


@pytest.mark.slow  # half a minute each, mostly Ray's starts
@pytest.mark.parametrize("resumed_on_ray", [True, False])
@pytest.mark.parametrize("doing", ["ray::votes", "ray::Embedder.embed"])
def test_a_run_whose_process_was_killed_goes_on_as_if_it_had_not_been(
    nodes: Nodes, tmp_path: Path, doing: str, resumed_on_ray: bool
) -> None:
    nodes.other()
    file, run = tmp_path / "recipe.yaml", tmp_path / "run"
    file.write_text(yaml.safe_dump(lengthy(tmp_path)))
    environment = os.environ | nodes.environment
    with subprocess.Popen(pe("run", file, "--out", run, "--ray", nodes.address), env=environment) as started:
        try:
            wait_until(lambda: nodes.running(doing) or started.poll() is not None, seconds=240)
        finally:
            started.kill()
    assert started.returncode == -signal.SIGKILL
    assert (run / "confidential/embeddings/private_embeddings.npy").exists() == (doing == "ray::votes")
    assert list((run / "releases").iterdir()) == []
    wait_until(lambda: not nodes.running(doing))  # Ray ends the workers of a process that is gone
    if resumed_on_ray:
        subprocess.run(pe("resume", run, "--ray", nodes.address), env=environment, check=True)
    else:
        resume_run(run, Surroundings())
    never_killed = run_recipe(Recipe.load(file), tmp_path / "whole", Surroundings())
    assert released(run) == released(never_killed.folder)


def lengthy(folder: Path) -> dict[str, object]:
    """A recipe without noise whose records take about a second to embed, and another to vote."""
    recipe = content(write_private(folder, 40_000), iterations=1, neighbors=6)
    recipe["private"] |= BY_RECORD | {"declared_size": 40_000}
    return recipe | {"api": {"kind": "glyphs"}, "privacy": "none"}


def pe(*arguments: object) -> list[str]:
    """The command, with its arguments."""
    return [str(Path(sys.executable).with_name("pe")), *map(str, arguments)]


def test_nothing_private_reaches_what_a_cluster_tells_or_keeps(both: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    images, labels = some(48)
    images[5::16] = np.frombuffer(CANARY, np.uint8).reshape(4, 4, 1)  # one in each block
    dataset = PrivateDataset.of(Images(images), labels, classes=("a", "b"))
    work = RayWork(None, None, shard_bytes=SMALL)
    found = embed_private(dataset, Chatty(), None, work.embed)
    assert np.isfinite(found.vectors).all(axis=1).sum() == 45
    work.count_votes(found, np.ones((4, 16), np.float32), np.array([0, 0, 1, 1], np.int32), 1, Voting())
    assert CANARY.decode() in caplog.text  # of the run: confidential/log.txt

    held = ray.put(dataset)
    dashboard = f"http://{both.dashboard}"
    ours = [("job_id", "=", ray.get_runtime_context().get_job_id())]
    tasks = partial(state.list_tasks, address=dashboard, filters=ours, detail=True)
    wait_until(lambda: sum(task.func_or_class_name == "votes" for task in tasks()) == 3)  # it is told with a delay
    told = {"list_tasks": tasks(), "timeline": ray.timeline()}
    told |= {name: getattr(state, name)(address=dashboard, detail=True) for name in LISTS}
    assert told["list_objects"]
    del held
    told |= {page: read(f"{dashboard}/{page}") for page in PAGES}
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


LISTS = ("list_actors", "list_objects", "list_workers", "list_nodes", "list_jobs")
"""Of the state API."""

PAGES = (
    *("api/v0/tasks?detail=1&limit=1000", "api/v0/actors?detail=1", "api/v0/objects", "api/v0/tasks/summarize"),
    *("logical/actors", "nodes?view=summary", "events", "api/jobs/"),
)
"""Of the dashboard."""


def read(url: str) -> str:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())
