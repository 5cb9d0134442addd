"""Private records as foreign software wrote them: `datasets`, WebDataset's own writer, and an S3 store."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import yaml

import pe
from pe.private.modalities import ImageSource
from tests.durability.driver import make_private
from tests.generators import Mean, Shades
from tests.peers.servers import ENVIRONMENTS, PATIENCE, free_port

ROOT = Path(__file__).parents[2]
RUN = "from pe.cli.main import main; main()"
WRITE = """
import sys
from pathlib import Path
import datasets, webdataset

folder = Path(sys.argv[1])
rows = datasets.load_dataset(f"{folder}/exported", cache_dir=f"{folder}/cache")["train"]
rows.save_to_disk(f"{folder}/saved", num_shards=2)
(folder / "tars").mkdir()
with webdataset.ShardWriter(f"{folder}/tars/%05d.tar", maxcount=5) as shards:
    for number, row in enumerate(rows):
        shards.write({"__key__": f"{number:06d}", "png": row["image"], "cls": "ab".index(row["label"])})
"""
PUT = """
import sys
from pathlib import Path
import s3fs

store = s3fs.S3FileSystem(client_kwargs={"endpoint_url": sys.argv[2]})
store.mkdir("hospital")
for name in ("saved", "tars", "exported/data"):
    for file in Path(sys.argv[1], name).iterdir():
        store.put_file(str(file), f"hospital/{name}/{file.name}")
"""
FORMS = {
    "exported/data": {"kind": "parquet", "label_column": "label", "classes": ["a", "b"]},
    "saved": {"kind": "parquet", "label_column": "label", "classes": ["a", "b"]},
    "tars": {"kind": "webdataset", "label_column": "cls", "classes": [0, 1]},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The samples of a run in all forms, as `datasets` and `webdataset` write them."""
    folder = tmp_path_factory.mktemp("written")
    python = ENVIRONMENTS / "readers" / "bin" / "python"
    assert python.exists(), f"{python} is missing: run `make test-peers`."
    make_private(folder / "private.npz")
    data = pe.ImageNpz(folder / "private.npz", size=4, channels=1, classes=["a", "b"])
    settings = {"epsilon": 5.0, "delta": 1e-5, "population": 12, "iterations": 1, "lookahead": 0}
    pe.evolve(data, Shades(), embedding=Mean(), out=folder / "run", **settings).export(
        folder / "exported", "huggingface"
    )
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home"), "PATH": ""}
    subprocess.run([python, "-c", WRITE, folder], timeout=300, check=True, env=offline)
    return folder


def opened(folder: Path, form: str) -> ImageSource:
    given = dict(FORMS[form])
    kind = pe.WebDataset if given.pop("kind") == "webdataset" else pe.ImageParquet
    return kind(folder / form, size=4, channels=1, **given)


@pytest.mark.parametrize("form", ["saved", "tars"])
def test_what_a_library_wrote_holds_the_samples_of_the_export(form: str, written: Path) -> None:
    (blocks, labels), (other, of) = (
        (next(source.blocks(12))[0].array, source.labels)  # type: ignore[attr-defined]
        for source in (opened(written, one).open() for one in (form, "exported/data"))
    )
    assert len(blocks) == 12
    np.testing.assert_array_equal(blocks, other)
    np.testing.assert_array_equal(labels, of)


@pytest.fixture(scope="module")
def store(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An S3 store on loopback that holds the same files: what the environment must say to reach it."""
    python, port = ENVIRONMENTS / "store" / "bin" / "python", free_port()
    assert python.exists(), f"{python} is missing: run `make test-peers`."
    url = f"http://127.0.0.1:{port}"
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    environment = os.environ | keys | {"AWS_ENDPOINT_URL": url, "PYTHONPATH": str(ROOT)}
    log = (tmp_path_factory.mktemp("moto") / "log").open("wb")
    with log, subprocess.Popen([python, "-m", "moto.server", "-p", str(port)], stdout=log, stderr=log) as server:
        try:
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline and server.poll() is None:
                with closing(socket.socket()) as client:
                    if client.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            subprocess.run([python, "-c", PUT, written, url], timeout=300, check=True, env=environment)
            yield environment
        finally:
            server.terminate()


@pytest.mark.parametrize("form", FORMS)
def test_a_run_over_s3_releases_what_one_over_the_same_files_on_disk_does(
    form: str, written: Path, store: dict[str, str], tmp_path: Path
) -> None:
    """Without noise, so that the releases tell."""
    for name, path in (("here", str(written / form)), ("there", f"s3://hospital/{form}")):
        source = FORMS[form] | {"path": path, "size": 8, "resize": "stretch", "channels": 1}
        source |= {"ledger_file": str(tmp_path / "ledger.json")}
        recipe = {
            "private": source,
            "api": {"kind": "glyphs", "size": 8},
            "embedding": {"kind": "pixels", "size": 4},
            "privacy": "none",
            "evolution": {"iterations": 1, "population": 20, "lookahead": 0, "degree": 0.1},
        }
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
        command = [
            ENVIRONMENTS / "store" / "bin" / "python",
            "-c",
            RUN,
            "run",
            f"{name}.yaml",
            "--out",
            name,
            "--quiet",
        ]
        done = subprocess.run(command, cwd=tmp_path, env=store, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    here, there = (tmp_path / name / "releases" / "histogram-1.npy" for name in ("here", "there"))
    assert here.read_bytes() == there.read_bytes()
