"""A run killed at any instant, and gone on with, is the run that was never killed."""

import json
import random
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial

import pytest

from tests.durability import driver

IN_FLIGHT = 2 * driver.WORKERS * driver.CHUNK
RUNS = [*(("images", rule) for rule in driver.RULES), ("texts", "plain")]


def shareable(folder):
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    return {
        name: content for name, content in files.items() if not name.startswith("confidential/")
    }


def charged(folder):
    """All that a run's certificate says, but its name and the files that it covers; and the data
    set's ledger.
    """
    certificate = json.loads((folder / "run" / "certificate.json").read_text())
    told = {key: value for key, value in certificate.items() if key not in ("run", "covered")}
    (ledger,) = json.loads(next(folder.glob("private.*.ledger.json")).read_text())["runs"].values()
    return told | {"ledger": ledger}


def committed(folder):
    """The names of the releases that a run's journal charged, in order, and the number of items
    that it has.
    """
    with closing(sqlite3.connect(folder / "run" / "confidential" / "journal.sqlite")) as connection:
        charges = [name for (name,) in connection.execute("SELECT name FROM charges ORDER BY id")]
        return [*charges, *connection.execute("SELECT SUM(answered) FROM chunks")]


@dataclass(frozen=True)
class Whole:
    """An uninterrupted run: its shareable files, its charges, its journal, and how many items it
    asked for.
    """

    files: dict[str, bytes]
    charged: dict[str, object]
    committed: list[object]
    asked: int


@pytest.fixture(scope="module")
def wholes(tmp_path_factory):
    @cache
    def of(run):
        folder = tmp_path_factory.mktemp("whole")
        process = driver.start(folder, *run)
        process.join(60)
        assert process.exitcode == 0
        asked = len((folder / "asked").read_text().split())
        return Whole(shareable(folder / "run"), charged(folder), committed(folder), asked)

    return of


def check(folder, whole, lost):
    """The run ended as the whole one: it charged nothing twice, and asked again for so many items
    at most, all lost.
    """
    assert shareable(folder / "run") == whole.files
    assert committed(folder) == whole.committed
    asked = Counter((folder / "asked").read_text().split())
    assert len(asked) == whole.asked
    assert sum(asked.values()) - whole.asked <= lost
    assert {path.name for path in (folder / "run" / "confidential").iterdir()} == {
        *("chunks", "embeddings", "identity.json", "journal.sqlite"),
        *("lock", "log.txt", "recipe.yaml", "audit-record.json", "binding.txt"),
    }


def slow_but_for(first, every):
    return [pytest.param(one, marks=[pytest.mark.slow] * (one != first)) for one in every]


@pytest.mark.parametrize("run", slow_but_for(RUNS[0], RUNS))
@pytest.mark.parametrize(("at", "steps"), [("", (5, 45)), ("/releases", (1, 9))])
def test_a_run_killed_over_and_over_ends_as_if_it_had_not_been(wholes, run, at, steps, tmp_path):
    draws = random.Random(f"{run} {at}")
    kills = driver.swept(
        partial(_carry_out, run), tmp_path, [draws.randint(*steps) for _ in range(99)], at
    )
    assert kills > 2
    check(tmp_path, wholes(run), lost=kills * IN_FLIGHT)
    assert charged(tmp_path) == wholes((run[0], "plain")).charged  # no rule changes it


def _carry_out(run, folder):
    driver.carry_out(folder, *run)
