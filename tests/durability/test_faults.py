"""A disk that refuses, files that were damaged, folders that were copied: a clear sentence, and runs that can go on."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import pe
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.engine.private_side import IDENTITY
from pe.errors import DamagedFile, LimitReached, PEError, RunError
from pe.plugins.protocols import Answer, RandomRequest
from pe.privacy.data_set import DataSetLedger
from pe.progress import Progress
from pe.store.durable import RunLock, check_local
from tests.durability import driver
from tests.durability.test_kill import shareable


def private_of(folder: Path) -> Path:
    """The private records that lie in the folder."""
    return next(folder / name for name in driver.PRIVATE.values() if (folder / name).exists())


def surroundings(folder: Path) -> Surroundings:
    return driver.surroundings_of(private_of(folder))


def begin(folder: Path, kind: str) -> pe.Run:
    private = folder / driver.PRIVATE[kind]
    if not private.exists():
        driver.make_private(private)
    return run_recipe(driver.recipe(private), folder / "run", surroundings(folder))


def go_on(folder: Path) -> pe.Run:
    return resume_run(folder / "run", surroundings(folder))


@pytest.fixture(params=driver.PRIVATE)
def kind(request: pytest.FixtureRequest) -> str:
    """What the run is over."""
    return str(request.param)


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    """For each kind, the shareable files of a run that nothing disturbs."""

    @cache
    def of(kind: str) -> dict[str, bytes]:
        return shareable(begin(tmp_path_factory.mktemp("whole"), kind).folder)

    return of


@pytest.fixture
def whole(wholes: Callable[[str], dict[str, bytes]], kind: str) -> dict[str, bytes]:
    return wholes(kind)


class Told(Progress):
    """Keeps what a run warns of."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def sentence_of(folder: Path, kind: str) -> str | None:
    """What stopped a run that is begun in `folder`; None when fewer calls were made than it takes to be refused."""
    try:
        begin(folder, kind)
    except PEError as error:
        return str(error)
    return None


class Refusing:
    """The n-th call, counted from 1, fails for lack of space, and so do all after it until `mend`."""

    def __init__(self, function: object, number: int) -> None:
        self._function, self._left = function, number

    def __call__(self, *arguments: object, **options: object) -> object:
        self._left -= 1
        if self._left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._function(*arguments, **options)


CALLS = ("fsync", "replace", "posix_fallocate")
NUMBERS = (2, 5, 9, 14, 20, 27, 65, 150)  # the last two while a run is published
REFUSED = [
    *(("images", failing, number) for failing in CALLS for number in NUMBERS),
    *(("texts", failing, number) for failing, number in zip(CALLS, (9, 27, 65), strict=True)),
]


@pytest.mark.parametrize(("kind", "failing", "number"), REFUSED)
def test_a_disk_that_refuses_is_one_sentence_and_the_run_goes_on(
    tmp_path: Path, whole: dict[str, bytes], kind: str, failing: str, number: int
) -> None:
    with pytest.MonkeyPatch.context() as broken:
        if failing == "replace":
            refusing = Refusing(Path.replace, number)
            broken.setattr(Path, "replace", lambda self, target: refusing(self, target))
        else:
            broken.setattr(os, failing, Refusing(getattr(os, failing), number))
        said = sentence_of(tmp_path, kind)
    assert said is None or "No space left on device" in said
    finished = go_on(tmp_path) if (tmp_path / "run").exists() else begin(tmp_path, kind)
    assert shareable(finished.folder) == whole


@pytest.fixture
def stopped(tmp_path: Path, kind: str) -> Path:
    """A run that a limit stopped in the middle of an iteration, with S_0, S_1 and some chunks there."""
    private = tmp_path / driver.PRIVATE[kind]
    driver.make_private(private)
    content = driver.recipe(private).model_dump()
    recipe = pe.engine.execution.Recipe.parse(content | {"limits": {"max_images": 95}}, "the test")
    with pytest.raises(LimitReached, match=r"`pe resume .*run --set limits\.max_images=…` goes on"):
        run_recipe(recipe, tmp_path / "run", surroundings(tmp_path))
    return tmp_path


