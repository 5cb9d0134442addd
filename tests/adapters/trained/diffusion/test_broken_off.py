"""Fits that break off, or are stopped, go on where they were, and their ledger counts all that ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from adapters.trained import diffusion_networks as pretraining
from adapters.trained.dp_sgd.training import Training
from adapters.trained.noisy_mean import DPMERF
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.errors import BudgetExceeded, Interrupted
from pe.privacy.ledger import MemoryStore
from pe.privacy.noise import UnsafeSeededNoise
from pe.progress import Progress, Task
from pe.store.journal import Journal
from pe.store.writer import read_journal
from tests.adapters.trained.diffusion.small import (
    BLOCKS,
    FIRST,
    Broken,
    breaking,
    counted,
    fitting,
    private_file,
    recipe,
    releases,
    trainer,
)


@pytest.mark.parametrize("kind", ["privimage", "dp_ldm", "dp_feta"])
def test_a_fit_that_breaks_off_in_a_later_block_goes_on_and_counts_all_that_ran(kind: str, tmp_path: Path) -> None:
    path = private_file(tmp_path)
    with breaking(after=1), pytest.raises(Broken):
        run_recipe(recipe(path, kind), tmp_path / "run", Surroundings())
    kept = {file.name: file.read_bytes() for file in (tmp_path / "run" / "releases").iterdir()}
    assert "fit-training-1.npy" in kept
    assert "fit-training-2.npy" not in kept
    assert not (tmp_path / "run" / "model").exists()
    with counted(pretraining, "train") as trained, counted(Training, "block") as blocks:
        run = resume_run(tmp_path / "run", Surroundings())
    assert len(blocks) == 1
    assert not trained
    assert not (run.confidential / "fit").exists()
    for name, content in kept.items():
        assert (run.folder / "releases" / name).read_bytes() == content
    assert releases(run) == [(name, 1) for name in (*FIRST.get(kind, []), *BLOCKS)]
    assert 7.99 < run.guarantee["epsilon"] <= 8


@pytest.mark.parametrize("kind", ["pdp_diffusion", "dp_feta"])
def test_a_fit_that_breaks_off_before_its_first_block_does_not_train_on_public_images_again(
    kind: str, tmp_path: Path
) -> None:
    path = private_file(tmp_path)
    with breaking(after=0), pytest.raises(Broken):
        run_recipe(recipe(path, kind), tmp_path / "run", Surroundings())
    with counted(pretraining, "train") as trained, counted(DPMERF, "fit") as fits:
        run = resume_run(tmp_path / "run", Surroundings())
    assert not trained
    assert not fits
    assert releases(run) == [(name, 1) for name in (*FIRST.get(kind, []), *BLOCKS)]
    assert not any("pretrained" in file["file"] for file in run.guarantee["covered"])


def test_broken_off_or_not_the_same_noise_makes_the_same_model(tmp_path: Path) -> None:
    class Foreseen(UnsafeSeededNoise):
        """Draws by what is asked, and not by what was drawn before, which a crash forgets."""

        def __init__(self) -> None:
            super().__init__(0)

        def discrete_gaussian(self, shape: tuple[int, ...], scale: float) -> np.ndarray:
            return np.zeros(shape, dtype=np.int64)

        def gaussian(self, count: int, scale: float) -> np.ndarray:
            return np.random.default_rng(1).normal(scale=scale, size=count)

        def coins(self, count: int, rate: float) -> np.ndarray:
            return np.random.default_rng(2).random(count) < rate

    models = []
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
        path, surroundings = private_file(tmp_path), Surroundings(noise=Foreseen())
        if name == "whole":
            run = run_recipe(recipe(path, "dp_ldm"), tmp_path / name / "run", surroundings)
        else:
            with breaking(after=1), pytest.raises(Broken):
                run_recipe(recipe(path, "dp_ldm"), tmp_path / name / "run", surroundings)
            run = resume_run(tmp_path / name / "run", surroundings)
        models.append((run.folder / "model" / "unet" / "diffusion_pytorch_model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_once_all_is_released_the_private_records_are_needed_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = private_file(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(pretraining, "write_model", lambda *_: (_ for _ in ()).throw(Broken()))
        with pytest.raises(Broken):
            run_recipe(recipe(path, "privimage"), tmp_path / "run", Surroundings())
    path.unlink()
    run = resume_run(tmp_path / "run", Surroundings())
    assert {charges for _, charges in releases(run)} == {1}


def test_a_model_that_the_journal_does_not_know_of_is_written_again_from_its_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, add_files = private_file(tmp_path), Journal.add_files

    def dies(journal: Journal, digests: Mapping[str, str]) -> None:
        if any(name.startswith("model/") for name in digests):
            raise Broken  # between the folder's appearance and its entry
        add_files(journal, digests)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "add_files", dies)
        with pytest.raises(Broken):
            run_recipe(recipe(path), tmp_path / "run", Surroundings())
    assert (tmp_path / "run" / "model").is_dir()
    with counted(Training, "block") as blocks:
        run = resume_run(tmp_path / "run", Surroundings())
    assert not blocks
    with read_journal(run) as journal:
        assert "model/fitted.json" in journal.files("model/")
    assert releases(run) == [(name, 1) for name in BLOCKS]


class StopsAt(Progress):
    """Asks the run to stop once a task of that name has come so far."""

    def __init__(self, name: str, stop: Event) -> None:
        self._name, self._stop = name, stop

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[Task]:
        outer = self

        class Watching(Task):
            def advance(self, count: int, spent: str = "") -> None:
                if description == outer._name:
                    outer._stop.set()

        yield Watching()


@pytest.mark.parametrize(
    ("task", "drawn"),
    [
        ("training on public images", ["fit/semantics"]),
        ("training on the private records", ["fit/semantics", BLOCKS[0]]),
    ],
)
def test_it_stops_where_it_is_asked_to_and_goes_on(task: str, drawn: list[str], tmp_path: Path) -> None:
    stop, path = Event(), private_file(tmp_path)
    with pytest.raises(Interrupted, match="Stopped as asked"):
        run_recipe(recipe(path, "privimage"), tmp_path / "run", Surroundings(progress=StopsAt(task, stop), stop=stop))
    there = {file.name for file in (tmp_path / "run" / "releases").iterdir()}
    assert there == {f"{name.replace('/', '-')}.npy" for name in drawn}
    run = resume_run(tmp_path / "run", Surroundings())
    assert releases(run) == [(name, 1) for name in ("fit/semantics", *BLOCKS)]


def test_where_traces_of_a_broken_block_survive_it_is_charged_again_and_refused(tmp_path: Path) -> None:
    model, store = trainer(), MemoryStore()
    with breaking(after=1), pytest.raises(Broken):
        model.fit(fitting(model, tmp_path / "model", store))
    with pytest.raises(BudgetExceeded):
        model.fit(fitting(model, tmp_path / "model", store))
