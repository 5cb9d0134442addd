"""What a crash leaves of a draw that was not kept: nothing that anybody sees, and nothing at all
once it goes on.
"""

from pathlib import Path

import numpy as np
import pytest

from pe.privacy.ledger import Budget, Ledger
from pe.privacy.release import Release
from pe.store.places import CONFIDENTIAL
from pe.store.writer import JournalReleases, RunWriter

RELEASE = Release("votes/1", "discrete_gaussian", 1.0, 4.0, grid=2**20)


def draw(run):
    ledger = Ledger(Budget(10, 1e-5), "add_remove", "record", [RELEASE], JournalReleases(run))
    return ledger.release(RELEASE, lambda noise: noise.discrete_gaussian(3, 1e6)), ledger


def crash(run, monkeypatch, kind=Path, method="replace"):
    """Draw, and be stopped before this is done."""

    def power_cut(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as crashing:
        crashing.setattr(kind, method, power_cut)
        with pytest.raises(KeyboardInterrupt):
            draw(run)


@pytest.fixture
def run(tmp_path):
    return RunWriter.create(tmp_path / "run", {"recipe.yaml": b""})


def test_a_draw_that_was_not_kept_is_seen_by_nobody_and_drawn_again_under_its_charge(
    run, monkeypatch
):
    crash(run, monkeypatch)
    run.close()
    assert list(run.folder.rglob("votes-1.npy.part"))
    files = {path.relative_to(run.folder) for path in run.folder.rglob("*") if path.is_file()}
    assert {str(path) for path in files if path.parts[0] != CONFIDENTIAL} == {"recipe.yaml"}
    with RunWriter.reopen(run.folder) as again:
        assert not list(run.folder.rglob("*.part"))
        array, ledger = draw(again)
        assert [one.charges for one in ledger.charges()] == [1]
    assert np.array_equal(np.load(run.folder / "releases" / "votes-1.npy"), array)


def test_a_draw_that_the_same_process_could_not_keep_is_charged_again(run, monkeypatch):
    crash(run, monkeypatch)
    _, ledger = draw(run)
    assert [one.charges for one in ledger.charges()] == [2]


def test_a_file_that_was_moved_there_before_the_disk_refused_its_row_is_the_draw(run, monkeypatch):
    crash(run, monkeypatch, type(run.journal), "add_release")
    seen = np.load(run.folder / "releases" / "votes-1.npy")
    array, ledger = draw(run)
    assert np.array_equal(array, seen)
    assert [one.charges for one in ledger.charges()] == [1]


def test_unsafe_noise_and_the_order_of_charges_are_remembered(run):
    store = JournalReleases(run)
    for name, unsafe in (("b", False), ("a", False), ("b", True), ("b", False)):
        store.charge(Release(name, "discrete_gaussian", 1.0, 4.0, grid=2**20), unsafe)
    for releases in (store, JournalReleases(run)):
        charges = [(one.release.name, one.charges, one.unsafe) for one in releases.charges()]
        assert charges == [("b", 3, True), ("a", 1, False)]
