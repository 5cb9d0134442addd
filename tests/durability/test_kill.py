"""A run killed at any instant, and gone on with, is the run that was never killed."""

from __future__ import annotations

import random
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.durability import driver

ASKED = driver.POPULATION * (1 + driver.ITERATIONS * (1 + driver.LOOKAHEAD))
IN_FLIGHT = 2 * driver.WORKERS * driver.CHUNK


def shareable(folder: Path) -> dict[str, bytes]:
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: content for name, content in files.items() if not name.startswith("confidential/")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], float]:
    """The uninterrupted run: its shareable files and its seconds."""
    for _warm in range(2):
        folder = tmp_path_factory.mktemp("whole")
        started = time.monotonic()
        process = driver.start(folder)
        process.join(60)
        assert process.exitcode == 0
        seconds = time.monotonic() - started
    return shareable(folder / "run"), seconds


@pytest.mark.parametrize("seed", range(50))
def test_a_run_killed_at_a_random_instant_ends_as_if_it_had_not_been(
    whole: tuple[dict[str, bytes], float], tmp_path: Path, seed: int
) -> None:
    files, seconds = whole
    process = driver.start(tmp_path)
    time.sleep(random.Random(seed).uniform(0, seconds))
    process.kill()
    process.join(60)
    again = driver.start(tmp_path)
    again.join(60)
    assert again.exitcode == 0
    assert shareable(tmp_path / "run") == files
    asked = Counter((tmp_path / "asked").read_text().split())
    assert len(asked) == ASKED
    assert sum(asked.values()) - ASKED <= IN_FLIGHT
    assert_every_release_was_charged(tmp_path / "run")


def assert_every_release_was_charged(folder: Path) -> None:
    connection = sqlite3.connect(folder / "confidential" / "journal.sqlite")
    charges = Counter(name for (name,) in connection.execute("SELECT name FROM charges"))
    releases = [name for (name,) in connection.execute("SELECT name FROM releases")]
    connection.close()
    assert len(releases) == driver.ITERATIONS
    assert all(charges[name] >= 1 for name in releases)
