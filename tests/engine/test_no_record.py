"""A run over data in which no record can vote ends as one over data in which one can: its noise alone speaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import pe
from pe.data.samples import Samples
from pe.plugins.protocols import Vectors
from tests.contracts.fitted import KINDS
from tests.evaluation.worlds import Listener
from tests.generators import Mean, Shades


class Picky(Mean):
    """Has no vector for what is dark."""

    def embed(self, samples: Samples) -> Vectors:
        vectors = super().embed(samples)
        vectors[vectors < 20] = np.nan
        return vectors


def readable(folder: Path, one: bool) -> tuple[Any, Any]:
    for i in range(3):
        (folder / f"{i}.png").write_bytes(b"no image")
    if one:
        Image.new("L", (4, 4), 200).save(folder / "0.png")
    return pe.ImageFolder(folder, size=4, channels=1, declared_size=40, on_bad_record="skip"), Mean()


def in_a_folder(folder: Path, one: bool) -> tuple[Any, Any]:
    if one:
        Image.new("L", (4, 4), 200).save(folder / "0.png")
    return pe.ImageFolder(folder, size=4, channels=1, declared_size=40), Mean()


def in_an_array(folder: Path, one: bool) -> tuple[Any, Any]:
    np.savez(folder / "p.npz", images=np.full((int(one), 4, 4, 1), 200, np.uint8))
    return pe.ImageNpz(folder / "p.npz", size=4, channels=1, declared_size=40), Mean()


def with_a_vector(folder: Path, one: bool) -> tuple[Any, Any]:
    np.savez(folder / "p.npz", images=np.array([0, 200 * one], np.uint8).repeat(16).reshape(2, 4, 4, 1))
    return pe.ImageNpz(folder / "p.npz", size=4, channels=1, declared_size=40), Picky()


@pytest.mark.parametrize("world", [readable, in_a_folder, in_an_array, with_a_vector])
def test_a_run_tells_and_ends_as_its_neighbour_does(
    tmp_path: Path, world: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    told = []
    for one in (False, True):
        folder, listener = tmp_path / "private", Listener()
        folder.mkdir()
        source, embedding = world(folder, one)
        settings = {"epsilon": 5.0, "delta": 1e-5, "population": 8, "iterations": 1, "lookahead": 0}
        out = tmp_path / str(one) / "run"
        run = pe.evolve(source, Shades(), embedding=embedding, out=out, progress=listener, **settings)
        told.append((listener.told, capfd.readouterr(), run.guarantee["statement"], run.guarantee["warnings"]))
        assert ("all votes are noise" in (run.confidential / "log.txt").read_text()) is not one
        folder.rename(tmp_path / f"{one}-was")
        for path in tmp_path.glob("private*.json"):
            path.unlink()
    assert told[0] == told[1]


@pytest.mark.parametrize("kind", ["central_images", "dp_merf", "dp_gaussian", "dpdm"])
def test_a_fit_needs_no_record(tmp_path: Path, kind: str) -> None:
    np.savez(tmp_path / "p.npz", images=np.zeros((0, 8, 8, 1), np.uint8), labels=np.zeros(0, "<U3"))
    source = pe.ImageNpz(tmp_path / "p.npz", size=8, channels=1, classes=["ell", "oh"], declared_size=40)
    settings = {"epsilon": 30.0, "delta": 1e-3, "population": 8, "iterations": 0}
    run = pe.evolve(source, pe.api(kind, **KINDS.get(kind, {})), out=tmp_path / "run", **settings)
    assert run.synthetic.samples.array.shape == (8, 8, 8, 1)
