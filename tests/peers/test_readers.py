"""What `pe export` writes, read by the software that it is for; and private records as that
software wrote them.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml

import pe
from tests.durability.driver import make_private
from tests.generators import Mean, Shades
from tests.peers.servers import free_port, python_of, running

ROOT = Path(__file__).parents[2]
RUN = "from pe.cli.main import main; main()"
READ_AND_WRITE = """
import json, sys
from pathlib import Path
import datasets, mlcroissant, webdataset

folder = Path(sys.argv[1])
rows = datasets.load_dataset(f"{folder}/exported", cache_dir=f"{folder}/cache")["train"]
croissant = mlcroissant.Dataset(f"{folder}/exported/croissant.json")
shards = webdataset.WebDataset(f"{folder}/webdataset/synthetic/00000.tar", shardshuffle=False).decode("pil")
pixels = lambda image: list(image.convert("L").tobytes())
found = {
    "datasets": [[row["label"], pixels(row["image"])] for row in rows],
    "mlcroissant": [[row["train/label"].decode(), pixels(row["train/image"])] for row in croissant.records("train")],
    "errors": list(croissant.metadata.issues.errors),
    "webdataset": [[row["json"]["label"], pixels(row["png"])] for row in shards],
}
print(json.dumps(found))
rows.save_to_disk(f"{folder}/saved", num_shards=2)
(folder / "tars").mkdir()
with webdataset.ShardWriter(f"{folder}/tars/%05d.tar", maxcount=5) as written:
    for number, row in enumerate(rows):
        written.write({"__key__": f"{number:06d}", "png": row["image"], "cls": "ab".index(row["label"])})
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
def exported(tmp_path_factory):
    """A run's samples in all forms, exported or written by `datasets` and `webdataset`; the run;
    what they read.
    """
    folder = tmp_path_factory.mktemp("written")
    make_private(folder / "private.npz")
    data = pe.ImageNpz(folder / "private.npz", size=4, channels=1, classes=["a", "b"])
    settings = {"epsilon": 5.0, "delta": 1e-5, "population": 12, "iterations": 1, "lookahead": 0}
    run = pe.evolve(data, Shades(), embedding=Mean(), out=folder / "run", **settings)
    run.export(folder / "exported", "huggingface")
    run.export(folder / "webdataset", "webdataset")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home"), "PATH": ""}
    command = [python_of("readers"), "-c", READ_AND_WRITE, folder]
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=True, env=offline
    )
    return folder, run, json.loads(answer.stdout.splitlines()[-1])


def test_datasets_mlcroissant_and_webdataset_read_every_sample(exported):
    _, run, found = exported
    made = run.synthetic
    pixels = made.samples.array.reshape(12, -1).tolist()
    rows = [["ab"[label], row] for label, row in zip(made.labels, pixels, strict=True)]
    assert found == {"datasets": rows, "mlcroissant": rows, "webdataset": rows, "errors": []}


@pytest.mark.parametrize("form", ["saved", "tars"])
def test_what_a_library_wrote_holds_the_samples_of_the_run(form, exported):
    folder, run, _ = exported
    given = dict(FORMS[form])
    kind = pe.WebDataset if given.pop("kind") == "webdataset" else pe.ImageParquet
    source = kind(folder / form, size=4, channels=1, **given).open()
    np.testing.assert_array_equal(next(source.blocks(12))[0].array, run.synthetic.samples.array)
    np.testing.assert_array_equal(source.labels, run.synthetic.labels)


@pytest.fixture(scope="module")
def store(exported):
    """An S3 store on loopback that holds the same files: what the environment must say to
    reach it.
    """
    folder, port = exported[0], free_port()
    url = f"http://127.0.0.1:{port}"
    keys = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    environment = os.environ | keys | {"AWS_ENDPOINT_URL": url, "PYTHONPATH": str(ROOT)}
    python = python_of("store")
    with running(
        [python, "-m", "moto.server", "-p", str(port)],
        folder / "moto.log",
        f"{url}/moto-api/",
        **keys,
    ):
        subprocess.run([python, "-c", PUT, folder, url], timeout=300, check=True, env=environment)
        yield environment


@pytest.mark.parametrize("form", FORMS)
def test_a_run_over_s3_releases_what_one_over_the_same_files_on_disk_does(
    form, exported, store, tmp_path
):
    """Without noise, so that the releases tell."""
    for name, path in (("here", str(exported[0] / form)), ("there", f"s3://hospital/{form}")):
        source = FORMS[form] | {"path": path, "size": 8, "resize": "stretch", "channels": 1}
        recipe = {
            "private": source | {"ledger_file": str(tmp_path / "ledger.json")},
            "api": {"kind": "glyphs", "size": 8},
            "embedding": {"kind": "pixels", "size": 4},
            "privacy": "none",
            "evolution": {"iterations": 1, "population": 20, "lookahead": 0, "degree": 0.1},
        }
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
        command = [python_of("store"), "-c", RUN, "run", f"{name}.yaml", "--out", name, "--quiet"]
        done = subprocess.run(
            command, cwd=tmp_path, env=store, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
    here, there = (tmp_path / name / "releases" / "histogram-1.npy" for name in ("here", "there"))
    assert here.read_bytes() == there.read_bytes()
