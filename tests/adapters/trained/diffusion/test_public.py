"""A fit's public images are compared with the private records: by the run that fits, and those that reuse it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pe.engine.execution import Surroundings, run_recipe
from pe.errors import RecipeError
from pe.progress import Progress
from tests.adapters.trained.diffusion.small import CLASSES, api, private_file, recipe, records


def published(folder: Path, seed: int) -> Path:
    images = records(seed=seed)
    np.savez(folder / f"{seed}.npz", images=images.samples, labels=np.array(CLASSES)[images.labels])
    return folder / f"{seed}.npz"


@pytest.mark.parametrize("kind", ["pdp_diffusion", "privimage"])
def test_a_fit_on_public_images_that_are_private_records_is_refused(kind: str, tmp_path: Path) -> None:
    private = private_file(tmp_path)
    changed = {"api": api(kind, public=str(published(tmp_path, seed=5)))}  # the same records, in another file
    with pytest.raises(RecipeError, match=r"^24 of 24 public images are private records"):
        run_recipe(recipe(private, **changed), tmp_path / "run", Surroundings())
    assert not (tmp_path / "run").exists()


def test_a_model_that_was_fitted_on_this_run_s_records_as_public_images_is_refused(tmp_path: Path) -> None:
    theirs, ours = private_file(tmp_path), published(tmp_path, seed=6)
    first = recipe(theirs, api=api("pdp_diffusion", public=str(ours)))
    run_recipe(first, tmp_path / "first", Surroundings())
    reusing = {"api": {"kind": "trained", "path": str(tmp_path / "first"), "private_sets": "disjoint"}}
    second = recipe(ours, iterations=1, **reusing)
    with pytest.raises(RecipeError, match=r"^The public images .*6\.npz are the private records"):
        run_recipe(second, tmp_path / "second", Surroundings())
    ours.rename(tmp_path / "moved.npz")
    told: list[str] = []

    class Listener(Progress):
        def warn(self, message: str) -> None:
            told.append(message)

    moved = recipe(tmp_path / "moved.npz", iterations=1, **reusing)
    run_recipe(moved, tmp_path / "second", Surroundings(progress=Listener()))
    assert any("6.npz are not there: they are not compared with the records" in sentence for sentence in told)
