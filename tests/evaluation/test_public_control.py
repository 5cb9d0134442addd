"""The control `public`: the labelled public images that a fitted generator was given."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pe.engine.execution import RunContext, run_recipe
from pe.evaluation.controls import public_samples
from pe.judgement.labelled import Labelled
from pe.progress import Progress
from pe.recipe.schema import Recipe
from tests.contracts.fitted import CLASSES, COUNT, FITS, SIDE, make
from tests.evaluation.conftest import evaluate

EACH = 8
WITH_PUBLIC = [kind for kind, settings in FITS.items() if "public" in settings]
PUBLIC, PRIVATE, TEST = (
    np.random.default_rng(0)
    .integers(0, 256, (3, EACH * len(CLASSES), SIDE, SIDE, 1))
    .astype(np.uint8)
)
NAMES = np.array(CLASSES * EACH)


def written(path: Path, pixels: np.ndarray, names: np.ndarray | None = NAMES) -> str:
    labels = {} if names is None else {"labels": names}
    np.savez(path, images=pixels, **labels)
    return str(path)


def given(folder: Path, names: np.ndarray | None) -> dict[str, Any]:
    """The settings of a generator with public images of these labels."""
    return {"public": {"kind": "npz", "path": written(folder / "public.npz", PUBLIC, names)}}


def recipe(folder: Path, kind: str, settings: dict[str, Any]) -> Recipe:
    path = written(folder / "private.npz", PRIVATE)
    private = {"kind": "npz", "path": path, "size": SIDE, "channels": 1}
    content = {
        "private": private | {"classes": list(CLASSES), "declared_size": COUNT},
        "api": {"kind": kind} | FITS[kind] | settings,
        "embedding": {"kind": "pixels", "size": SIDE},
        "privacy": {"epsilon": 8, "delta": 1e-3},
        "evolution": {"iterations": 0, "population": 2 * len(CLASSES)},
    }
    return Recipe.parse(content, "the test")


def control(folder: Path, kind: str, names: np.ndarray | None, each: int = 3) -> Labelled | None:
    settings = given(folder, names)
    labels = np.repeat(np.arange(len(CLASSES), dtype=np.int32), each)
    return public_samples(recipe(folder, kind, settings), make(kind, settings), labels)


@pytest.mark.parametrize("kind", WITH_PUBLIC)
def test_it_has_public_images_with_their_own_labels_as_many_of_each_as_are_evaluated(
    kind: str, tmp_path: Path
) -> None:
    found = control(tmp_path, kind, NAMES)
    assert found is not None
    assert np.bincount(found.labels).tolist() == [3] * len(CLASSES)
    known = {
        pixels.tobytes(): CLASSES.index(name) for pixels, name in zip(PUBLIC, NAMES, strict=True)
    }
    assert len({image.tobytes() for image in found.images.pixels}) == len(found)
    for image, label in zip(found.images.pixels, found.labels, strict=True):
        assert known[image.tobytes()] == label


def test_fewer_than_are_evaluated_are_all_of_them(tmp_path: Path) -> None:
    found = control(tmp_path, "dp_gaussian", NAMES, 2 * EACH)
    assert found is not None
    assert np.bincount(found.labels).tolist() == [EACH] * len(CLASSES)


@pytest.mark.parametrize(
    "names",
    [
        None,
        np.where(NAMES == "3", "a public name", NAMES),
    ],
    ids=["without labels", "one label is missing"],
)
def test_there_is_none_without_all_labels_of_the_run(
    names: np.ndarray | None, tmp_path: Path
) -> None:
    assert control(tmp_path, "dp_gaussian", names) is None


@pytest.mark.parametrize(("names", "is_there"), [(NAMES, True), (None, False)])
def test_a_fitted_run_is_measured_beside_it(
    names: np.ndarray | None, is_there: bool, tmp_path: Path
) -> None:
    wanted = recipe(tmp_path, "dp_gaussian", given(tmp_path, names))
    run = run_recipe(wanted, tmp_path / "run", RunContext(progress=Progress()))
    test = written(tmp_path / "test.npz", TEST)
    controls = evaluate(run, test, api=None, embedding=None)["fidelity"].popitem()[1]["controls"]
    assert ("public" in controls) == is_there
    assert not is_there or controls["public"]["samples"] == 2 * len(CLASSES)


def test_a_run_is_evaluated_without_it_when_its_public_images_and_its_model_are_gone(
    tmp_path: Path,
) -> None:
    wanted = recipe(tmp_path, "dp_gaussian", given(tmp_path, NAMES))
    run = run_recipe(wanted, tmp_path / "run", RunContext(progress=Progress()))
    test = written(tmp_path / "test.npz", TEST)
    (tmp_path / "public.npz").unlink()
    shutil.rmtree(tmp_path / "run" / "model")
    values = evaluate(run, test, api=None, embedding=None, metrics=("fidelity",))
    assert "public" not in values["fidelity"].popitem()[1]["controls"]
    assert any("The control of public data is left out" in note for note in values["notes"])
