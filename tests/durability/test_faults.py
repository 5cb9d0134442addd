"""A disk that refuses, files that were damaged, folders that were copied: a clear sentence, and
runs that can go on.
"""

import dataclasses
import errno
import json
import os
import shutil
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import pe
from pe.engine.execution import resume_run, run_recipe
from pe.engine.private_side import IDENTITY
from pe.errors import DamagedFile, LimitReached, PEError, RunError
from pe.privacy.data_set import DataSetLedger
from pe.recipe.schema import Recipe
from pe.store.durable import RunLock
from tests.durability import driver
from tests.durability.test_kill import shareable
from tests.engine.small import Told

PRIVATE = driver.PRIVATE["images"]


def context(folder, **changes):
    return dataclasses.replace(driver.surroundings_of(folder / PRIVATE), **changes)


def changed_recipe(folder, **sections):
    """The small recipe, with other values in these sections."""
    content = driver.recipe(folder / PRIVATE).model_dump()
    return Recipe.parse(
        content | {name: (content[name] or {}) | one for name, one in sections.items()}, "the test"
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The shareable files of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    driver.carry_out(folder)
    return shareable(folder / "run")


def refusing(function, number):
    """The n-th call, counted from 1, fails for lack of space, and so do all after it."""
    calls = count(1)

    def called(*arguments):
        if next(calls) >= number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return function(*arguments)

    return called


REFUSED = [
    *(("fsync", number) for number in (5, 27, 150)),
    *(("replace", number) for number in (2, 14, 50)),
]


@pytest.mark.parametrize(("failing", "number"), [*REFUSED, ("posix_fallocate", 5)])
def test_a_disk_that_refuses_is_one_sentence_and_the_run_goes_on(tmp_path, whole, failing, number):
    owner = Path if failing == "replace" else os
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(owner, failing, refusing(getattr(owner, failing), number))
        with pytest.raises(PEError, match="No space left on device"):
            driver.carry_out(tmp_path)
    driver.carry_out(tmp_path)
    assert shareable(tmp_path / "run") == whole


@pytest.fixture
def stopped(tmp_path):
    """A run that a limit stopped in the middle of an iteration, with S_0, S_1 and some chunks
    there.
    """
    driver.make_private(tmp_path / PRIVATE)
    limited = changed_recipe(tmp_path, limits={"max_images": 95})
    with pytest.raises(LimitReached, match=r"`pe run .*run --set limits\.max_images=…` goes on"):
        run_recipe(limited, tmp_path / "run", context(tmp_path))
    return tmp_path


def finish(folder, **changes):
    return resume_run(folder / "run", context(folder, **changes), driver.recipe(folder / PRIVATE))


def damage(folder, name):
    """Change a file of the run; what had been asked for until then."""
    path = folder / "run" / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    return (folder / "asked").read_text()


def test_a_limit_stops_at_a_chunk_and_raising_it_goes_on_with_nothing_asked_for_twice(
    stopped, whole
):
    files = shareable(finish(stopped).folder)
    differ = {name for name in files if files[name] != whole[name]}
    assert differ <= {
        "recipe.yaml",
        "certificate.json",
        "certificate.md",
    }  # the recipe holds the limit
    asked = (stopped / "asked").read_text().split()
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize("damaged", ["chunks/*", "embeddings/private_embeddings.npy"])
def test_a_damaged_chunk_is_asked_for_again_and_damaged_private_embeddings_are_computed_anew(
    stopped, whole, damaged
):
    path = sorted((stopped / "run" / "confidential").glob(damaged))[-1]
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0")
    assert shareable(finish(stopped).folder)["synthetic.npz"] == whole["synthetic.npz"]


@pytest.mark.parametrize("column", ["000/images", "001/labels"])
def test_a_damaged_population_is_made_anew_where_that_is_free_and_sure(stopped, whole, column):
    name = f"populations/{column}.npy"
    before = damage(stopped, name)
    files = shareable(finish(stopped).folder)
    assert files[name] == whole[name]
    assert files["synthetic.npz"] == whole["synthetic.npz"]
    asked = (stopped / "asked").read_text().removeprefix(before).split()
    assert len(set(asked) & set(before.split())) == driver.POPULATION


@pytest.mark.parametrize("reason", ["paid", "not deterministic"])
def test_a_damaged_population_that_would_cost_or_come_out_otherwise_is_named(stopped, reason):
    name = "populations/000/images.npy"
    before = damage(stopped, name)
    around, recipe = context(stopped), driver.recipe(stopped / PRIVATE)
    if reason == "paid":
        recipe = changed_recipe(stopped, api={"price": {"image": 0.1}}, limits={"max_cost": 100})
    else:
        around = context(stopped, api=driver.Counted(stopped / "asked", deterministic=False))
    with pytest.raises(DamagedFile, match=name):
        resume_run(stopped / "run", around, recipe)
    assert (stopped / "asked").read_text() == before


def test_a_population_that_comes_out_otherwise_is_not_taken(stopped, monkeypatch):
    def backwards(self, request):
        answer = super(driver.Counted, self).random_api(request)
        return dataclasses.replace(
            answer, samples=answer.samples.take(np.arange(len(answer.samples))[::-1])
        )

    monkeypatch.setattr(driver.Counted, "random_api", backwards)
    damage(stopped, "populations/000/images.npy")
    said = r"could not be made again with the same bits, since another GPU or machine .+\. Restore"
    with pytest.raises(DamagedFile, match=said):
        finish(stopped)


@pytest.mark.parametrize("lost", [False, True])
def test_a_damaged_release_or_a_lost_journal_is_named_and_nothing_is_drawn_anew(stopped, lost):
    if lost:
        before = (stopped / "asked").read_text()
        for path in (stopped / "run" / "confidential").glob("journal.sqlite*"):
            path.unlink()
    else:
        before = damage(stopped, "releases/histogram-1.npy")
    with pytest.raises(
        RunError, match="the journal does not know of it" if lost else r"releases/histogram-1\.npy"
    ):
        finish(stopped)
    assert (stopped / "asked").read_text() == before


def test_other_private_records_are_noticed(stopped):
    private = stopped / PRIVATE
    with np.load(private) as archive:
        columns = dict(archive)
    columns["images"][7, 0, 0, 0] ^= 1
    np.savez(private, **columns)
    with pytest.raises(RunError, match="The private records differ"):
        finish(stopped)


def test_another_recipe_and_a_second_writer_are_refused_and_named(stopped):
    other = changed_recipe(stopped, evolution={"lookahead": 3})
    with pytest.raises(RunError, match=r"evolution\.lookahead: 2 → 3"):
        resume_run(stopped / "run", context(stopped), other)
    with (
        RunLock(stopped / "run" / "confidential" / "lock"),
        pytest.raises(RunError, match=f"is being written by process {os.getpid()}"),
    ):
        finish(stopped)
    finish(stopped)


def test_an_older_state_that_is_restored_in_place_and_would_draw_again_counts_as_one_more_run(
    stopped,
):
    run = stopped / "run"
    shutil.copytree(run, stopped / "backup")
    finish(stopped, noise=None)
    budget = DataSetLedger.beside(stopped / PRIVATE)
    assert len(budget.read()["runs"]) == 1
    for path in run.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(stopped / "backup", run, dirs_exist_ok=True)
    finish(stopped, noise=None)
    assert len(budget.read()["runs"]) == 2


def test_a_copy_that_goes_on_counts_as_one_more_run_and_a_run_that_was_moved_does_not(stopped):
    recipe, told = driver.recipe(stopped / PRIVATE), Told()
    shutil.copytree(stopped / "run", stopped / "copy")
    (stopped / "run").rename(stopped / "moved")
    for name in ("moved", "copy"):
        resume_run(stopped / name, context(stopped, progress=told, noise=None), recipe)
    budget = DataSetLedger.beside(stopped / PRIVATE)
    names = [
        json.loads((stopped / name / IDENTITY).read_text())["run"] for name in ("moved", "copy")
    ]
    assert set(budget.read()["runs"]) == set(names)
    assert len(set(names)) == 2
    assert [warning for warning in told.warnings if "copy" in warning] == [
        f"{stopped / 'copy'} is a copy, or was restored: it counts as one more run of the data "
        "set's ledger."
    ]
    assert pe.Run.open(stopped / "copy").guarantee["data_set"] == budget.total(1e-5)
