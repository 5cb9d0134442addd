"""What a crash leaves of a draw that was not kept: nothing that anybody sees, and nothing at all once it goes on."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from pe.privacy.ledger import Array, Budget, Ledger
from pe.privacy.release import Release
from pe.store.durable import write_durably
from pe.store.places import CONFIDENTIAL
from pe.store.writer import JournalReleases, RunWriter

RELEASE = Release("votes/1", "discrete_gaussian", 1.0, 4.0, grid=2**20)


class KeptInSight(JournalReleases):
    """Broken: a draw lies among what is shared before it is whole."""

    def keep(self, name: str, array: Array) -> None:
        buffer = io.BytesIO()
        np.save(buffer, array)
        write_durably(self._run.folder / "releases" / "votes-1.npy", buffer.getvalue())


def draw(run: RunWriter, kind: type[JournalReleases]) -> tuple[Array, Ledger]:
    ledger = Ledger(Budget(10, 1e-5), "add_remove", "record", [RELEASE], kind(run))
    return ledger.release(RELEASE, lambda noise: noise.discrete_gaussian(3, 1e6)), ledger


def crashed(folder: Path, kind: type[JournalReleases], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Which files are to be seen after a crash between a draw's writing and its keeping; there must be one unseen."""

    def power_cut(*_: object) -> None:
        raise KeyboardInterrupt

    with RunWriter.create(folder, {"recipe.yaml": b""}) as run, monkeypatch.context() as crashing:
        crashing.setattr(Path, "replace", power_cut)
        with pytest.raises(KeyboardInterrupt):
            draw(run, kind)
    assert list(folder.rglob("votes-1.npy.part"))
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {str(path) for path in files if path.parts[0] != CONFIDENTIAL}


def test_a_draw_that_was_not_kept_is_seen_by_nobody_and_drawn_again_under_its_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert crashed(tmp_path / "run", JournalReleases, monkeypatch) == {"recipe.yaml"}
    with RunWriter.reopen(tmp_path / "run") as run:
        assert not list(run.folder.rglob("*.part"))
        array, ledger = draw(run, JournalReleases)
        assert [one.charges for one in ledger.stored()] == [1]
    assert np.array_equal(np.load(tmp_path / "run" / "releases" / "votes-1.npy"), array)


def test_that_test_notices_a_draw_in_sight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "releases/votes-1.npy.part" in crashed(tmp_path / "run", KeptInSight, monkeypatch)


def test_a_draw_that_the_same_process_could_not_keep_is_charged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunWriter.create(tmp_path / "run", {"recipe.yaml": b""}) as run:
        with monkeypatch.context() as crashing:
            crashing.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                draw(run, JournalReleases)
        _, ledger = draw(run, JournalReleases)
        assert [one.charges for one in ledger.stored()] == [2]


def test_a_file_that_was_moved_there_before_the_disk_refused_its_row_is_the_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunWriter.create(tmp_path / "run", {"recipe.yaml": b""}) as run:
        ledger = Ledger(Budget(10, 1e-5), "add_remove", "record", [RELEASE], JournalReleases(run))
        with monkeypatch.context() as refusing:
            refusing.setattr(type(run.journal), "add_release", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                ledger.release(RELEASE, lambda noise: noise.discrete_gaussian(3, 1e6))
        seen = np.load(run.folder / "releases" / "votes-1.npy")
        assert np.array_equal(ledger.release(RELEASE, lambda noise: noise.discrete_gaussian(3, 1e6)), seen)
        assert [one.charges for one in ledger.stored()] == [1]