def finish(folder: Path) -> pe.Run:
    return resume_run(folder / "run", surroundings(folder), driver.recipe(private_of(folder)))


def test_a_limit_stops_at_a_chunk_and_raising_it_goes_on(stopped: Path, whole: dict[str, bytes]) -> None:
    finished = finish(stopped)
    files = shareable(finished.folder)
    assert {name for name in files if files[name] != whole[name]} <= {
        "recipe.yaml",  # it holds the limit
        "certificate.json",
        "certificate.md",
    }
    asked = (stopped / "asked").read_text().split()
    assert len(asked) == len(set(asked))


def test_a_damaged_chunk_is_asked_for_again(stopped: Path, whole: dict[str, bytes]) -> None:
    chunk = sorted((stopped / "run" / "confidential" / "chunks").iterdir())[-1]
    chunk.write_bytes(chunk.read_bytes()[:-1])
    finished = finish(stopped)
    assert shareable(finished.folder)["synthetic.npz"] == whole["synthetic.npz"]


COLUMNS = ("000/{kind}", "001/labels")


def damage(folder: Path, name: str) -> str:
    """Change a file of the run; what had been asked for until then."""
    path = folder / "run" / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    return (folder / "asked").read_text()


@pytest.mark.parametrize("column", COLUMNS)
def test_a_damaged_population_is_made_anew_where_that_is_free_and_sure(
    stopped: Path, whole: dict[str, bytes], kind: str, column: str
) -> None:
    name = f"populations/{column.format(kind=kind)}.npy"
    before = damage(stopped, name)
    files = shareable(finish(stopped).folder)
    assert files[name] == whole[name]
    assert files["synthetic.npz"] == whole["synthetic.npz"]
    asked = (stopped / "asked").read_text().removeprefix(before).split()
    assert len(set(asked) & set(before.split())) == driver.POPULATION


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("reason", ["paid", "not deterministic"])
def test_a_damaged_population_that_would_cost_or_come_out_otherwise_is_named(
    stopped: Path, kind: str, column: str, reason: str
) -> None:
    name = f"populations/{column.format(kind=kind)}.npy"
    before = damage(stopped, name)
    around, content = surroundings(stopped), driver.recipe(private_of(stopped)).model_dump()
    if reason == "paid":
        content["api"] |= {"price": {"image": 0.1}}
        content |= {"limits": {"max_cost": 100}}
    else:
        around = dataclasses.replace(around, api=type(around.api)(stopped / "asked", deterministic=False))
    recipe = pe.engine.execution.Recipe.parse(content, "the test")
    with pytest.raises(DamagedFile, match=name):
        resume_run(stopped / "run", around, recipe)
    assert (stopped / "asked").read_text() == before


def test_a_population_that_comes_out_otherwise_is_not_taken(stopped: Path, kind: str) -> None:
    around = surroundings(stopped)
    counted: type = type(around.api)

    class Changed(counted):
        def random_api(self, request: RandomRequest) -> Answer:
            answer: Answer = super().random_api(request)
            backwards = answer.samples.take(np.arange(len(answer.samples))[::-1])
            return dataclasses.replace(answer, samples=backwards)

    Changed.__module__, Changed.__qualname__ = counted.__module__, counted.__qualname__
    damage(stopped, f"populations/000/{kind}.npy")
    changed = dataclasses.replace(around, api=Changed(stopped / "asked"))
    with pytest.raises(
        DamagedFile, match=r"made anew it is not the same to the last bit \(on a GPU or another machine .+\): restore"
    ):
        resume_run(stopped / "run", changed, driver.recipe(private_of(stopped)))


def test_a_damaged_release_is_named_and_never_drawn_anew(stopped: Path) -> None:
    before = damage(stopped, "releases/histogram-1.npy")
    with pytest.raises(RunError, match=r"releases/histogram-1\.npy"):
        finish(stopped)
    assert (stopped / "asked").read_text() == before


