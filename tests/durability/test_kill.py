"""A run killed at any instant, and gone on with, is the run that was never killed."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.durability import driver

IN_FLIGHT = 2 * driver.WORKERS * driver.CHUNK
RUNS = [("images", rule) for rule in driver.RULES] + [("texts", "plain"), ("texts", "keeping what it paid for")]
OFTEN = {"images": 10, "texts": 3}
"""How often a run is killed; with the slow tests 25 times."""


def shareable(folder: Path) -> dict[str, bytes]:
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: content for name, content in files.items() if not name.startswith("confidential/")}


@dataclass(frozen=True)
class Whole:
    """An uninterrupted run: its shareable files, its charges, how many items it asked for, and its seconds."""

    files: dict[str, bytes]
    charged: dict[str, object]
    asked: int
    seconds: float


def charged(folder: Path) -> dict[str, object]:
    """All that a run's certificate says, but its name and the files that it covers; and the data set's ledger."""
    certificate = json.loads((folder / "run" / "certificate.json").read_text())
    told = {key: value for key, value in certificate.items() if key not in ("run", "covered")}
    (ledger,) = json.loads(next(folder.glob("private.*.ledger.json")).read_text())["runs"].values()
    return told | {"ledger": ledger}


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, str]], Whole]:
    @cache
    def of(run: tuple[str, str]) -> Whole:
        for _warm in range(2):
            folder = tmp_path_factory.mktemp("whole")
            started = time.monotonic()
            process = driver.start(folder, *run)
            process.join(60)
            assert process.exitcode == 0
            seconds = time.monotonic() - started
        return Whole(shareable(folder / "run"), charged(folder), len((folder / "asked").read_text().split()), seconds)

    return of


@pytest.fixture
def whole(wholes: Callable[[tuple[str, str]], Whole], run: tuple[str, str]) -> Whole:
    return wholes(run)


@pytest.mark.parametrize("run", RUNS, ids=" ".join)
def test_the_uninterrupted_run_asks_for_what_the_algorithm_says(whole: Whole, run: tuple[str, str]) -> None:
    size, ahead = driver.POPULATION, driver.ITERATIONS * driver.LOOKAHEAD
    less = ahead - driver.LOOKAHEAD  # the last iteration asks for nothing
    kept = size + (size // 2 - 2) + size // 2 + size  # S_1 keeps 2 parents a label at least, S_2 at most half, S_3 all
    least, most = {
        "plain": (size * (1 + ahead + driver.ITERATIONS),) * 2,
        "reusing its lookahead, the last taken as chosen": (size * (1 + less), size * (1 + less + 2) - 1),
        "keeping what it paid for": (kept - 2 * size // 3, kept + size),
    }[run[1]]
    assert least <= whole.asked <= most


@pytest.mark.parametrize("run", RUNS, ids=" ".join)
def test_no_rule_changes_what_a_run_charges(
    whole: Whole, run: tuple[str, str], wholes: Callable[[tuple[str, str]], Whole]
) -> None:
    assert whole.charged == wholes((run[0], "plain")).charged


@pytest.mark.parametrize(
    ("run", "seed"),
    [
        pytest.param(run, seed, id=f"{' '.join(run)} {seed}", marks=[pytest.mark.slow] * (seed >= OFTEN[run[0]]))
        for run in RUNS
        for seed in range(25)
    ],
)
def test_a_run_killed_at_a_random_instant_ends_as_if_it_had_not_been(
    whole: Whole, run: tuple[str, str], tmp_path: Path, seed: int
) -> None:
    process = driver.start(tmp_path, *run)
    time.sleep(random.Random(f"{seed} {run}").uniform(0, whole.seconds))
    process.kill()
    process.join(60)
    again = driver.start(tmp_path, *run)
    again.join(60)
    assert again.exitcode == 0
    assert shareable(tmp_path / "run") == whole.files
    asked = Counter((tmp_path / "asked").read_text().split())
    assert len(asked) == whole.asked
    assert sum(asked.values()) - whole.asked <= IN_FLIGHT
    assert_every_release_was_charged(tmp_path / "run")


def assert_every_release_was_charged(folder: Path) -> None:
    connection = sqlite3.connect(folder / "confidential" / "journal.sqlite")
    charges = Counter(name for (name,) in connection.execute("SELECT name FROM charges"))
    releases = [name for (name,) in connection.execute("SELECT name FROM releases")]
    connection.close()
    assert len(releases) == driver.ITERATIONS
    assert all(charges[name] >= 1 for name in releases)
