"""What a run tells loggers and shows on the console: shareable values alone, and not when private
work was done.
"""

import io

import numpy as np
import pytest
from rich.console import Console

import pe
from pe.engine.loggers import Bars
from pe.errors import LimitReached
from pe.report.loggers import make_entry
from pe.report.pages import public_plan
from tests.engine.small import Told, evolve
from tests.generators import Mean, Shades


class Logs(Told):
    """Keeps what it gets, and whether the run had its certificate by then."""

    def __init__(self, folder, fails=False):
        super().__init__()
        self.folder, self.fails, self.logged, self.certified, self.closed = folder, fails, [], [], 0

    def log(self, logged):
        if self.fails:
            raise OSError("no route to host")
        self.logged.append(logged)
        self.certified.append((self.folder / "certificate.json").exists())

    def close(self):
        self.closed += 1


def run_told(folder, clock, fails=False, **changes):
    images, classes = np.full((60, 4, 4, 1), 77, np.uint8), ["a/b", "c"]
    np.savez(folder / "planted.npz", images=images, labels=np.array(classes * 30))
    data = pe.ImageNpz(
        folder / "planted.npz", size=4, channels=1, classes=classes, declared_size=50
    )
    logs = Logs(folder / "run", fails)
    changes = {"iterations": 1, "loggers": [logs], "progress": logs, "hold": clock} | changes
    try:
        return evolve(data, folder / "run", **changes), logs
    except LimitReached:
        return pe.Run.open(folder / "run"), logs


def go_on(run):
    logs = Logs(run.folder)
    given = {"api": Shades(), "embedding": Mean(), "progress": pe.Progress()}
    pe.resume(run, loggers=[logs], changes={"limits.max_images": 900}, **given)
    return logs


def test_a_logger_is_told_shareable_values_of_each_iteration(tmp_path):
    run, logs = run_told(tmp_path, 1.0)
    assert [one.t for one in logs.logged] == [0, 1]
    assert (logs.certified, logs.closed) == ([False] * 2, 1)
    last = logs.logged[-1]
    assert last.sizes == {"a/b": 10, "c": 10}
    assert (last.images, last.cost, last.noun, last.run) == (40, 0.0, "images", "run")
    assert last.epsilon == run.guarantee["epsilon"]
    votes = np.load(run.folder / "releases" / "histogram-1.npy")
    assert last.votes["highest"] == votes.max() / run.guarantee["releases"][-1]["grid"]
    numbers = last.numbers()
    assert numbers["size/0 a_b"] == 10
    assert all(type(value) in (int, float) for value in numbers.values())


def test_what_a_logger_gets_is_made_of_what_an_export_holds_but_for_what_was_billed(tmp_path):
    run, logs = run_told(tmp_path, "off")
    export = pe.Run.open(run.export(tmp_path / "export" / "run"))
    _, plan = public_plan(export)
    epsilon = export.guarantee["epsilon"]
    again = [
        make_entry(export, plan, t, epsilon, 1e-5, one.images, one.cost)
        for t, one in enumerate(logs.logged)
    ]
    assert again == logs.logged
    kinds = {"str", "int", "float", "dict", "bytes"}
    assert {type(value).__name__ for one in logs.logged for value in vars(one).values()} <= kinds


@pytest.mark.parametrize(("clock", "before"), [("off", []), (1.0, [0])])
def test_without_a_clock_a_logger_is_told_once_the_run_has_ended_and_with_one_at_once(
    tmp_path, clock, before
):
    run, logs = run_told(tmp_path, clock, max_images=25)
    assert ([one.t for one in logs.logged], logs.closed) == (before, 1)
    again = go_on(run)
    assert again.certified == [True] * 2
    assert [one.images for one in again.logged] == [None, 40]
    assert again.closed == 1


def test_a_logger_that_fails_does_not_end_the_run(tmp_path):
    run, logs = run_told(tmp_path, "off", fails=True)
    assert len(run.synthetic) == 20
    assert [one for one in logs.warnings if "Logs failed (no route to host)" in one]
    assert logs.closed == 0


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_waited_for_is_told_and_vanishes(terminal, capsys):
    words = "rate limited [by the server] until 14:32:05"
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    with Bars(console=console, clock=lambda: 0.0).task("population 0", 1000) as task:
        task.wait(words)
        start = console.file.tell()
        task.wait("")
        console.file.seek(start)
        assert words not in console.file.read()
    assert (words in console.file.getvalue()) == terminal
    plain = "" if terminal else f"population 0: {words}\npopulation 0: 1000 done\n"
    assert capsys.readouterr().err == plain
