"""Runs over links and copies of the same records stand in one ledger file, where the recipe names it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import pe
from pe.errors import BudgetExceeded
from pe.privacy.data_set import DataSetLedger
from pe.privacy.ledger import Budget
from tests.generators import Mean, Shades

SETTINGS = {"epsilon": 1.0, "delta": 1e-5, "population": 20, "iterations": 2, "lookahead": 0}
COUNT = 30


@pytest.fixture
def scans(tmp_path: Path) -> pe.ImageFolder:
    (tmp_path / "scans").mkdir()
    for i, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (COUNT, 4, 4), dtype=np.uint8)):
        Image.fromarray(pixels).save(tmp_path / "scans" / f"{i:02}.png")
    return pe.ImageFolder(tmp_path / "scans", size=4, channels=1, declared_size=COUNT)


def evolve(source: Any, out: Path, api: Shades | None = None, **changes: Any) -> pe.Run:
    return pe.evolve(source, api or Shades(), embedding=Mean(), out=out, **SETTINGS | changes)


def a_hard_link_of_each_file(scans: Path) -> Any:
    (scans.parent / "again").mkdir()
    for path in scans.iterdir():
        os.link(path, scans.parent / "again" / f"x{path.name}")
    return pe.ImageFolder(scans.parent / "again", size=4, channels=1)


def a_copy_under_other_names(scans: Path) -> Any:
    (scans.parent / "again").mkdir()
    for i, path in enumerate(sorted(scans.iterdir(), reverse=True)):
        shutil.copy(path, scans.parent / "again" / f"{i}.png")
    return pe.ImageFolder(scans.parent / "again", size=4, channels=1)


def another_form(scans: Path) -> Any:
    images = [np.asarray(Image.open(path)) for path in sorted(scans.iterdir())]
    np.savez(scans.parent / "again.npz", images=np.stack(images[5:]))  # and some records less
    return pe.ImageNpz(scans.parent / "again.npz", size=4, channels=1)


@pytest.mark.parametrize("copied", [a_hard_link_of_each_file, a_copy_under_other_names, another_form])
def test_a_cap_holds_over_links_and_copies(
    scans: pe.ImageFolder, tmp_path: Path, copied: Callable[[Path], Any]
) -> None:
    ledger = DataSetLedger.beside(scans.path)
    ledger.cap(Budget(1.3, 1e-5))
    evolve(scans, tmp_path / "a")
    again, api = copied(scans.path), Shades()
    with pytest.raises(BudgetExceeded, match="above the cap"):
        evolve(replace(again, ledger_file=ledger.path), tmp_path / "b", api)
    assert api.asked == 0
    assert not (tmp_path / "b").exists()


def test_runs_over_a_copy_are_added_up_in_the_file_that_is_named(scans: pe.ImageFolder, tmp_path: Path) -> None:
    evolve(scans, tmp_path / "a")
    again = replace(a_copy_under_other_names(scans.path), ledger_file=DataSetLedger.beside(scans.path).path)
    assert evolve(again, tmp_path / "b").guarantee["data_set"]["runs"] == 2
    assert evolve(again, tmp_path / "c").guarantee["data_set"]["runs"] == 3


def test_a_link_to_the_folder_has_its_ledger_file_as_before(scans: pe.ImageFolder, tmp_path: Path) -> None:
    evolve(scans, tmp_path / "a")
    (tmp_path / "link").symlink_to(scans.path)
    assert evolve(replace(scans, path=tmp_path / "link"), tmp_path / "b").guarantee["data_set"]["runs"] == 2


def test_data_that_grow_stay_in_their_file(scans: pe.ImageFolder, tmp_path: Path) -> None:
    evolve(scans, tmp_path / "a")
    Image.new("L", (4, 4), 7).save(scans.path / "new.png")
    assert evolve(scans, tmp_path / "b").guarantee["data_set"]["runs"] == 2
