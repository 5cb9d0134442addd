"""A run killed before any operation of its publishing ends as if it had not been, and asks and draws nothing again."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.durability import driver
from tests.durability.test_kill import shareable

OPERATION = "os.rename"
"""Python tells its audit hooks before it asks the system. Files are written and removed between these."""


def killed_before(number: int, first: str) -> None:
    """Have this process killed before its `number`-th operation after something was renamed to `first`."""
    counted = None

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal counted
        if counted is not None and event == OPERATION:
            counted += 1
            if counted == number:
                os.kill(os.getpid(), signal.SIGKILL)
        elif event == "os.rename" and str(arguments[1]).endswith(first):
            counted = 0

    sys.addaudithook(hook)


def sweep(target: Callable[[Path], object], folder: Path, first: str, numbers: Sequence[int]) -> None:
    """Carry out `target` until it ends, killed before each of these operations; write down how often that was."""
    for kills, number in enumerate(numbers):
        child = os.fork()
        if not child:
            killed_before(number, first)
            target(folder)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            (folder / "kills").write_text(str(kills))
            return


def swept(target: Callable[[Path], object], folder: Path, first: str, numbers: Sequence[int] = range(1, 1000)) -> int:
    process = driver.forked(sweep, target, folder, first, numbers)
    process.join(300)
    assert process.exitcode == 0
    return int((folder / "kills").read_text())


@pytest.fixture(scope="module", params=driver.PRIVATE)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, kind: str) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    process = driver.start(folder, kind)
    process.join(60)
    assert process.exitcode == 0
    return shareable(folder / "run")


def test_a_run_killed_before_each_operation_of_its_publishing_ends_as_if_it_had_not_been(
    whole: dict[str, bytes], tmp_path: Path, kind: str
) -> None:
    carry_out = partial(driver.carry_out, kind=kind)
    least = driver.ITERATIONS + 2  # a release each, the synthetic data and the certificate
    if kind == "images":
        assert swept(carry_out, tmp_path, "/evolution.png") > least
    else:  # what is done is the same, so a few of the operations suffice
        some = sorted(random.Random(0).sample(range(1, least), 2))
        assert swept(carry_out, tmp_path, "/evolution.png", [*some, 1000]) == len(some)
    assert shareable(tmp_path / "run") == whole
    assert {path.name for path in (tmp_path / "run" / "confidential").iterdir()} == {
        *("chunks", "embeddings", "identity.json", "journal.sqlite"),
        *("lock", "log.txt", "recipe.yaml", "audit-record.json"),
    }
    assert set(Counter((tmp_path / "asked").read_text().split()).values()) == {1}
    connection = sqlite3.connect(tmp_path / "run" / "confidential" / "journal.sqlite")
    charges = [name for (name,) in connection.execute("SELECT name FROM charges")]
    connection.close()
    assert charges == [f"histogram/{t + 1}" for t in range(driver.ITERATIONS)]
