"""A purge that is interrupted anywhere makes no false statement, lets no noise be redrawn, and can be finished."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pe
from pe.engine.execution import Surroundings, resume_run
from pe.errors import PEError, RunError
from pe.store.export import examine
from pe.store.places import PURGED
from pe.store.run import purge
from tests.generators import Mean, Shades


@pytest.fixture
def run(tmp_path: Path) -> pe.Run:
    images = np.random.default_rng(0).integers(0, 255, (40, 4, 4, 1)).astype(np.uint8)
    np.savez(tmp_path / "private.npz", images=images, labels=np.array(["a", "b"] * 20))
    data = pe.ImageNpz(tmp_path / "private.npz", size=4, channels=1, classes=["a", "b"])
    settings = {"epsilon": 5.0, "delta": 1e-5, "population": 8, "iterations": 1, "lookahead": 0}
    return pe.evolve(data, Shades(), embedding=Mean(), out=tmp_path / "run", **settings)


def test_the_list_of_unreadable_private_files_goes_too(run: pe.Run, tmp_path: Path) -> None:
    listed, other = tmp_path / "private.npz.bad-files.txt", tmp_path / "other.npz.bad-files.txt"
    for path in (listed, other):
        path.write_text("a.png is damaged")
    purge(run)
    assert (listed.exists(), other.exists()) == (False, True)


class Killed(BaseException):
    """As if the process ended here."""


def kill_after(removals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink, left = Path.unlink, [removals]

    def counted(path: Path, missing_ok: bool = False) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", counted)


def test_a_purge_interrupted_anywhere_is_finished_by_another(run: pe.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    votes = np.load(run.folder / "releases" / "histogram-1.npy")
    files = sum(path.is_file() for path in run.confidential.rglob("*"))
    assert files > 4
    for _ in range(2 * files):
        with monkeypatch.context() as patch:
            kill_after(1, patch)
            try:
                purge(run)
                break
            except Killed:
                pass
        left = {path.name for path in run.confidential.rglob("*") if path.is_file()}
        assert not (run.folder / PURGED).exists() or left <= {"lock"}
        with pytest.raises(PEError):
            resume_run(run.folder, Surroundings(api=Shades(), embedding=Mean()))
        np.testing.assert_array_equal(np.load(run.folder / "releases" / "histogram-1.npy"), votes)
    purge(run) if run.confidential.exists() else None
    assert not run.confidential.exists()
    assert examine(run.folder)[1] == []


def test_a_purge_certifies_nothing_but_its_own_record(run: pe.Run) -> None:
    (run.folder / "evolution.png").write_bytes(b"changed")
    (run.folder / "notes.txt").write_text("patient 7")
    purge(run)
    assert not run.confidential.exists()
    problems = examine(run.folder)[1]
    assert [problem.split("'")[1] for problem in problems] == ["evolution.png", "notes.txt"]


@pytest.mark.parametrize("name", ["notes.txt", "evolution.png", "releases/histogram-1.npy"])
def test_a_finished_run_that_is_resumed_certifies_nothing_anew(run: pe.Run, name: str) -> None:
    surroundings = Surroundings(api=Shades(), embedding=Mean())
    assert resume_run(run.folder, surroundings).folder == run.folder
    (run.folder / name).write_text("patient 7")
    certified = (run.folder / "certificate.json").read_bytes()
    with pytest.raises(RunError, match=rf"is finished, and not as it was certified: .*'{name}'"):
        resume_run(run.folder, surroundings)
    assert (run.folder / "certificate.json").read_bytes() == certified


def test_a_copy_that_cannot_be_resumed_gets_no_confidential_side(run: pe.Run, tmp_path: Path) -> None:
    copy = run.export(tmp_path / "copy")
    with pytest.raises(
        RunError, match=r"copy is an export \(it has no confidential/\), so it cannot be resumed: resume the run"
    ):
        resume_run(copy, Surroundings(api=Shades(), embedding=Mean()))
    assert not (copy / "confidential").exists()


def test_what_a_link_points_to_is_left_alone(run: pe.Run, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").touch()
    (run.confidential / "link").symlink_to(other)
    purge(run)
    assert (other / "file").exists()


def test_a_confidential_side_that_lies_elsewhere_is_not_called_purged(run: pe.Run, tmp_path: Path) -> None:
    run.confidential.rename(tmp_path / "elsewhere")
    run.confidential.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="is a link"):
        purge(run)
    assert not (run.folder / PURGED).exists()


def test_an_export_has_nothing_to_purge(run: pe.Run, tmp_path: Path) -> None:
    out = pe.Run.open(run.export(tmp_path / "out"))
    with pytest.raises(RunError, match="or is an export"):
        purge(out)
    assert examine(out.folder)[1] == []


def test_an_unfinished_run_is_not_purged(run: pe.Run) -> None:
    (run.folder / "certificate.json").unlink()
    with pytest.raises(RunError, match="not finished"):
        purge(run)
    assert (run.confidential / "journal.sqlite").exists()
