"""DP-ImgSyn: runs that fit, sample and evolve it, and what they begin with."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import pe
from adapters.trained.dp_imgsyn import DPImgSyn
from adapters.trained.fit import Sum
from pe.data.samples import SOFT_LABEL
from pe.engine.execution import Surroundings, resume_run, run_recipe, stored_recipe
from pe.engine.extend import extend_run
from pe.errors import APIError, PEError, RecipeError, RunError
from pe.fit.trainer import FitTerms
from pe.privacy.accounting import epsilon
from pe.privacy.ledger import Budget
from pe.privacy.release import Relation, Release
from pe.recipe.schema import Recipe
from tests.adapters.trained.dp_imgsyn.small import (
    COUNT,
    PUBLIC,
    SHAPE,
    asked,
    private_file,
    recipe,
)
from tests.adapters.trained.sources import source


def test_it_is_fitted_and_sampled_on_one_ledger_which_a_hand_computation_confirms(tmp_path: Path) -> None:
    run = run_recipe(recipe(private_file(tmp_path)), tmp_path / "run", Surroundings())
    names = {release["name"]: release for release in run.guarantee["releases"]}
    assert list(names) == ["fit/moments", "fit/training/1", "fit/training/2"]
    moments_, sigma = names["fit/moments"], names["fit/training/1"]["noise_multiplier"]
    by_hand = [
        Release("a", "discrete_gaussian", 1.0, moments_["noise_multiplier"], grid=moments_["grid"]),
        Release("b", "discrete_gaussian", 1, sigma, count=4, grid=2**30),
    ]
    assert run.guarantee["epsilon"] == pytest.approx(epsilon(by_hand, 1e-3), rel=1e-6)
    assert run.guarantee["epsilon"] <= 8
    terms = FitTerms(("a", "b"), SHAPE, COUNT, Relation.ADD_REMOVE, "record", Budget(0.1 * 8, 1e-3))
    alone = Sum("moments").release(terms)
    assert moments_["noise_multiplier"] == alone.noise_multiplier
    soft = run.population(0).conditions[SOFT_LABEL]
    np.testing.assert_allclose(soft.sum(axis=1), 1, rtol=1e-5)


def test_part_of_the_budget_fits_it_and_the_rest_evolves_it(tmp_path: Path) -> None:
    run = run_recipe(recipe(private_file(tmp_path), iterations=2), tmp_path / "run", Surroundings())
    names = [release["name"] for release in run.guarantee["releases"]]
    assert names == ["fit/moments", "fit/training/1", "fit/training/2", "histogram/1", "histogram/2"]
    assert run.guarantee["epsilon"] <= 8


def test_a_fit_that_is_gone_on_with_draws_nothing_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(BaseException):
        pass

    def broken(*_: Any) -> Any:
        raise Broken

    with monkeypatch.context() as patched:
        patched.setattr("adapters.trained.fit.noisy_sums", broken)
        with pytest.raises(Broken):
            run_recipe(recipe(private_file(tmp_path)), tmp_path / "run", Surroundings())
    kept = {path.name: path.read_bytes() for path in (tmp_path / "run" / "releases").iterdir()}
    assert set(kept) == {"fit-training-1.npy", "fit-training-2.npy"}
    run = resume_run(tmp_path / "run", Surroundings())
    assert all((run.folder / "releases" / name).read_bytes() == content for name, content in kept.items())
    assert [release["charges"] for release in run.guarantee["releases"]] == [1, 1, 1]


def test_public_images_may_lie_elsewhere_and_must_be_those_it_was_fitted_with(tmp_path: Path) -> None:
    public = tmp_path / "public.npz"
    images = np.random.default_rng(5).integers(0, 256, (40, *SHAPE)).astype(np.uint8)
    np.savez(public, images=images)
    private = private_file(tmp_path)
    run = run_recipe(recipe(private, public={"kind": "npz", "path": str(public)}), tmp_path / "run", Surroundings())
    moved = public.rename(tmp_path / "moved.npz")
    there = (f"api.public.path={moved}",)
    assert np.load(extend_run(run.folder, 3, 0.5, Surroundings(), there))["images"].shape == (3, *SHAPE)
    again = recipe(private).model_dump(mode="json", exclude_none=True)
    again["api"] = {"kind": "trained", "path": str(run.folder)}
    with pytest.raises(RecipeError, match=r"there is no \.npz file at '.*public\.npz'"):
        run_recipe(Recipe.parse(again, "the test"), tmp_path / "again", Surroundings())
    again["api"]["settings"] = {"public": {"path": str(moved)}}
    np.savez(moved, images=images[::-1])
    with pytest.raises(RecipeError, match=r"api\.public: the images of .*moved\.npz are not those with which"):
        run_recipe(Recipe.parse(again, "the test"), tmp_path / "again", Surroundings())
    assert not (tmp_path / "again").exists()
    np.savez(moved, images=images)
    assert len(run_recipe(Recipe.parse(again, "the test"), tmp_path / "again", Surroundings()).synthetic) > 0


def test_a_fit_that_is_gone_on_with_keeps_its_public_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(BaseException):
        pass

    def broken(*_: Any) -> Any:
        raise Broken

    for name, seed in (("first", 1), ("other", 2)):
        images = np.random.default_rng(seed).integers(0, 256, (40, *SHAPE)).astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images)
    wanted = recipe(private_file(tmp_path), public={"kind": "npz", "path": str(tmp_path / "first.npz")})
    with monkeypatch.context() as patched:
        patched.setattr("adapters.trained.fit.noisy_sums", broken)
        with pytest.raises(Broken):
            run_recipe(wanted, tmp_path / "run", Surroundings())
    others = stored_recipe(tmp_path / "run", (f"api.public.path={tmp_path / 'other.npz'}",))
    with pytest.raises(RunError, match=r"public images .*other\.npz are not those that .*run began with"):
        resume_run(tmp_path / "run", Surroundings(), others)
    (tmp_path / "first.npz").rename(tmp_path / "moved.npz")
    moved = stored_recipe(tmp_path / "run", (f"api.public.path={tmp_path / 'moved.npz'}",))
    assert len(resume_run(tmp_path / "run", Surroundings(), moved).synthetic) == 8


def test_noise_may_be_what_it_begins_with(tmp_path: Path) -> None:
    public = {"kind": "noise", "count": 30}
    run = run_recipe(recipe(private_file(tmp_path), public=public), tmp_path / "run", Surroundings())
    assert isinstance(run, pe.Run)
    assert len(run.synthetic) == 8


def test_without_labels_there_is_nothing_to_teach() -> None:
    api = DPImgSyn(public=source(PUBLIC))
    terms = FitTerms(("all",), SHAPE, COUNT, Relation.ADD_REMOVE, "record", Budget(8.0, 1e-3))
    with pytest.raises(PEError, match="fewer than two"):
        api.planned(terms)
    with pytest.raises(APIError, match="answers once it is fitted"):
        api.random_api(asked())


def test_soft_labels_go_with_the_samples_into_every_export(tmp_path: Path) -> None:
    run = run_recipe(recipe(private_file(tmp_path)), tmp_path / "run", Surroundings())
    soft = run.population(0).conditions[SOFT_LABEL]
    for form in ("npz", "folder", "parquet"):
        run.export(tmp_path / form, form)
    np.testing.assert_array_equal(np.load(tmp_path / "npz" / "synthetic.npz")["soft_labels"], soft)
    with (tmp_path / "folder" / "synthetic" / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    written = [[float(row["p(ell)"]), float(row["p(oh)"])] for row in rows]
    np.testing.assert_allclose(written, soft, rtol=1e-6)
    column = pq.read_table(tmp_path / "parquet" / "synthetic.parquet")["soft_label"].to_pylist()
    np.testing.assert_allclose(column, soft, rtol=1e-6)
