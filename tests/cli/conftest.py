"""Private scans, public images and a recipe over them; and finished runs that tests only read."""

import numpy as np
import pytest
import yaml
from PIL import Image

import pe
from tests.cli.typed import pe as command
from tests.generators import Mean, Shades


def make_scans(folder, seed=0, side=16):
    """Two labels, the second brighter, of two patients each."""
    rng = np.random.default_rng(seed)
    for label, low in (("benign", 0), ("malignant", 150)):
        for patient in ("p1", "p2"):
            (folder / label / patient).mkdir(parents=True)
            for i in range(6):
                pixels = rng.integers(low, low + 100, (side, side, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / label / patient / f"{i}.png")
    return folder


def make_public(folder):
    folder.mkdir()
    for i, shade in enumerate(range(0, 250, 5)):
        Image.new("RGB", (16, 16), (shade, shade, shade)).save(folder / f"{i:02}.png")
    return folder


def make_recipe(folder):
    labels = ["benign", "malignant"]
    content = {
        "name": "scans",
        "private": {
            "kind": "folder",
            "path": "scans",
            "size": 16,
            "classes": labels,
            "declared_size": 24,
        },
        "api": {"kind": "public_images", "path": "public", "size": 16},
        "embedding": {"kind": "pixels"},
        "privacy": {"epsilon": 20, "delta": 1e-3},
        "evolution": {"iterations": 2, "population": 8, "lookahead": 1},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content))
    return folder / "recipe.yaml"


@pytest.fixture
def scans(tmp_path):
    return make_scans(tmp_path / "scans")


@pytest.fixture
def public(tmp_path):
    return make_public(tmp_path / "public")


@pytest.fixture
def recipe(tmp_path, scans, public):
    return make_recipe(tmp_path)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A folder with all of these, and the finished run `out`. Nobody changes it."""
    folder = tmp_path_factory.mktemp("finished")
    make_scans(folder / "scans")
    make_public(folder / "public")
    make_recipe(folder)
    made = command("run", "recipe.yaml", "--out", "out", cwd=folder)
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture
def data(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (40, 4, 4, 1)).astype(np.uint8)
    np.savez(tmp_path / "private.npz", images=images, labels=np.array(["a", "b"] * 20))
    return pe.ImageNpz(
        tmp_path / "private.npz", size=4, channels=1, classes=["a", "b"], declared_size=40
    )


def evolved(data, out, **privacy):
    settings = {"population": 8, "iterations": 2, "lookahead": 0, "progress": pe.Progress()}
    return pe.evolve(data, Shades(), embedding=Mean(), out=out, **settings | privacy)


@pytest.fixture
def run(data, tmp_path):
    return evolved(data, tmp_path / "run", epsilon=5.0, delta=1e-5)
