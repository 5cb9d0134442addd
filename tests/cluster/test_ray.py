"""A run on a real Ray cluster: the releases are those of one process, and nothing private stays with Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ray  # before `on_ray`, which must not mind
import yaml

from pe.cluster.work import RayWork, on_ray
from pe.data.images import Images
from pe.errors import ClusterError, ContractError, RecipeError
from pe.histogram import InThisProcess, Voting, count_votes
from pe.private.dataset import PrivateDataset
from pe.private.embeddings import PrivateEmbeddings, embed_private
from pe.recipe.schema import Recipe
from tests.adapters.server.serving import LOOPBACK, listening
from tests.cluster.nodes import ROOT, STORE, descendants
from tests.cluster.runs import SMALL, carry_out, content, some, write_private
from tests.cluster.things import CANARY, Broken, Chatty, Deadly, Dies, Flat, OfThisProcess, die_once


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Where Ray puts its files, while it runs."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        patch.setenv("PYTHONPATH", str(ROOT))  # the workers import tests.cluster.things
        patch.setenv("OMP_NUM_THREADS", "7")  # this process's
        patch.setattr(tempfile, "tempdir", folder)
        recipe = Recipe.parse(content(Path("private.npz")), "a test")
        with on_ray("auto", recipe, num_cpus=2, object_store_memory=STORE):
            patch.undo()
            yield Path(folder)
        assert not list(Path(folder).iterdir())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_private(tmp_path)


@pytest.mark.usefixtures("place")
def test_a_run_on_ray_releases_what_a_run_in_one_process_does(data: Path, tmp_path: Path) -> None:
    recipe = Recipe.parse(content(data, estimate_label_sizes=0.1), "a test")
    runs = [
        carry_out(recipe, tmp_path / name, work)
        for name, work in (("one", InThisProcess()), ("ray", RayWork(recipe.embedding, 80, shard_bytes=SMALL)))
    ]
    for name in ("class_counts", "histogram/1", "histogram/2"):
        one, other = (run.folder / "releases" / f"{name.replace('/', '-')}.npy" for run in runs)
        assert one.read_bytes() == other.read_bytes()
    one, other = (run.folder / "confidential/embeddings/private_embeddings.npy" for run in runs)
    assert one.read_bytes() == other.read_bytes()
    assert (runs[0].folder / "synthetic.npz").read_bytes() == (runs[1].folder / "synthetic.npz").read_bytes()


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("of_users", [True, False])
def test_a_killed_worker_s_votes_are_counted_again(of_users: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors, labels = rng.standard_normal((200, 8)).astype(np.float32), rng.integers(0, 2, 200).astype(np.int32)
    private = PrivateEmbeddings(vectors, labels, np.arange(200) % (20 if of_users else 200), ("a", "b"))
    candidates, of = rng.standard_normal((30, 8)).astype(np.float32), rng.integers(0, 2, 30).astype(np.int32)
    marker = tmp_path / "killed"
    deadly = Deadly(3, end=partial(die_once, marker))
    found = RayWork(None, None, shard_bytes=SMALL).count_votes(private, candidates, of, 2**16, deadly)
    assert marker.exists()
    np.testing.assert_array_equal(found, count_votes(private, candidates, of, 2**16, Voting(3)))


@pytest.mark.usefixtures("place")
def test_a_killed_worker_s_block_is_embedded_again(tmp_path: Path) -> None:
    images, labels = some(40)
    images[20] = 255
    dataset = PrivateDataset.of(Images(images), labels, classes=("a", "b"))
    marker = tmp_path / "killed"
    found = embed_private(dataset, Dies(partial(die_once, marker)), None, RayWork(None, None).embed)
    assert marker.exists()
    np.testing.assert_array_equal(found.vectors, embed_private(dataset, Flat(), None).vectors)


def test_nothing_private_stays_in_ray_s_files(
    place: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    images, labels = some(16)  # one block
    images[5] = np.frombuffer(CANARY, np.uint8).reshape(4, 4, 1)
    dataset = PrivateDataset.of(Images(images), labels, classes=("a", "b"))
    work = RayWork(None, None, shard_bytes=SMALL)
    found = embed_private(dataset, Chatty(), None, work.embed)
    assert np.isfinite(found.vectors).all(axis=1).sum() == 15
    candidates, of = np.ones((4, 16), np.float32), np.array([0, 0, 1, 1], np.int32)
    work.count_votes(found, candidates, of, 1, Voting())
    assert CANARY.decode() in caplog.text  # of the run: confidential/log.txt
    assert capfd.readouterr() == ("", "")
    held = [ray.put(np.frombuffer(CANARY * (STORE // 64), np.uint8)) for _ in range(5)]  # more than fits into memory
    files = [file for file in place.rglob("*") if file.is_file()]
    assert any("worker" in file.name for file in files)
    assert [file for file in files if CANARY in file.read_bytes()] == []
    del held
    assert (next(place.iterdir()).stat().st_mode & 0o777) == 0o700


@pytest.mark.usefixtures("place")
def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    images, labels = some(48)
    dataset = PrivateDataset.of(Images(images), labels, classes=("a", "b"))
    work = RayWork(None, None)
    with pytest.raises(ClusterError, match="different vectors"):
        embed_private(dataset, OfThisProcess(tmp_path), None, work.embed)
    with pytest.raises(ContractError, match=r"Broken.embed fails even on blank samples \(ValueError\)"):
        next(work.embed(Broken(), iter([Images(images)])))
    unsendable = Flat()
    unsendable.lock = threading.Lock()
    with pytest.raises(ContractError, match="Flat cannot be sent to Ray's workers"):
        next(work.embed(unsendable, iter([Images(images)])))


@pytest.mark.usefixtures("place")
def test_workers_that_are_lost_for_good_or_of_another_version_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = PrivateEmbeddings(np.ones((3, 2), np.float32), np.zeros(3, np.int32), np.arange(3), ("a",))
    candidates, of = np.eye(2, dtype=np.float32), np.zeros(2, np.int32)
    work = RayWork(None, None)
    monkeypatch.setattr("pe.cluster.work.RETRIES", 0)
    with pytest.raises(ClusterError, match=r"lost the workers .* 1 times \(WorkerCrashedError\)"):
        work.count_votes(private, candidates, of, 1, Deadly(end=partial(die_once, tmp_path / "killed")))
    monkeypatch.setattr("pe.cluster.work.__version__", "0.0")
    with pytest.raises(ClusterError, match=r"of the toolkit, and this process 0\.0: install one"):
        work.count_votes(private, candidates, of, 1, Voting())


@pytest.mark.usefixtures("place")
def test_ray_of_its_own_listens_to_this_machine_alone() -> None:
    addresses = listening(descendants(os.getpid()))
    assert addresses
    assert {address for address, _ in addresses} <= LOOPBACK


@pytest.mark.usefixtures("place")
def test_a_worker_of_one_core_has_one_thread_however_many_this_process_has() -> None:
    asked = ray.remote(num_cpus=1)(lambda: os.environ["OMP_NUM_THREADS"])
    assert ray.get(asked.remote()) == "1"


@pytest.mark.usefixtures("place")
def test_the_command_joins_a_cluster(data: Path, tmp_path: Path) -> None:
    recipe = content(data) | {"api": {"kind": "glyphs"}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    command = [str(Path(sys.executable).with_name("pe")), "run", str(tmp_path / "recipe.yaml"), "--json"]
    address = ray.get_runtime_context().gcs_address  # on 127.0.0.1 alone
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"}
    command += ["--ray", address, "--out", str(tmp_path / "run")]
    out = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert out.returncode == 0, out.stderr
    assert json.loads(out.stdout)["images"] == 12
    record = json.loads((tmp_path / "run/confidential/audit-record.json").read_text())
    assert {"who": "Ray's workers", "hosts": ["127.0.0.1"]}.items() <= record["recipients"][2].items()


@pytest.mark.parametrize(
    ("address", "why"),
    [("ray://a:1", "write auto, or HOST:PORT"), ("127.0.0.1:1", "No Ray cluster answers at 127.0.0.1:1 .*refused")],
)
def test_an_address_without_a_cluster_is_refused_at_once(address: str, why: str) -> None:
    recipe = Recipe.parse(content(Path("private.npz")), "a test")
    with pytest.raises(RecipeError, match=why), on_ray(address, recipe):
        pass
