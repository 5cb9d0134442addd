"""A run that draws nothing costs nothing: it is struck out of the data set's ledger, by itself or by hand."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import pe
from pe.engine.execution import Surroundings, resume_run
from pe.engine.private_side import IDENTITY, forget_run
from pe.errors import APIError, PEError, PrivacyError, RecipeError, RunError
from pe.privacy.data_set import DataSetLedger
from pe.store.durable import RunLock
from pe.store.run import purge
from pe.store.writer import read_journal
from tests.cli.typed import pe as command
from tests.durability.driver import forked
from tests.generators import Mean, Shades

SETTINGS = {"epsilon": 1.0, "delta": 1e-5, "population": 20, "iterations": 2, "lookahead": 0}


class Down(Shades):
    """Answers the first request alone."""

    def random_api(self, request: pe.RandomRequest) -> pe.Answer:
        if self.random_requests:
            raise APIError("The endpoint is down.")
        return super().random_api(request)


class Dying(Down):
    """Ends its process at the second request."""

    def random_api(self, request: pe.RandomRequest) -> pe.Answer:
        if self.random_requests:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().random_api(request)


@pytest.fixture
def private(tmp_path: Path) -> pe.ImageNpz:
    return data_in(tmp_path)


def data_in(folder: Path) -> pe.ImageNpz:
    path = folder / "private.npz"
    if not path.exists():
        images = np.random.default_rng(0).integers(0, 256, (40, 4, 4, 1), dtype=np.uint8)
        np.savez(path, images=images, labels=np.array(["a", "b"] * 20))
    return pe.ImageNpz(path, size=4, channels=1, classes=["a", "b"], declared_size=40)


def evolve(private: pe.ImageNpz, out: Path, api: Any, **changes: Any) -> pe.Run:
    return pe.evolve(private, api, embedding=Mean(), out=out, **SETTINGS | changes)


def die(folder: Path) -> None:
    evolve(data_in(folder), folder / "run", _as_shades(Dying()))


def _as_shades(api: Shades) -> Shades:
    """By the class that goes on with the run."""
    type(api).__qualname__, type(api).__module__ = Shades.__qualname__, Shades.__module__
    return api


@pytest.fixture
def dead(private: pe.ImageNpz, tmp_path: Path) -> Path:
    """A run that was killed while it made S_0: it is entered, and has drawn nothing."""
    process = forked(die, tmp_path)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert len(ledger_of(private).read()["runs"]) == 1
    return tmp_path / "run"


def ledger_of(private: pe.ImageNpz) -> DataSetLedger:
    return DataSetLedger.beside(private.path)


def go_on(folder: Path) -> pe.Run:
    return resume_run(folder, Surroundings(api=Shades(), embedding=Mean()))


def test_a_run_whose_generator_fails_before_anything_is_drawn_is_struck_out_and_entered_when_it_goes_on(
    private: pe.ImageNpz, tmp_path: Path
) -> None:
    with pytest.raises(APIError, match="is down"):
        evolve(private, tmp_path / "run", _as_shades(Down()))
    assert ledger_of(private).read()["runs"] == {}
    run = go_on(tmp_path / "run")
    assert (
        run.guarantee["data_set"]
        == ledger_of(private).total(1e-5)
        == pytest.approx({"epsilon": run.guarantee["epsilon"], "delta": 1e-5, "runs": 1})
    )
    assert evolve(private, tmp_path / "next", Shades()).guarantee["data_set"]["runs"] == 2


def test_a_run_that_fails_once_something_is_drawn_stays_entered(private: pe.ImageNpz, tmp_path: Path) -> None:
    class Late(Shades):
        def variation_api(self, request: pe.VariationRequest) -> pe.Answer:
            raise APIError("The endpoint is down.")

    with pytest.raises(APIError):
        evolve(private, tmp_path / "run", Late())
    assert len(ledger_of(private).read()["runs"]) == 1
    with pytest.raises(RunError, match="has drawn noise for histogram/1, which counts for good: its entry stays"):
        forget_run(tmp_path / "run", ledger_of(private))
    assert len(ledger_of(private).read()["runs"]) == 1


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        ("public_images", {"by_label": True}, "no images of label 'b'; its labels are 'a'"),
        ("openai_images", {"prompts": {"a": "an a"}}, "prompts: there is none for the label 'b'"),
        ("pixel_diffusion", {"classes": {"a": 0}}, "classes: there is none for the label 'b'"),
        ("diffusion_server", {"classes": {"a": 0}}, "classes: there is none for the label 'b'"),
    ],
)
def test_a_generator_that_does_not_serve_a_label_is_told_by_the_plan_and_refused_before_there_is_a_run(
    private: pe.ImageNpz, tmp_path: Path, kind: str, settings: dict[str, Any], sentence: str
) -> None:
    np.savez(tmp_path / "public.npz", images=np.zeros((4, 4, 4, 1), np.uint8), labels=np.array(["a"] * 4))
    needed = {
        "public_images": {"path": str(tmp_path / "public.npz"), "size": 4, "channels": 1},
        "openai_images": {"base_url": "http://127.0.0.1:9/v1", "model": "m", "key_env": None, "image_size": 4},
        "pixel_diffusion": {"model": str(tmp_path / "none"), "steps": 2},
        "diffusion_server": {"base_url": "http://127.0.0.1:9"},
    }.get(kind, {})
    api = {"kind": kind, **needed, **settings}
    recipe = {
        "name": "short",
        "private": {"kind": "npz", "path": str(private.path), "size": 4, "channels": 1, "classes": ["a", "b"]},
        "api": api,
        "privacy": {"epsilon": 1, "delta": 1e-5},
        "evolution": {"population": 20, "iterations": 2, "lookahead": 0},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    told = command("plan", "recipe.yaml", cwd=tmp_path)
    said = [one for one in (told.stdout + told.stderr).splitlines() if sentence in one]
    assert [one.startswith(("warning: A run would not start: ", "pe: ")) for one in said] == [True]
    with pytest.raises(RecipeError, match=sentence):
        evolve(private, tmp_path / "run", pe.api(**api))
    assert not (tmp_path / "run").exists()
    assert not ledger_of(private).path.exists()


def test_a_killed_run_that_has_drawn_nothing_is_forgotten_and_entered_again_before_it_draws(
    private: pe.ImageNpz, dead: Path
) -> None:
    said = command("ledger", private.path, "--forget", dead, cwd=dead.parent)
    assert (said.returncode, said.stdout.splitlines()[0]) == (0, "0 runs: ε = 0.")
    run = go_on(dead)
    assert run.guarantee["data_set"]["runs"] == 1
    assert ledger_of(private).total(1e-5)["epsilon"] == run.guarantee["epsilon"]
    assert evolve(private, dead.parent / "next", Shades()).guarantee["data_set"]["runs"] == 2


def test_a_run_that_is_being_run_is_not_forgotten(private: pe.ImageNpz, dead: Path) -> None:
    with RunLock(dead / "confidential" / "lock"), pytest.raises(RunError, match="is being written by process"):
        forget_run(dead, ledger_of(private))
    assert len(ledger_of(private).read()["runs"]) == 1


def test_a_copy_does_not_strike_out_the_run_that_it_was_made_of(private: pe.ImageNpz, dead: Path) -> None:
    shutil.copytree(dead, dead.parent / "copy")
    go_on(dead)
    with pytest.raises(PEError, match="is a copy, or was moved"):
        forget_run(dead.parent / "copy", ledger_of(private))
    with pytest.raises(PrivacyError, match="has begun to draw noise, so its entry stays"):
        ledger_of(private).strike(json.loads((dead / IDENTITY).read_text())["run"])


def test_an_older_state_that_is_restored_strikes_nothing_out(private: pe.ImageNpz, dead: Path) -> None:
    shutil.copytree(dead, dead.parent / "backup")
    go_on(dead)
    for path in dead.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(dead.parent / "backup", dead, dirs_exist_ok=True)
    with pytest.raises(PrivacyError, match="has begun to draw noise, so its entry stays"):
        forget_run(dead, ledger_of(private))
    assert len(ledger_of(private).read()["runs"]) == 1


def test_a_run_without_its_first_journal_stays_entered(private: pe.ImageNpz, dead: Path, tmp_path: Path) -> None:
    finished = evolve(private, tmp_path / "finished", Shades())
    purge(finished)
    with pytest.raises(RunError, match="has no journal, which alone can tell that nothing was drawn"):
        forget_run(finished.folder, ledger_of(private))
    for path in (dead / "confidential").glob("journal.sqlite*"):
        path.write_bytes(b"") if path.suffix == ".sqlite" else path.unlink()
    with pytest.raises(RunError, match="has lost its first journal, so what was drawn is unknown"):
        forget_run(dead, ledger_of(private))
    assert len(ledger_of(private).read()["runs"]) == 2


def test_a_run_that_is_struck_out_while_it_goes_on_draws_nothing(private: pe.ImageNpz, tmp_path: Path) -> None:
    class Struck(Shades):
        def random_api(self, request: pe.RandomRequest) -> pe.Answer:
            (run,) = ledger_of(private).read()["runs"] or [""]
            if run:  # as by a duplicate of the run, with its disk
                ledger_of(private).strike(run)
            return super().random_api(request)

    with pytest.raises(PrivacyError, match="was struck out of it, so nothing is drawn"):
        evolve(private, tmp_path / "run", _as_shades(Struck()))
    with read_journal(pe.Run.open(tmp_path / "run")) as journal:
        assert journal.charges() == []
    assert list((tmp_path / "run" / "releases").iterdir()) == []
    assert go_on(tmp_path / "run").guarantee["data_set"]["runs"] == 1


def test_a_run_of_another_data_set_is_not_struck_out_here(private: pe.ImageNpz, dead: Path, tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="does not hold this run: name the file that does"):
        forget_run(dead, DataSetLedger(tmp_path / "other.json"))


def test_the_plan_says_that_the_cap_will_refuse_the_run_and_makes_no_file(private: pe.ImageNpz, tmp_path: Path) -> None:
    recipe = {
        "name": "next",
        "private": {"kind": "npz", "path": str(private.path), "size": 4, "channels": 1, "classes": ["a", "b"]},
        "api": {"kind": "glyphs", "size": 4},
        "privacy": {"epsilon": 1, "delta": 1e-5},
        "evolution": {"population": 20, "iterations": 2, "lookahead": 0},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))

    def capped() -> list[str]:
        told = json.loads(command("plan", "recipe.yaml", "--json", cwd=tmp_path).stdout)["warnings"]
        return [one for one in told if "above the cap of ε = 1.2" in one and str(ledger_of(private).path) in one]

    assert capped() == []
    assert not ledger_of(private).path.exists()
    command("ledger", private.path, "--cap-epsilon", 1.2, "--cap-delta", 1e-5, cwd=tmp_path)
    assert capped() == []
    evolve(private, tmp_path / "first", Shades())
    before = ledger_of(private).path.read_bytes()
    (sentence,) = capped()
    assert sentence.startswith("A run would not start: this run would bring the data set's total to ε = 1.4")
    assert ledger_of(private).path.read_bytes() == before
