"""The scripts of published/: their data are as published, or refused, and every step of each can be
carried out.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pe.recipe.schema import Recipe
from published import data

FOLDER = Path(data.__file__).parent
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.sh") if path.stem != "common")
MADE = {
    "mnist": ["test.npz", "train.npz"],
    "cifar10": ["test.npz", "train.npz"],
    "imagenet32": ["train.npz"],
    "camelyon17": ["test/normal", "test/tumor", "train/normal", "train/tumor"],
    "cats": ["cookie", "doudou"],
    "lsun_bedroom": ["test", "train"],
    "yelp": ["test.csv", "train.csv"],
}


@pytest.mark.parametrize("name", MADE)
def test_a_set_is_made_of_files_in_its_publishers_format_and_not_of_others(
    name: str, tmp_path: Path
) -> None:
    folder = data.make(name, tmp_path, tiny=True)
    assert all((folder / place).exists() for place in MADE[name])
    assert not list(data.missing_files(name, tmp_path))  # made already
    folder.rename(tmp_path / "away")
    with pytest.raises(data.Missing, match=r"get (it|its files) again|has another MD5"):
        data.make(name, tmp_path)  # these are not the published files
    assert not (tmp_path / "made" / name).exists()


@pytest.mark.parametrize("name", MADE)
def test_a_file_that_is_not_there_is_named_with_its_source(name: str, tmp_path: Path) -> None:
    sentences = list(data.missing_files(name, tmp_path))
    assert len(sentences) == {"mnist": 4, "yelp": 2}.get(name, 1)
    assert all(re.search(r": get it from .*(http|hf download)", each) for each in sentences)


@pytest.mark.parametrize("name", ["cats", "camelyon17", "lsun_bedroom", "mnist"])
def test_a_page_or_an_empty_folder_in_place_of_a_set_is_no_set(name: str, tmp_path: Path) -> None:
    for file in data.SETS[name][2] or [data.File(each, None, None, "") for each in data._MNIST]:
        (tmp_path / file.name).mkdir() if file.holds else (tmp_path / file.name).write_text(
            "<html>log in</html>"
        )
    assert list(data.missing_files(name, tmp_path))
    with pytest.raises(data.Missing):
        data.make(name, tmp_path)


def test_pixels_and_labels_arrive_in_their_order(tmp_path: Path) -> None:
    pictures = np.load(data.make("cifar10", tmp_path, tiny=True) / "train.npz")
    assert pictures["images"].shape == (100, 32, 32, 3)
    assert pictures["labels"][:3].tolist() == list(data.CIFAR10[:3])
    red, green, blue = data._random(0, 100, 3073)[7, 1:].reshape(3, 32, 32)
    np.testing.assert_array_equal(pictures["images"][7], np.stack([red, green, blue], axis=-1))
    digits = np.load(data.make("mnist", tmp_path, tiny=True) / "test.npz")
    assert digits["images"].shape == (100, 28, 28, 1)
    assert digits["labels"][:3].tolist() == ["0", "1", "2"]


def test_a_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    right, wrong = b"as published", b"as a stranger"
    file = data.File("set.bin", None, hashlib.md5(right).hexdigest(), "https://example.org")
    (tmp_path / file.name).write_bytes(right)
    assert file.find(tmp_path).read_bytes() == right
    (tmp_path / file.name).write_bytes(wrong)
    with pytest.raises(data.Missing, match="another MD5"):
        file.find(tmp_path)


@pytest.mark.parametrize("recipe", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_recipes_can_be_read(recipe: Path) -> None:
    assert Recipe.load(recipe).name == recipe.stem


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_step_of_a_script_can_be_carried_out(script: str, tmp_path: Path) -> None:
    command = ["bash", str(FOLDER / f"{script}.sh"), "--tiny"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"OUT": str(tmp_path), "PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    table = (tmp_path / f"{script}-tiny" / "table.md").read_text()
    assert table.startswith("| | paper | DPImageBench | ours |")
    assert table.count("\n") > 2
