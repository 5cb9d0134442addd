"""Loggers are told shareable values alone, and not when private work was done."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pe
from pe.engine.execution import Surroundings, resume_run, run_recipe, stored_recipe
from pe.engine.loggers import logger
from pe.engine.python import read_arguments
from pe.errors import LimitReached, MissingDependency, PluginError, RecipeError
from pe.recipe.schema import Recipe
from pe.report.loggers import Logged, logged
from pe.report.sections import public_plan
from pe.store.run import Run
from tests.generators import Mean, Shades


class Told(pe.Progress):
    """Keeps what it is told, and what of the run was there by then."""

    def __init__(self, fails: bool = False) -> None:
        self.logged: list[Logged] = []
        self.certified: list[bool] = []
        self.closed, self.fails, self.warnings = 0, fails, []

    def log(self, logged: Logged) -> None:
        if self.fails:
            raise OSError("no route to host")
        self.logged.append(logged)
        self.certified.append(self.folder.joinpath("certificate.json").exists())

    def close(self) -> None:
        self.closed += 1

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def recipe_of(folder: Path, clock: str, **limits: object) -> Recipe:
    images = np.full((60, 4, 4, 1), 77, np.uint8)
    np.savez(folder / "planted.npz", images=images, labels=np.array(["a/b", "c"] * 30))
    data = pe.ImageNpz(folder / "planted.npz", size=4, channels=1, classes=["a/b", "c"], declared_size=50)
    evolution = {"population": 20, "iterations": 1, "lookahead": 0, "noise_multiplier": 1.0, "delta": 1e-5}
    given = {"name": "told", "seed": 0}
    return read_arguments("test", data, Shades(), Mean(), given, evolution | {"public_clock": clock} | limits)


def run_told(folder: Path, told: Told, clock: str = "always", **limits: object) -> pe.Run:
    told.folder = folder / "run"
    given = Surroundings(api=Shades(), embedding=Mean(), loggers=(told,), progress=told)
    return run_recipe(recipe_of(folder, clock, **limits), folder / "run", given)


def test_a_logger_is_told_shareable_values_of_each_iteration(tmp_path: Path) -> None:
    told = Told()
    run = run_told(tmp_path, told)
    assert [one.t for one in told.logged] == [0, 1]
    assert told.certified == [False] * 2
    assert told.closed == 1
    last = told.logged[-1]
    assert last.sizes == {"a/b": 10, "c": 10}
    assert (last.images, last.cost, last.noun, last.run) == (40, 0.0, "images", "run")
    assert last.epsilon == run.guarantee["epsilon"]
    votes = np.load(tmp_path / "run" / "releases" / "histogram-1.npy")
    grid = run.guarantee["releases"][-1]["grid"]
    assert last.votes["highest"] == votes.max() / grid
    numbers = last.numbers()
    assert numbers["size/0 a_b"] == 10
    assert all(type(value) in (int, float) for value in numbers.values())


def test_what_a_logger_gets_is_made_of_what_an_export_holds_but_for_what_was_billed(tmp_path: Path) -> None:
    told = Told()
    export = Run.open(run_told(tmp_path, told, "never").export(tmp_path / "export" / "run"))
    _, plan = public_plan(export)
    epsilon = export.guarantee["epsilon"]
    again = [logged(export, plan, t, epsilon, 1e-5, one.images, one.cost) for t, one in enumerate(told.logged)]
    assert again == told.logged
    kinds = {"str", "int", "float", "dict", "bytes"}
    assert {type(value).__name__ for one in told.logged for value in vars(one).values()} <= kinds


def test_without_a_clock_a_logger_is_told_once_the_run_has_ended(tmp_path: Path) -> None:
    told = Told()
    with pytest.raises(LimitReached):
        run_told(tmp_path, told, "never", max_images=25)
    assert (told.logged, told.closed) == ([], 1)
    again = Told()
    again.folder = tmp_path / "run"
    given = Surroundings(api=Shades(), embedding=Mean(), loggers=(again,))
    resume_run(tmp_path / "run", given, stored_recipe(tmp_path / "run", ("limits.max_images=100",)))
    assert again.certified == [True] * 2
    assert [one.images for one in again.logged] == [None, 40]


def test_a_logger_that_fails_does_not_end_the_run(tmp_path: Path) -> None:
    told = Told(fails=True)
    assert len(run_told(tmp_path, told, "never").synthetic) == 20
    assert [one for one in told.warnings if "Told failed (no route to host)" in one]
    assert told.closed == 0


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        ("tensorboard", RecipeError, "The logger is 'tensorboard': give NAME=WHERE"),
        (object(), PluginError, "The logger object has no method 'log': see pe.Logger"),
        ("tensorbord=logs", PluginError, "Unknown logger 'tensorbord'; .*tensorboard"),
    ],
)
def test_a_logger_is_refused_in_a_sentence(given: str, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        logger(given)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_logger_that_is_not_installed_names_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pe.plugins.registry.libraries", lambda _, extra: {extra: ""})
    with pytest.raises(MissingDependency, match=rf"The logger '{name}' needs .*\[{name}\]"):
        logger(f"{name}=there")


def test_from_python_a_run_and_its_resumption_tell_a_logger_and_an_object_of_one_s_own(tmp_path: Path) -> None:
    told = Told()
    told.folder = tmp_path / "run"
    images = np.full((60, 4, 4, 1), 77, np.uint8)
    np.savez(tmp_path / "planted.npz", images=images, labels=np.array(["a", "c"] * 30))
    data = pe.ImageNpz(tmp_path / "planted.npz", size=4, channels=1, classes=["a", "c"], declared_size=60)
    given = {
        "epsilon": 50.0,
        "delta": 1e-5,
        "population": 20,
        "iterations": 2,
        "lookahead": 0,
        "public_clock": "always",
    }
    own = {"embedding": Mean(), "progress": pe.Progress(), "loggers": [told]}
    with pytest.raises(LimitReached):
        pe.evolve(data, Shades(), out=tmp_path / "run", max_images=30, **own, **given)
    assert [one.t for one in told.logged] == [0]
    own.pop("embedding")
    pe.resume(tmp_path / "run", api=Shades(), embedding=Mean(), changes={"limits.max_images": 900}, **own)
    assert [one.t for one in told.logged] == [0, 0, 1, 2]
    assert told.closed == 2
    with pytest.raises(PluginError, match="'tensorbord'"):
        pe.evolve(data, Shades(), out=tmp_path / "other", loggers=["tensorbord=logs"], embedding=Mean(), **given)
    assert not (tmp_path / "other").exists()
