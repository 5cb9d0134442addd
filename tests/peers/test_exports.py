"""What `pe export` writes, read by the software that it is for."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pe
from tests.durability.driver import make_private
from tests.generators import Mean, Shades
from tests.peers.servers import ENVIRONMENTS

READ = """
import json, sys
import datasets, mlcroissant, webdataset

folder = sys.argv[1]
rows = datasets.load_dataset(f"{folder}/huggingface", cache_dir=f"{folder}/cache")["train"]
croissant = mlcroissant.Dataset(f"{folder}/huggingface/croissant.json")
shards = webdataset.WebDataset(f"{folder}/webdataset/synthetic/00000.tar", shardshuffle=False).decode("pil")
pixels = lambda image: list(image.convert("L").tobytes())
found = {
    "datasets": [[row["label"], pixels(row["image"])] for row in rows],
    "mlcroissant": [[row["train/label"].decode(), pixels(row["train/image"])] for row in croissant.records("train")],
    "errors": list(croissant.metadata.issues.errors),
    "webdataset": [[row["json"]["label"], pixels(row["png"])] for row in shards],
}
print(json.dumps(found))
"""


def test_datasets_mlcroissant_and_webdataset_read_every_sample(tmp_path: Path) -> None:
    python = ENVIRONMENTS / "readers" / "bin" / "python"
    assert python.exists(), f"{python} is missing: run `make test-peers`."
    make_private(tmp_path / "private.npz")
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a", "b"])
    settings = {"epsilon": 5.0, "delta": 1e-5, "population": 8, "iterations": 1, "lookahead": 0}
    run = pe.evolve(data, Shades(), embedding=Mean(), out=tmp_path / "run", **settings)
    run.export(tmp_path / "huggingface", "huggingface")
    run.export(tmp_path / "webdataset", "webdataset")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home"), "PATH": ""}
    read = [python, "-c", READ, tmp_path]
    answer = subprocess.run(read, capture_output=True, text=True, timeout=300, check=True, env=offline)
    made = run.synthetic
    pixels = made.samples.array.reshape(8, -1).tolist()
    rows = [["ab"[label], row] for label, row in zip(made.labels, pixels, strict=True)]
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found == {"datasets": rows, "mlcroissant": rows, "webdataset": rows, "errors": []}
