"""Small finished runs, each made once, and copies of one that a test may change."""

import shutil

import numpy as np
import pytest

import pe
from tests.generators import Mean, Shades

LABELS = ("..", "labels.csv", "脑" * 60, "con")


def make(folder, classes, columns=(), source=(), **settings):
    """A run over 40 images of these classes, in a file of other columns, too, read with other
    settings.
    """
    images = np.random.default_rng(0).integers(0, 255, (40, 4, 4, 1)).astype(np.uint8)
    np.savez(
        folder / "private.npz",
        images=images,
        labels=np.resize(np.array(classes), 40),
        **dict(columns),
    )
    data = pe.ImageNpz(folder / "private.npz", size=4, channels=1, classes=classes, **dict(source))
    given = {
        "api": Shades(),
        "embedding": Mean(),
        "epsilon": 5.0,
        "delta": 1e-5,
        "population": 8,
        "iterations": 1,
    }
    given = {name: value for name, value in (given | settings).items() if value is not None}
    return pe.evolve(data, out=folder / "run", lookahead=0, progress=pe.Progress(), **given)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Of labels that are no names of files."""
    return make(tmp_path_factory.mktemp("finished"), LABELS)


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """Of labels a and b."""
    return make(tmp_path_factory.mktemp("plain"), ("a", "b"))


@pytest.fixture
def run(finished, tmp_path):
    return pe.Run.open(shutil.copytree(finished.folder, tmp_path / "run"))
