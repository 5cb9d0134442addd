"""Forms in which other software takes the data: folders for Hugging Face's hub and torchvision, WebDataset's shards.

That `datasets`, `mlcroissant` and `webdataset` read them is tests/peers/test_readers.py's to say.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from markdown_it import MarkdownIt
from torchvision.datasets import ImageFolder

import pe
import pe.store.formats
from pe.errors import RecipeError
from pe.privacy.covered import sha256
from pe.store.export import examine
from pe.store.formats import Format
from tests.durability.driver import make_private
from tests.generators import Mean, Shades


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pe.Run:
    folder = tmp_path_factory.mktemp("finished")
    make_private(folder / "private.npz")
    data = pe.ImageNpz(folder / "private.npz", size=4, channels=1, classes=["a", "b"])
    settings = {"epsilon": 5.0, "delta": 1e-5, "population": 8, "iterations": 1, "lookahead": 0}
    return pe.evolve(data, Shades(), embedding=Mean(), out=folder / "run", **settings)


def head_of(card: str) -> dict[str, object]:
    _, head, _ = card.split("---\n", 2)
    return yaml.safe_load(head)


def test_a_hub_s_folder_has_a_card_that_says_what_the_certificate_says(run: pe.Run, tmp_path: Path) -> None:
    out = run.export(tmp_path / "out", "huggingface")
    certificate, problems = examine(out)
    assert problems == []
    card = (out / "README.md").read_text(encoding="utf-8")
    head = head_of(card)
    assert head["configs"] == [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}]
    assert (head["task_categories"], head["size_categories"]) == (["image-classification"], ["n<1K"])
    assert "differential-privacy" in head["tags"]
    assert "- 8 synthetic images with the labels `a`, `b`" in card
    assert "**ε = 5 at δ = 1e-05**" in card
    said = (certificate["statement"], certificate["unit"]["words"], *certificate["not_covered"])
    assert [one for one in said if one not in card] == []
    assert "`object:tests.generators.Shades`" in card
    assert [path.name for path in (out / "data").iterdir()] == ["train-00000.parquet"]
    croissant = json.loads((out / "croissant.json").read_text(encoding="utf-8"))
    (file, _) = croissant["distribution"]
    assert (file["contentUrl"], file["sha256"]) == (
        "data/train-00000.parquet",
        sha256(out / "data" / "train-00000.parquet"),
    )


HOSTILE = ("[a](https://a.example)", "b`` `<b>`|", "![c](https://c.example/c.png)", "<img src=d>")


def test_names_are_text_on_the_card_and_in_the_certificate(tmp_path: Path) -> None:
    images, labels = np.zeros((40, 4, 4, 1), np.uint8), np.array(HOSTILE * 10)
    np.savez(tmp_path / "private.npz", images=images, labels=labels, **{HOSTILE[0]: np.arange(40)})
    unit = {"privacy_unit": HOSTILE[0], "declared_units": 40}
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=HOSTILE, **unit)
    settings = {"epsilon": 5.0, "delta": 1e-5, "population": 8, "iterations": 1, "lookahead": 0}
    run = pe.evolve(data, Shades(), embedding=Mean(), out=tmp_path / "run", progress=pe.Progress(), **settings)
    out = run.export(tmp_path / "out", "huggingface")
    assert examine(out)[1] == []
    for name in ("README.md", "certificate.md"):
        parsed = MarkdownIt().parse((out / name).read_text(encoding="utf-8").rpartition("---\n")[2])
        inside = [one for block in parsed for one in (block, *(block.children or ()))]
        links = [one.attrs["href"] for one in inside if one.type == "link_open"]
        assert [one for one in links if "example" in str(one)] == []
        assert {one.type for one in inside} & {"html_inline", "html_block", "image"} == set()
    item = next(one for one in MarkdownIt().parse(_line(out, "with the labels")) if one.type == "inline")
    assert tuple(one.content for one in item.children or () if one.type == "code_inline") == HOSTILE


def _line(out: Path, words: str) -> str:
    return next(line for line in (out / "README.md").read_text(encoding="utf-8").splitlines() if words in line)


def test_the_card_of_a_run_without_noise_promises_nothing(tmp_path: Path) -> None:
    make_private(tmp_path / "private.npz")
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a", "b"])
    settings = {"noise": "none", "population": 8, "iterations": 1, "lookahead": 0}
    run = pe.evolve(data, Shades(), embedding=Mean(), out=tmp_path / "run", progress=pe.Progress(), **settings)
    card = (run.export(tmp_path / "out", "huggingface") / "README.md").read_text(encoding="utf-8")
    assert "- Guarantee: **NO GUARANTEE**" in card
    assert "differential-privacy" not in head_of(card)["tags"]
    assert run.guarantee["voided_by"][0] in card


def test_torchvision_reads_a_folder(run: pe.Run, tmp_path: Path) -> None:
    found = ImageFolder(str(run.export(tmp_path / "out", "folder") / "synthetic"))
    made = run.synthetic
    assert found.classes == ["a", "b"]
    assert [label for _, label in found] == sorted(made.labels)
    places = [int(Path(path).stem) for path, _ in found.samples]
    assert sorted(places) == list(range(8))
    for place, (image, label) in zip(places, found, strict=True):
        assert label == made.labels[place]
        assert np.array_equal(np.asarray(image.convert("L")), made.samples.array[place, ..., 0])


def test_shards_hold_every_sample_once_in_order(run: pe.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = list(run.synthetic.samples.files())
    monkeypatch.setattr(pe.store.formats, "_SHARD", len(files[0]) * 3)
    labels = ["ab"[label] for label in run.synthetic.labels]
    tars = sorted((run.export(tmp_path / "tars", "webdataset") / "synthetic").iterdir())
    assert [path.name for path in tars] == ["00000.tar", "00001.tar", "00002.tar"]
    found = {}
    for path in tars:
        with tarfile.open(path) as tar:
            for member in tar:
                assert (member.mtime, member.uid, member.uname) == (0, 0, "")
                found[member.name] = tar.extractfile(member).read()
    assert [found[f"{index:06d}.png"] for index in range(8)] == files
    assert [int(found[f"{index:06d}.cls"]) for index in range(8)] == run.synthetic.labels.tolist()
    assert [json.loads(found[f"{index:06d}.json"]) for index in range(8)] == [{"label": label} for label in labels]
    tables = sorted((run.export(tmp_path / "hub", "huggingface") / "data").iterdir())
    rows = [row for path in tables for row in pq.read_table(path).to_pylist()]
    assert len(tables) == 3
    assert [(row["image"]["bytes"], row["label"]) for row in rows] == list(zip(files, labels, strict=True))


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_images_are_in_no_form_of_texts(run: pe.Run, tmp_path: Path, form: Format) -> None:
    with pytest.raises(
        RecipeError, match=f"format: '{form}' holds texts, not images: choose folder, parquet or webdata"
    ):
        run.export(tmp_path / "out", form)
    assert not list(tmp_path.iterdir())


def test_a_changed_card_is_found_out(run: pe.Run, tmp_path: Path) -> None:
    out = run.export(tmp_path / "out", "huggingface")
    card = out / "README.md"
    card.write_text(card.read_text(encoding="utf-8").replace("ε = 5 ", "ε = 1 "), encoding="utf-8")
    assert examine(out)[1] == ["'README.md' was changed: its SHA-256 is not the certificate's."]


def test_exported_tar_files_are_read_as_private_records(run: pe.Run, tmp_path: Path) -> None:
    place = run.export(tmp_path / "tars", "webdataset") / "synthetic"
    data = pe.WebDataset(place, size=4, channels=1, classes=["a", "b"], label_column="label").open()
    ((block, valid),) = data.blocks(8)
    assert valid.all()
    assert (block.array == run.synthetic.samples.array).all()
    assert (data.labels == run.synthetic.labels).all()
