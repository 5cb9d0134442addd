"""A run on a real Ray cluster: the releases are those of one process, and nothing private stays
with Ray.
"""

import os
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ray  # before `on_ray`, which must not mind

from pe.cluster.work import RayWork, on_ray
from pe.errors import ClusterError, ContractError, RecipeError
from pe.histogram import InThisProcess, Voting
from pe.private.embeddings import PrivateEmbeddings, embed_private
from pe.recipe.schema import Recipe
from tests.cluster import runs
from tests.cluster.nodes import ROOT, STORE
from tests.cluster.processes import LOOPBACK, descendants, listening
from tests.cluster.things import CANARY, Broken, Deadly, Flat, OfThisProcess, die_once


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder,
    ):
        patch.setenv("PYTHONPATH", str(ROOT))  # the workers import tests.cluster.things
        patch.setenv("OMP_NUM_THREADS", "7")  # this process's
        patch.setattr(tempfile, "tempdir", folder)
        recipe = Recipe.parse(runs.content(Path("private.npz")), "a test")
        with on_ray("auto", recipe, num_cpus=2, object_store_memory=STORE):
            patch.undo()
            yield Path(folder)
        assert not list(Path(folder).iterdir())


@pytest.mark.usefixtures("place")
def test_a_run_on_ray_releases_what_a_run_in_one_process_does(tmp_path: Path) -> None:
    recipe = Recipe.parse(
        runs.content(runs.write_private(tmp_path), estimate_label_sizes=0.1), "a test"
    )
    works = {"one": InThisProcess(), "ray": RayWork(recipe.embedding, 80, shard_bytes=runs.SMALL)}
    one, other = (
        runs.carry_out(recipe, tmp_path / name, work).folder for name, work in works.items()
    )
    assert runs.released(one) == runs.released(other)
    assert {"class_counts.npy", "histogram-2.npy"} <= runs.released(one).keys()
    vectors = "confidential/embeddings/private_embeddings.npy"
    assert (one / vectors).read_bytes() == (other / vectors).read_bytes()


@pytest.mark.usefixtures("place")
def test_a_killed_worker_s_votes_are_counted_again(tmp_path: Path) -> None:
    marker = tmp_path / "killed"
    runs.check_lost_votes(marker, partial(die_once, marker))


@pytest.mark.usefixtures("place")
def test_a_killed_worker_s_block_is_embedded_again(tmp_path: Path) -> None:
    marker = tmp_path / "killed"
    runs.check_lost_blocks(marker, partial(die_once, marker), runs.some(40, 255, step=20))


def test_nothing_private_stays_in_ray_s_files(place, caplog, capfd):
    found = runs.embed_and_vote(runs.some(16, CANARY))  # one block
    assert np.isfinite(found.vectors).all(axis=1).sum() == 15
    assert CANARY.decode() in caplog.text  # of the run: confidential/log.txt
    assert capfd.readouterr() == ("", "")
    held = [
        ray.put(np.frombuffer(CANARY * (STORE // 64), np.uint8)) for _ in range(5)
    ]  # more than fits into memory
    files = [file for file in place.rglob("*") if file.is_file()]
    assert any("worker" in file.name for file in files)
    assert [file for file in files if CANARY in file.read_bytes()] == []
    del held
    assert (next(place.iterdir()).stat().st_mode & 0o777) == 0o700


@pytest.mark.usefixtures("place")
def test_what_cannot_be_done_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, data = RayWork(None, None), runs.some(48)
    with pytest.raises(ClusterError, match="different vectors"):
        embed_private(data, OfThisProcess(tmp_path), None, work.embed)
    with pytest.raises(
        ContractError, match=r"Broken.embed fails even on blank samples \(ValueError\)"
    ):
        embed_private(data, Broken(), None, work.embed)
    unsendable = Flat()
    unsendable.lock = threading.Lock()
    with pytest.raises(ContractError, match="Flat cannot be sent to Ray's workers"):
        embed_private(data, unsendable, None, work.embed)
    private = PrivateEmbeddings(
        np.ones((3, 2), np.float32), np.zeros(3, np.int32), np.arange(3), ("a",)
    )
    public = np.eye(2, dtype=np.float32), np.zeros(2, np.int32)
    monkeypatch.setattr("pe.cluster.work.RETRIES", 0)
    with pytest.raises(ClusterError, match=r"lost the workers .* 1 times \(WorkerCrashedError\)"):
        work.count_votes(private, *public, 1, Deadly(end=partial(die_once, tmp_path / "killed")))
    monkeypatch.setattr("pe.cluster.work.__version__", "0.0")
    with pytest.raises(ClusterError, match=r"of the toolkit, and this process 0\.0: install one"):
        work.count_votes(private, *public, 1, Voting())


@pytest.mark.usefixtures("place")
def test_ray_of_its_own_listens_to_this_machine_alone_and_gives_a_worker_of_one_core_one_thread() -> (
    None
):
    addresses = listening(descendants(os.getpid()))
    assert addresses
    assert {address for address, _ in addresses} <= LOOPBACK
    asked = ray.remote(num_cpus=1)(lambda: os.environ["OMP_NUM_THREADS"])
    assert ray.get(asked.remote()) == "1"  # however many this process has


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("ray://a:1", "write auto, or HOST:PORT"),
        ("127.0.0.1:1", "No Ray cluster answers at 127.0.0.1:1 .*refused"),
    ],
)
def test_an_address_without_a_cluster_is_refused_at_once(address: str, why: str) -> None:
    recipe = Recipe.parse(runs.content(Path("private.npz")), "a test")
    with pytest.raises(RecipeError, match=why), on_ray(address, recipe):
        pass
