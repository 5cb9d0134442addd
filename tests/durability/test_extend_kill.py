"""An extension that was killed anywhere, its last steps included, and asked for again, is made and
paid for once.
"""

import os
import shutil
import signal
import sys
from collections import Counter

import pytest

from pe.engine.extend import extend_run
from pe.engine.report import write_report
from pe.store.export import examine
from tests.durability import driver

COUNT = 6
IN_FLIGHT = 2 * driver.WORKERS * driver.CHUNK


@pytest.fixture
def folder(tmp_path):
    """A finished run with a report, which an extension writes anew after it has certified its
    samples.
    """
    process = driver.start(tmp_path)
    process.join(60)
    assert process.exitcode == 0
    write_report(tmp_path / "run")
    (tmp_path / "asked").unlink()
    return tmp_path


def extend(folder, tell=lambda path: None):
    return extend_run(
        folder / "run", COUNT, 0.5, driver.surroundings_of(folder / "private.npz"), tell=tell
    )


def be_killed(path):
    path.parents[1].joinpath("told").open("a").write(f"{path.name}\n")
    os.kill(os.getpid(), signal.SIGKILL)


def told_and_killed(folder):
    extend(folder, be_killed)


def asked(folder):
    counts = Counter((folder / "asked").read_text().split())
    return len(counts), sum(counts.values())


def in_a_child(folder, number):
    """Extend in a process that is killed before this operation (see `driver.swept`); its exit
    status.
    """
    child = os.fork()
    if not child:
        driver._be_killed_before(number, "")
        extend(folder)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_once_at_every_step(folder):
    """In copies of `folder`, extend until an operation from the last answers on, the next …, and
    again to the end.
    """
    for number in range(14, 99):
        copy = shutil.copytree(
            folder, folder / "copies" / str(number), ignore=shutil.ignore_patterns("copies")
        )
        if in_a_child(copy, number) == 0:
            break
        if in_a_child(copy, 0):
            sys.exit(1)


def test_an_extension_killed_at_any_step_and_asked_for_again_is_one(folder):
    process = driver.forked(killed_once_at_every_step, folder)
    process.join(200)
    assert process.exitcode == 0
    copies = [*(folder / "copies").iterdir()]
    assert len(copies) > 8
    for copy in copies:
        assert [path.name for path in (copy / "run").glob("extension-*.npz")] == [
            "extension-001.npz"
        ], copy.name
        items, requests = asked(copy)
        assert (items, requests <= COUNT + IN_FLIGHT) == (COUNT, True)
        assert examine(copy / "run")[1] == []


def test_an_extension_is_told_until_the_process_has_outlived_that_and_then_another_is_made(folder):
    for _ in range(2):
        process = driver.forked(told_and_killed, folder)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
    assert (folder / "told").read_text() == "extension-001.npz\n" * 2
    told, before = [], asked(folder)
    assert extend(folder, told.append).name == "extension-001.npz"
    assert ([path.name for path in told], asked(folder)) == (["extension-001.npz"], before)
    assert extend(folder).name == "extension-002.npz"


def test_other_numbers_are_another_extension_though_nobody_was_told_of_the_first(folder):
    process = driver.forked(told_and_killed, folder)
    process.join(60)
    more = extend_run(folder / "run", 4, 0.5, driver.surroundings_of(folder / "private.npz"))
    assert more.name == "extension-002.npz"
