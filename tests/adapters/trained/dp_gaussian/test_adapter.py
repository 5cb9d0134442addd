"""DP-Gaussian: its Gaussians, and runs that fit them, sample them and evolve them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pe
from adapters.trained import dp_gaussian as adapter
from adapters.trained.dp_gaussian import GRID, Ball, DPGaussian, Gaussians, Layout, edge, gaussians_of, noisy_sum
from adapters.trained.public import Noise
from pe.data.samples import Conditions
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.engine.extend import extend_run
from pe.errors import APIError, RecipeError
from pe.fit.trainer import PrivateRecords
from pe.plugins.protocols import RandomRequest, VariationRequest
from pe.privacy.noise import UnsafeSeededNoise
from pe.privacy.release import Release
from pe.recipe.schema import Recipe
from pe.store.run import purge
from tests.adapters.trained.clean import NoNoise

SHAPE, CLASSES = (5, 5, 1), ("dark", "light")
PIXELS = 25
BALL = Ball(np.full(PIXELS, 0.5), 3.0)  # nothing is cut
DIRECTION = np.sin(np.arange(PIXELS)) / np.linalg.norm(np.sin(np.arange(PIXELS)))


def private(count: int = 1200) -> PrivateRecords:
    """Two labels: dark and light, which vary along one direction, the light twice as far."""
    rng, labels = np.random.default_rng(0), np.arange(count) % 2
    along = rng.standard_normal((count, 1)) * (0.2 + 0.2 * labels[:, None]) * DIRECTION
    pixels = 0.35 + 0.3 * labels[:, None] + along + 0.01 * rng.standard_normal((count, PIXELS))
    images = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8).reshape(-1, *SHAPE)
    return PrivateRecords(images, labels.astype(np.int32), np.arange(count))


def fitted(per_label: bool, deviation: float, records: PrivateRecords, noise: Any) -> Gaussians:
    layout = Layout(2, PIXELS, per_label)
    release = Release("fit/sums", "discrete_gaussian", 1.0, deviation, grid=GRID)
    total = noisy_sum(records, BALL, layout, release, noise)
    return gaussians_of(total, layout, BALL, grid=GRID, deviation=deviation, classes=CLASSES, shape=SHAPE)


def test_without_noise_they_have_the_mean_and_the_covariance_of_each_label() -> None:
    records = private()
    model = fitted(True, 1e-6, records, NoNoise())
    pixels = records.samples.reshape(-1, PIXELS) / 255
    for label in range(2):
        of = pixels[records.labels == label]
        np.testing.assert_allclose(model.means[label], of.mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(model.factors[label] @ model.factors[label].T, np.cov(of.T, bias=True), atol=3e-5)


def test_pooled_they_have_the_covariance_within_the_labels() -> None:
    records = private()
    model = fitted(False, 1e-6, records, NoNoise())
    pixels = records.samples.reshape(-1, PIXELS) / 255
    within = pixels - np.stack([pixels[records.labels == label].mean(axis=0) for label in range(2)])[records.labels]
    assert model.factors.shape[0] == 1
    np.testing.assert_allclose(model.factors[0] @ model.factors[0].T, np.cov(within.T, bias=True), atol=3e-5)


@pytest.mark.parametrize("per_label", [False, True])
def test_of_noise_alone_no_direction_is_kept_and_of_a_strong_one_that_one(per_label: bool) -> None:
    records, none = private(), private(0)
    for seed in range(20):
        empty = fitted(per_label, 2.0, none, UnsafeSeededNoise(seed))
        assert empty.code_length <= 2  # the edge holds for large images, and nearly for small ones
        assert np.isfinite(empty.means).all()
        found = fitted(per_label, 0.3, records, UnsafeSeededNoise(seed))
        assert found.code_length <= 2
        strongest = found.factors[-1, :, 0]
        assert abs(strongest @ DIRECTION) > 0.9 * np.linalg.norm(strongest)


def test_the_planner_is_told_that_it_makes_what_a_label_names() -> None:
    assert DPGaussian.info.by_label


def test_the_edge_is_that_of_the_noise() -> None:
    layout, deviation = Layout(1, 120, False), 3.0
    noise = UnsafeSeededNoise(0).discrete_gaussian(layout.numbers, deviation * GRID)
    _, _, (diagonal,), (above,) = layout.split(noise)
    matrix = np.zeros((120, 120))
    matrix[np.triu_indices(120, 1)] = above / np.sqrt(2)
    matrix = (matrix + matrix.T + np.diag(diagonal)) / (GRID * np.sqrt(layout.shares.product) * 500)
    assert np.linalg.eigvalsh(matrix)[-1] == pytest.approx(edge(layout, deviation, 500), rel=0.1)


def private_file(folder: Path) -> Path:
    records = private()
    np.savez(folder / "private.npz", images=records.samples, labels=np.array(CLASSES)[records.labels])
    return folder / "private.npz"


def recipe(path: Path, iterations: int = 0, **changes: object) -> Recipe:
    fit = {"fit": {"budget_share": 0.5}} if iterations else {}
    shape = {"size": 5, "channels": 1, "classes": list(CLASSES), "declared_size": 1200}
    content: dict[str, object] = {
        "private": {"kind": "npz", "path": path, **shape},
        "api": {"kind": "dp_gaussian", "public": {"kind": "noise", "count": 50}} | fit,
        "embedding": {"kind": "pixels", "size": 5},
        "privacy": {"epsilon": 8, "delta": 1e-5},
        "evolution": {"iterations": iterations, "population": 40, "lookahead": 2},
    }
    return Recipe.parse(content | changes, "the test")


def shades(run: pe.Run) -> tuple[float, float]:
    found, labels = run.synthetic.samples.array.mean(axis=(1, 2, 3)), run.synthetic.labels
    return float(found[labels == 0].mean()), float(found[labels == 1].mean())


def test_without_iterations_it_is_the_baseline_at_the_whole_budget(tmp_path: Path) -> None:
    run = run_recipe(recipe(private_file(tmp_path)), tmp_path / "run", Surroundings())
    dark, light = shades(run)
    assert dark < 115 < 140 < light
    assert [release["name"] for release in run.guarantee["releases"]] == ["fit/sums"]
    assert run.guarantee["epsilon"] == pytest.approx(8, abs=1e-3)
    covered = {file["file"] for file in run.guarantee["covered"]}
    assert {"model/gaussians.npz", "releases/fit-sums.npy"} <= covered
    purge(run)
    more = extend_run(run.folder, 6, 0.5, Surroundings())
    assert np.load(more)["images"].shape == (6, *SHAPE)


def test_fitted_on_part_of_the_budget_it_is_evolved_by_the_rest_on_one_ledger(tmp_path: Path) -> None:
    run = run_recipe(recipe(private_file(tmp_path), iterations=2), tmp_path / "run", Surroundings())
    names = [release["name"] for release in run.guarantee["releases"]]
    assert names == ["fit/sums", "histogram/1", "histogram/2"]
    assert 7.99 < run.guarantee["epsilon"] <= 8
    dark, light = shades(run)
    assert light - dark > 25


def test_a_fit_that_breaks_off_after_its_release_goes_on_without_the_private_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = private_file(tmp_path)
    with monkeypatch.context() as broken:

        def fail(*_args: object, **_settings: object) -> None:
            raise APIError("the machine went down")

        broken.setattr(adapter, "gaussians_of", fail)
        with pytest.raises(APIError, match="went down"):
            run_recipe(recipe(path), tmp_path / "run", Surroundings())
    released = (tmp_path / "run" / "releases" / "fit-sums.npy").read_bytes()
    path.unlink()
    run = resume_run(tmp_path / "run", Surroundings())
    assert (run.folder / "releases" / "fit-sums.npy").read_bytes() == released
    assert run.guarantee["releases"][0]["charges"] == 1


def test_a_variation_moves_the_code_and_keeps_the_label(tmp_path: Path) -> None:
    fitted(True, 1e-6, private(), NoNoise()).write(tmp_path / "gaussians.npz")
    api = DPGaussian(public=Noise())
    api.load(tmp_path)
    labels, seeds = ("light",) * 300, np.arange(300, dtype=np.uint64)
    parents = api.random_api(RandomRequest(labels, seeds))
    same, moved, new = (
        api.variation_api(VariationRequest(parents.samples, labels, parents.conditions, seeds + 1000, degree))
        for degree in (0.0, 0.5, 1.0)
    )
    np.testing.assert_array_equal(same.samples.array, parents.samples.array)
    code, other = parents.conditions["code"][:, 0], moved.conditions["code"][:, 0]
    assert np.corrcoef(code, other)[0, 1] == pytest.approx(np.sqrt(0.75), abs=0.06)
    assert other.std() == pytest.approx(1, abs=0.15)
    assert abs(np.corrcoef(code, new.conditions["code"][:, 0])[0, 1]) < 0.15
    assert abs(moved.samples.array.mean() / 255 - 0.65) < 0.03


@pytest.mark.parametrize(
    ("api", "sentence"),
    [
        (
            {"public": {"kind": "noise"}, "covariance": "full"},
            "covariance must be 'auto', 'pooled' or 'per_l",
        ),
        ({"public": "no_such_folder"}, "no folder with images at"),
        ({"public": {"kind": "glyphs", "count": 3}}, "count is 3, and there are 62 characters"),
        ({}, "public"),
    ],
)
def test_a_recipe_that_does_not_serve_is_one_sentence(api: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=sentence):
        run_recipe(recipe(private_file(tmp_path), api={"kind": "dp_gaussian", **api}), tmp_path / "run", Surroundings())
    assert not (tmp_path / "run").exists()


def test_a_covariance_that_is_none_is_refused_from_python_too() -> None:
    with pytest.raises(RecipeError, match="covariance is 'full': it must be one of auto, pooled, per_label"):
        DPGaussian(public=Noise(), covariance="full")  # type: ignore[arg-type]


def test_what_it_cannot_answer_from_it_refuses(tmp_path: Path) -> None:
    api, request = DPGaussian(public=Noise()), RandomRequest(("dark",), np.zeros(1, dtype=np.uint64))
    with pytest.raises(APIError, match="answers once it is fitted"):
        api.random_api(request)
    with pytest.raises(RecipeError, match="holds no fitted Gaussians"):
        api.load(tmp_path)
    model = fitted(False, 1e-6, private(), NoNoise())
    for broken in (b"", b"no archive", b"PK\x05\x06" + bytes(18)):
        (tmp_path / "gaussians.npz").write_bytes(broken)
        with pytest.raises(RecipeError, match="holds no fitted Gaussians"):
            api.load(tmp_path)
    Gaussians(("dark",), SHAPE, model.means, model.factors).write(tmp_path / "gaussians.npz")
    with pytest.raises(RecipeError, match="holds no fitted Gaussians"):
        api.load(tmp_path)
    model.write(tmp_path / "gaussians.npz")
    api.load(tmp_path)
    with pytest.raises(RecipeError, match="'grey' is none of them"):
        api.random_api(RandomRequest(("grey",), request.seeds))
    made = api.random_api(request)
    with pytest.raises(APIError, match="needs the parent's code"):
        api.variation_api(VariationRequest(made.samples, ("dark",), Conditions(), request.seeds, 0.5))
