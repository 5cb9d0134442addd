"""What all runs over the same records spend stands in one ledger file, and a run that draws nothing
costs nothing.
"""

import json
import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import pe
from pe.engine.execution import RunContext, resume_run
from pe.engine.private_side import IDENTITY, forget_run
from pe.errors import APIError, BudgetExceeded, PEError, PrivacyError, RunError
from pe.privacy.data_set import DataSetLedger
from pe.privacy.ledger import Budget
from pe.store.durable import RunLock
from pe.store.run import purge
from pe.store.writer import read_journal
from tests.cli.typed import pe as command
from tests.durability.driver import forked
from tests.engine.small import SETTINGS, evolve, records_in
from tests.generators import Mean, Shades


@pytest.fixture
def scans(tmp_path):
    (tmp_path / "scans").mkdir()
    for i, pixels in enumerate(
        np.random.default_rng(0).integers(0, 256, (30, 4, 4), dtype=np.uint8)
    ):
        Image.fromarray(pixels).save(tmp_path / "scans" / f"{i:02}.png")
    return pe.ImageFolder(tmp_path / "scans", size=4, channels=1, declared_size=30)


def spent(source, out, api=None):
    return evolve(source, out, api, epsilon=1.0).guarantee["data_set"]


def a_hard_link_of_each_file(scans, again):
    again.mkdir()
    for path in scans.iterdir():
        os.link(path, again / f"x{path.name}")
    return pe.ImageFolder(again, size=4, channels=1)


def another_form(scans, again):
    images = [np.asarray(Image.open(path)) for path in sorted(scans.iterdir())]
    np.savez(again.with_suffix(".npz"), images=np.stack(images[5:]))  # and some records less
    return pe.ImageNpz(again.with_suffix(".npz"), size=4, channels=1)


@pytest.mark.parametrize("copied", [a_hard_link_of_each_file, another_form])
def test_a_cap_holds_over_links_and_copies_in_the_file_that_is_named(scans, tmp_path, copied):
    ledger, api = DataSetLedger.beside(scans.path), Shades()
    again = replace(copied(scans.path, tmp_path / "again"), ledger_file=ledger.path)
    assert spent(scans, tmp_path / "a") == {
        "epsilon": pytest.approx(1, rel=1e-3),
        "delta": 1e-5,
        "runs": 1,
    }
    second = spent(again, tmp_path / "b")
    assert second["runs"] == 2
    assert 1.4 < second["epsilon"] < 1.5
    ledger.cap(Budget(1.5, 1e-5))
    with pytest.raises(BudgetExceeded, match="above the cap"):
        spent(again, tmp_path / "c", api)
    assert api.asked == 0
    assert not (tmp_path / "c").exists()


def test_a_link_to_the_folder_has_its_ledger_file_and_data_that_grow_stay_in_theirs(
    scans, tmp_path
):
    spent(scans, tmp_path / "a")
    (tmp_path / "link").symlink_to(scans.path)
    assert spent(replace(scans, path=tmp_path / "link"), tmp_path / "b")["runs"] == 2
    Image.new("L", (4, 4), 7).save(scans.path / "new.png")
    assert spent(scans, tmp_path / "c")["runs"] == 3


def test_the_plan_says_that_the_cap_will_refuse_the_run_and_changes_nothing(
    private, ledger, tmp_path
):
    ledger.cap(Budget(1.2, 1e-5))
    start(tmp_path)
    before = ledger.path.read_bytes()
    told = pe.plan(private, Shades(), embedding=Mean(), **SETTINGS | {"epsilon": 1}).warnings
    said = "A run would not start. This run would bring the data set's total to ε = 1.4"
    assert [str(ledger.path) in one for one in told if one.startswith(said)] == [True]
    assert ledger.path.read_bytes() == before


# A run that ends before it has drawn anything.


def after_the_first(act):
    """A generator that acts before each answer but the first."""
    api = Shades()

    def random_api(request):
        if api.random_requests:
            act()
        return Shades.random_api(api, request)

    api.random_api = random_api
    return api


def break_off(*_):
    raise APIError("The endpoint is down.")


def start(folder, name="run", api=None):
    return evolve(records_in(folder), folder / name, api, epsilon=1.0)


def die(folder):
    start(folder, api=after_the_first(lambda: os.kill(os.getpid(), signal.SIGKILL)))


def go_on(folder):
    return resume_run(folder, RunContext(api=Shades(), embedding=Mean(), progress=pe.Progress()))


