"""Private records of the runs in this folder."""

import numpy as np
import pytest

import pe
from tests.engine.small import evolve, records_in
from tests.generators import Shades


@pytest.fixture
def private(tmp_path):
    return records_in(tmp_path)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A run that is only read, and its generator."""
    folder, api = tmp_path_factory.mktemp("made"), Shades()
    return evolve(records_in(folder), folder / "run", api, epsilon=2.0, lookahead=2, seed=5), api


@pytest.fixture
def spots(tmp_path):
    """Nine black records of one label."""
    np.savez(tmp_path / "spots.npz", images=np.zeros((9, 4, 4, 1), np.uint8))
    return pe.ImageNpz(tmp_path / "spots.npz", size=4, channels=1, declared_size=9)
