import sqlite3
from contextlib import closing

import pytest

import pe.store.writer
from pe.dispatch.answers import Answers
from pe.errors import RunError
from pe.plugins.protocols import Usage
from pe.progress import Progress
from pe.store.durable import check_local, write_durably
from pe.store.journal import ChunkRow, Journal
from pe.store.writer import RunWriter


@pytest.fixture
def run(tmp_path):
    with RunWriter.create(tmp_path / "run", {"recipe.yaml": b""}) as run:
        yield run


def full(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("failing", ["sync", "write_durably"])
def test_a_run_that_cannot_be_created_leaves_nothing(tmp_path, monkeypatch, failing):
    monkeypatch.setattr(pe.store.writer, failing, full)
    with pytest.raises(RunError, match="No space left on device"):
        RunWriter.create(
            tmp_path / "run", {"recipe.yaml": b"", "confidential/identity.json": b"{}"}
        )
    assert not list(tmp_path.glob("*.part"))
    assert failing == "sync" or not (tmp_path / "run").exists()


def test_a_run_that_cannot_be_reopened_is_let_go_of(tmp_path, monkeypatch):
    RunWriter.create(tmp_path / "run", {"recipe.yaml": b""}).close()
    with monkeypatch.context() as patched:
        patched.setattr(pe.store.writer, "remove_unfinished", full)
        with pytest.raises(RunError, match="No space left on device"):
            RunWriter.reopen(tmp_path / "run")
    RunWriter.reopen(tmp_path / "run").close()


def test_every_file_of_a_new_folder_is_known_its_loss_noticed_and_who_reads_the_run_reads_it(run):
    with run.new_folder("model") as folder:
        (folder / "v1.0").mkdir()
        (folder / "v1.0" / "weights").touch(mode=0o600)
        (folder / "README").write_bytes(b"2")
    assert sorted(run.journal.files("model/")) == ["model/README", "model/v1.0/weights"]
    own = (run.folder / "model" / "v1.0" / "weights").stat().st_mode
    assert own == (run.folder / "recipe.yaml").stat().st_mode
    (run.folder / "model" / "README").unlink()
    with pytest.raises(RunError, match="README is missing"):
        run.check_files("model/")


def test_answers_that_are_lost_are_not_counted(run):
    answer = ChunkRow(0, "population/0", "a.npz", "00", answers=7, seconds=0.1, usage=Usage(1, 7))
    run.journal.add_chunks([(answer, [])])
    assert run.journal.totals().answers == 7
    run.journal.forget_chunks(
        "population/0", [row.id for row in run.journal.chunks("population/0")]
    )
    assert run.journal.totals().answers == 0


def test_a_journal_of_an_earlier_version_is_refused_by_a_sentence_that_names_both(tmp_path):
    with RunWriter.create(tmp_path / "run", {"recipe.yaml": b""}):
        pass
    path = tmp_path / "run" / "confidential" / "journal.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 3")
    for opened in (lambda: RunWriter.reopen(tmp_path / "run"), lambda: Journal(path, reading=True)):
        with pytest.raises(
            RunError, match="has journal version 3, but this software writes version 4"
        ):
            opened()


def test_a_network_mount_is_refused_and_a_link_to_it_followed(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nserver:/x {(tmp_path / 'far').resolve()} nfs4 rw 0 0\n")
    check_local(tmp_path / "run", mounts)
    for folder in ("far", "link"):
        with pytest.raises(RunError, match=r"network file system \(nfs4\)"):
            check_local(tmp_path / folder / "runs" / "run", mounts)


def test_a_chunk_that_lies_elsewhere_is_refused_and_left_alone(run, tmp_path):
    (tmp_path / "victim.txt").write_text("mine")
    row = ChunkRow(0, "lookahead/1", "../../../victim.txt", "00", 1, 0.1, Usage(1, 1))
    run.journal.add_chunks([(row, [])])
    with pytest.raises(RunError, match=r"names a chunk '../../../victim.txt' outside of the run"):
        Answers(run, Progress()).forget("lookahead/1")
    assert (tmp_path / "victim.txt").read_text() == "mine"


def test_nothing_is_written_through_a_link(tmp_path):
    (tmp_path / "victim.txt").write_text("mine")
    (tmp_path / "report.html.part").symlink_to(tmp_path / "victim.txt")
    write_durably(tmp_path / "report.html", b"ours")
    assert (tmp_path / "victim.txt").read_text() == "mine"
    assert (tmp_path / "report.html").read_bytes() == b"ours"
    assert not (tmp_path / "report.html").is_symlink()