@pytest.fixture
def ledger(private):
    return DataSetLedger.beside(private.path)


@pytest.fixture
def dead(ledger, tmp_path):
    """A run that was killed while it made S_0: it is entered, and has drawn nothing."""
    process = forked(die, tmp_path)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert len(ledger.read()["runs"]) == 1
    return tmp_path / "run"


def test_a_run_whose_generator_fails_first_is_struck_out_and_entered_when_it_goes_on(
    ledger, tmp_path
):
    with pytest.raises(APIError, match="is down"):
        start(tmp_path, api=after_the_first(break_off))
    assert ledger.read()["runs"] == {}
    run = go_on(tmp_path / "run")
    total = {"epsilon": run.guarantee["epsilon"], "delta": 1e-5, "runs": 1}
    assert run.guarantee["data_set"] == ledger.total(1e-5) == pytest.approx(total)
    assert start(tmp_path, "next").guarantee["data_set"]["runs"] == 2


def test_a_run_that_fails_once_something_is_drawn_stays_entered(ledger, tmp_path):
    late = Shades()
    late.variation_api = break_off
    with pytest.raises(APIError):
        start(tmp_path, api=late)
    with pytest.raises(
        RunError, match="has drawn noise for histogram/1, which counts for good: its entry stays"
    ):
        forget_run(tmp_path / "run", ledger)
    assert len(ledger.read()["runs"]) == 1


def test_a_killed_run_that_has_drawn_nothing_is_forgotten_and_entered_again_before_it_draws(
    ledger, dead
):
    with (
        RunLock(dead / "confidential" / "lock"),
        pytest.raises(RunError, match="is being written by process"),
    ):
        forget_run(dead, ledger)
    with pytest.raises(PrivacyError, match=r"does not list this run. Name the file that does"):
        forget_run(dead, DataSetLedger(dead.parent / "other.json"))
    assert len(ledger.read()["runs"]) == 1
    said = command("ledger", dead.parent / "private.npz", "--forget", dead, cwd=dead.parent)
    assert (said.returncode, said.stdout.splitlines()[0]) == (0, "0 runs: ε = 0.")
    run = go_on(dead)
    assert run.guarantee["data_set"]["runs"] == 1
    assert ledger.total(1e-5)["epsilon"] == run.guarantee["epsilon"]


def test_neither_a_copy_of_a_run_that_draws_nor_an_older_state_of_it_strikes_it_out(ledger, dead):
    for name in ("copy", "backup"):
        shutil.copytree(dead, dead.parent / name)
    go_on(dead)
    with pytest.raises(PEError, match="is a copy, or was moved"):
        forget_run(dead.parent / "copy", ledger)
    with pytest.raises(PrivacyError, match="has begun to draw noise, so its entry stays"):
        ledger.strike(json.loads((dead / IDENTITY).read_text())["run"])
    for path in dead.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(dead.parent / "backup", dead, dirs_exist_ok=True)
    with pytest.raises(PrivacyError, match="has begun to draw noise, so its entry stays"):
        forget_run(dead, ledger)
    assert len(ledger.read()["runs"]) == 1


def test_a_run_without_its_first_journal_stays_entered(ledger, dead):
    finished = start(dead.parent, "finished")
    purge(finished)
    with pytest.raises(
        RunError, match="has no journal, which alone can tell that nothing was drawn"
    ):
        forget_run(finished.folder, ledger)
    for path in (dead / "confidential").glob("journal.sqlite*"):
        path.write_bytes(b"") if path.suffix == ".sqlite" else path.unlink()
    with pytest.raises(RunError, match="has lost its first journal, so what was drawn is unknown"):
        forget_run(dead, ledger)
    assert len(ledger.read()["runs"]) == 2


def test_a_run_that_is_struck_out_while_it_goes_on_draws_nothing(ledger, tmp_path):
    api = after_the_first(
        lambda: [ledger.strike(run) for run in ledger.read()["runs"]]
    )  # as by a duplicate of the run
    with pytest.raises(PrivacyError, match=r"Nothing is drawn, because .* does not list the run"):
        start(tmp_path, api=api)
    with read_journal(pe.Run.open(tmp_path / "run")) as journal:
        assert journal.charges() == []
    assert list((tmp_path / "run" / "releases").iterdir()) == []
    assert go_on(tmp_path / "run").guarantee["data_set"]["runs"] == 1
