"""Forms in which other software takes the data: folders for Hugging Face's hub and torchvision,
WebDataset's shards.

That `datasets`, `mlcroissant` and `webdataset` read them is tests/peers/test_readers.py's to say.
"""

import json
import tarfile

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from markdown_it import MarkdownIt

import pe.store.formats
from pe.errors import RecipeError
from pe.privacy.covered import sha256
from pe.store.export import examine
from tests.store.conftest import make


def card_of(out):
    """The card's head, and all of it."""
    card = (out / "README.md").read_text(encoding="utf-8")
    return yaml.safe_load(card.split("---\n", 2)[1]), card


def test_a_hub_s_folder_has_a_card_that_says_what_the_certificate_says(plain, tmp_path):
    out = plain.export(tmp_path / "out", "huggingface")
    certificate, problems = examine(out)
    assert problems == []
    head, card = card_of(out)
    assert head["configs"] == [
        {"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}
    ]
    assert (head["task_categories"], head["size_categories"]) == (
        ["image-classification"],
        ["n<1K"],
    )
    assert "differential-privacy" in head["tags"]
    assert "- 8 synthetic images with the labels `a`, `b`" in card
    assert "**ε = 5 at δ = 1e-05**" in card
    said = (certificate["statement"], certificate["unit"]["words"], *certificate["not_covered"])
    assert [one for one in said if one not in card] == []
    assert "`object:tests.generators.Shades`" in card
    (data,) = (out / "data").iterdir()
    croissant = json.loads((out / "croissant.json").read_text(encoding="utf-8"))
    (file, _) = croissant["distribution"]
    assert (file["contentUrl"], file["sha256"]) == ("data/train-00000.parquet", sha256(data))


HOSTILE = ("[a](https://a.example)", "b`` `<b>`|", "![c](https://c.example/c.png)", "<img src=d>")


def test_names_are_text_on_the_card_and_in_the_certificate(tmp_path):
    unit = {"privacy_unit": HOSTILE[0], "declared_units": 40}
    out = make(tmp_path, HOSTILE, {HOSTILE[0]: np.arange(40)}, unit).export(
        tmp_path / "out", "huggingface"
    )
    for name in ("README.md", "certificate.md"):
        parsed = MarkdownIt().parse((out / name).read_text(encoding="utf-8").rpartition("---\n")[2])
        inside = [one for block in parsed for one in (block, *(block.children or ()))]
        links = [one.attrs["href"] for one in inside if one.type == "link_open"]
        assert [one for one in links if "example" in str(one)] == []
        assert {one.type for one in inside} & {"html_inline", "html_block", "image"} == set()
    line = next(line for line in card_of(out)[1].splitlines() if "with the labels" in line)
    item = next(one for one in MarkdownIt().parse(line) if one.type == "inline")
    assert tuple(one.content for one in item.children or () if one.type == "code_inline") == HOSTILE


def test_the_card_of_a_run_without_noise_promises_nothing(tmp_path):
    run = make(tmp_path, ("a", "b"), noise="none", epsilon=None, delta=None)
    head, card = card_of(run.export(tmp_path / "out", "huggingface"))
    assert "- Guarantee: **NO GUARANTEE**" in card
    assert "differential-privacy" not in head["tags"]
    assert run.guarantee["voided_by"][0] in card


def test_shards_hold_every_sample_once_in_order(plain, tmp_path, monkeypatch):
    files = list(plain.synthetic.samples.files())
    monkeypatch.setattr(pe.store.formats, "_SHARD", len(files[0]) * 3)
    labels = ["ab"[label] for label in plain.synthetic.labels]
    tars = sorted((plain.export(tmp_path / "tars", "webdataset") / "synthetic").iterdir())
    assert [path.name for path in tars] == ["00000.tar", "00001.tar", "00002.tar"]
    found = {}
    for path in tars:
        with tarfile.open(path) as tar:
            for member in tar:
                assert (member.mtime, member.uid, member.uname) == (0, 0, "")
                found[member.name] = tar.extractfile(member).read()
    assert [found[f"{index:06d}.png"] for index in range(8)] == files
    assert [int(found[f"{index:06d}.cls"]) for index in range(8)] == plain.synthetic.labels.tolist()
    assert [json.loads(found[f"{index:06d}.json"]) for index in range(8)] == [
        {"label": label} for label in labels
    ]
    tables = sorted((plain.export(tmp_path / "hub", "huggingface") / "data").iterdir())
    rows = [row for path in tables for row in pq.read_table(path).to_pylist()]
    assert len(tables) == 3
    assert [(row["image"]["bytes"], row["label"]) for row in rows] == list(
        zip(files, labels, strict=True)
    )


def test_images_are_in_no_form_of_texts(plain, tmp_path):
    with pytest.raises(
        RecipeError,
        match=r"The format 'csv' holds texts or rows, not images. Choose folder, parquet or webdata",
    ):
        plain.export(tmp_path / "out", "csv")
