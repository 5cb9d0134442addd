"""A purge that is interrupted anywhere makes no false statement, lets no noise be redrawn, and can
be finished.
"""

from pathlib import Path

import numpy as np
import pytest

import pe
from pe.engine.execution import RunContext, resume_run
from pe.errors import PEError, RunError
from pe.store.export import examine
from pe.store.places import PURGED
from pe.store.run import purge
from tests.generators import Mean, Shades

SURROUNDINGS = RunContext(api=Shades(), embedding=Mean())


def test_the_list_of_unreadable_private_files_goes_too_and_what_a_link_points_to_stays(
    run, finished
):
    data = finished.folder.parent
    listed, other = data / "private.npz.bad-files.txt", data / "other.npz.bad-files.txt"
    for path in (listed, other):
        path.write_text("a.png is damaged")
    (run.confidential / "link").symlink_to(data)
    purge(run)
    assert not run.confidential.exists()
    assert (listed.exists(), other.exists()) == (False, True)
    assert finished.folder.exists()


@pytest.mark.parametrize(
    "recipe",
    [
        "private: {path: PATH}",
        "private: {path: [PATH]}",
        "private: PATH",
        "[PATH",
        "- PATH",
        'private: {path: "\\0"}',
        b"\xff",
        "private: {path: http://PATH}",
    ],
)
def test_a_purge_reads_no_recipe_that_somebody_else_has_put_there(run, tmp_path, recipe):
    (tmp_path / "mine.bad-files.txt").write_text("a.png is damaged")
    content = (
        recipe
        if isinstance(recipe, bytes)
        else recipe.replace("PATH", str(tmp_path / "mine")).encode()
    )
    (run.confidential / "recipe.yaml").write_bytes(content)
    purge(run)
    assert (tmp_path / "mine.bad-files.txt").exists()
    assert not run.confidential.exists()
    assert examine(run.folder)[1] == []


class Killed(BaseException):
    """As if the process ended here."""


def test_a_purge_interrupted_anywhere_is_finished_by_another(run, monkeypatch):
    votes = np.load(run.folder / "releases" / "histogram-1.npy")
    files = sum(path.is_file() for path in run.confidential.rglob("*"))
    assert files > 4
    unlink, removed = Path.unlink, []

    def counted(path, missing_ok=False):
        if removed:
            raise Killed
        removed.append(path)
        unlink(path, missing_ok)

    for _ in range(2 * files):
        removed.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", counted)
            try:
                purge(run)
                break
            except Killed:
                pass
        left = {path.name for path in run.confidential.rglob("*") if path.is_file()}
        assert not (run.folder / PURGED).exists() or left <= {"lock"}
        with pytest.raises(PEError):
            resume_run(run.folder, SURROUNDINGS)
        np.testing.assert_array_equal(np.load(run.folder / "releases" / "histogram-1.npy"), votes)
    purge(run) if run.confidential.exists() else None
    assert not run.confidential.exists()
    assert examine(run.folder)[1] == []


def test_a_purge_certifies_nothing_but_its_own_record(run):
    (run.folder / "evolution.png").write_bytes(b"changed")
    (run.folder / "notes.txt").write_text("patient 7")
    purge(run)
    problems = examine(run.folder)[1]
    assert [problem.split("'")[1] for problem in problems] == ["evolution.png", "notes.txt"]


@pytest.mark.parametrize("name", ["notes.txt", "releases/histogram-1.npy"])
def test_a_finished_run_that_is_resumed_certifies_nothing_anew(run, name):
    assert resume_run(run.folder, SURROUNDINGS).folder == run.folder
    (run.folder / name).write_text("patient 7")
    certified = (run.folder / "certificate.json").read_bytes()
    with pytest.raises(
        RunError, match=rf"is finished, and its files no longer match its certificate: .*'{name}'"
    ):
        resume_run(run.folder, SURROUNDINGS)
    assert (run.folder / "certificate.json").read_bytes() == certified


def test_an_export_is_neither_resumed_nor_purged(run, tmp_path):
    copy = run.export(tmp_path / "copy")
    said = r"copy is an export \(it has no confidential/\), so it cannot be resumed. Resume the run"
    with pytest.raises(RunError, match=said):
        resume_run(copy, SURROUNDINGS)
    with pytest.raises(RunError, match="or is an export"):
        purge(pe.Run.open(copy))
    assert not (copy / "confidential").exists()
    assert examine(copy)[1] == []


def test_a_run_that_is_unfinished_or_whose_confidential_side_lies_elsewhere_is_not_called_purged(
    run, tmp_path
):
    run.confidential.rename(tmp_path / "elsewhere")
    run.confidential.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="is a link"):
        purge(run)
    (run.folder / "certificate.json").unlink()
    with pytest.raises(RunError, match="not finished"):
        purge(run)
    assert not (run.folder / PURGED).exists()
    assert (run.confidential / "journal.sqlite").exists()
