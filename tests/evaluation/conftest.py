"""A run that is evaluated, made once; tests have copies of it."""

import json
import shutil
from pathlib import Path
from threading import Event

import jsonschema
import numpy as np
import pytest

import pe
from pe.evaluation.evaluate import VERSION, evaluate_run
from pe.evaluation.sets import Request
from pe.progress import Progress
from pe.store.run import Run
from tests.generators import Mean, Shades, images_of

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / f"metrics-{VERSION}.schema.json").read_text()
)


class Near(Mean):
    """Sends nothing elsewhere; counts the images of each call that were in none before."""

    info = pe.PluginInfo(hosts=())

    def __init__(self):
        self.new, self._seen = [], set()

    def embed(self, samples):
        images = {image.tobytes() for image in samples.pixels}
        self.new.append(len(images - self._seen))
        self._seen |= images
        return super().embed(samples)


def npz(path, seed, count=60):
    """Dark 'no' and bright 'yes' images of 4×4."""
    labels = np.arange(count) % 2
    shades = np.random.default_rng(seed).integers(0, 40, count) + 215 * labels
    np.savez(path, images=images_of(shades).pixels, labels=np.array(["no", "yes"])[labels])
    return path


def evolve(folder, **changes):
    settings = {
        "epsilon": 50.0,
        "delta": 1e-3,
        "population": [60, 60, 40],
        "iterations": 2,
        "lookahead": 1,
    }
    settings |= {"degree": [0.2, 0.1], "embedding": Near(), "out": folder / "run"} | changes
    private = pe.ImageNpz(npz(folder / "private.npz", 0), size=4, channels=1, classes=["no", "yes"])
    return pe.evolve(private, Shades(), **settings)


def evaluate(run, test, **changes):
    """Measure fidelity without the control that asks a generator, but for the changes.

    What comes out is as the schema describes it.
    """
    given = {"seeds": 1, "metrics": ("fidelity",), "one_vote": False}
    given |= {"api": Shades(), "embedding": Near()} | changes
    values = evaluate_run(run, Request(str(test), **given), Progress(), Event())
    jsonschema.validate(values, SCHEMA)
    assert values.keys() <= SCHEMA["properties"].keys()
    return values


def shareable(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path): path.read_bytes()
        for path in files
        if "confidential" not in path.relative_to(folder).parts
    }


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    return evolve(tmp_path_factory.mktemp("evaluated")).folder


@pytest.fixture
def run(made, tmp_path):
    """A copy, to do with as a test likes."""
    return Run.open(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture(scope="session")
def test(made):
    """The place of a test set."""
    return npz(made.parent / "test.npz", 1, 40)