def test_damaged_private_embeddings_are_computed_anew(stopped: Path, whole: dict[str, bytes]) -> None:
    path = stopped / "run" / "confidential" / "embeddings" / "private_embeddings.npy"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    assert shareable(finish(stopped).folder)["synthetic.npz"] == whole["synthetic.npz"]


def test_a_run_that_lost_its_journal_draws_nothing_anew(stopped: Path) -> None:
    for path in (stopped / "run" / "confidential").glob("journal.sqlite*"):
        path.unlink()
    before = (stopped / "asked").read_text()
    with pytest.raises(RunError, match="the journal does not know of it"):
        finish(stopped)
    assert (stopped / "asked").read_text() == before


def test_other_private_records_are_noticed(stopped: Path, kind: str) -> None:
    private = private_of(stopped)
    if kind == "texts":
        private.write_text(private.read_text().replace("a shade of 111,", "a shade of 101,"))
    else:
        with np.load(private) as archive:
            images, labels = archive["images"], archive["labels"]
        images[7, 0, 0, 0] ^= 1
        np.savez(private, images=images, labels=labels)
    with pytest.raises(RunError, match="The private records differ"):
        finish(stopped)


def test_another_recipe_is_refused_and_named(stopped: Path) -> None:
    content = driver.recipe(private_of(stopped)).model_dump()
    content["evolution"]["lookahead"] = 3
    other = pe.engine.execution.Recipe.parse(content, "the test")
    with pytest.raises(RunError, match=r"evolution\.lookahead: 2 → 3"):
        resume_run(stopped / "run", surroundings(stopped), other)


def test_a_second_writer_is_refused_with_the_first_one_s_process(stopped: Path) -> None:
    with (
        RunLock(stopped / "run" / "confidential" / "lock"),
        pytest.raises(RunError, match=f"is being written by process {os.getpid()}"),
    ):
        finish(stopped)
    finish(stopped)


def test_a_network_mount_is_refused(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path}/share nfs4 rw 0 0\n")
    check_local(tmp_path / "run", mounts)
    with pytest.raises(RunError, match=r"network file system \(nfs4\)"):
        check_local(tmp_path / "share" / "runs" / "run", mounts)


def test_an_older_state_that_is_restored_in_place_and_would_draw_again_counts_as_one_more_run(stopped: Path) -> None:
    recipe, run = driver.recipe(private_of(stopped)), stopped / "run"
    around = dataclasses.replace(surroundings(stopped), noise=None)
    shutil.copytree(run, stopped / "backup")
    resume_run(run, around, recipe)
    budget = DataSetLedger.beside(private_of(stopped))
    assert len(budget.read()["runs"]) == 1
    for path in run.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(stopped / "backup", run, dirs_exist_ok=True)
    resume_run(run, around, recipe)
    assert len(budget.read()["runs"]) == 2


def test_a_copy_that_goes_on_counts_as_one_more_run_and_a_run_that_was_moved_does_not(stopped: Path) -> None:
    recipe = driver.recipe(private_of(stopped))
    shutil.copytree(stopped / "run", stopped / "copy")
    (stopped / "run").rename(stopped / "moved")
    told = Told()
    for name in ("moved", "copy"):
        around = dataclasses.replace(surroundings(stopped), progress=told, noise=None)
        resume_run(stopped / name, around, recipe)
    budget = DataSetLedger.beside(private_of(stopped))
    names = [json.loads((stopped / name / IDENTITY).read_text())["run"] for name in ("moved", "copy")]
    assert set(budget.read()["runs"]) == set(names)
    assert len(set(names)) == 2
    assert [warning for warning in told.warnings if "copy" in warning] == [
        f"{stopped / 'copy'} is a copy, or was restored: it counts as one more run of the data set's ledger."
    ]
    assert pe.Run.open(stopped / "copy").guarantee["data_set"] == budget.total(1e-5)
