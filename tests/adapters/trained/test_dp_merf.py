"""DP-MERF: its one release, and runs that fit it, sample it and evolve it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pe
from adapters.trained import gan_networks as generator
from adapters.trained import noisy_mean as features
from adapters.trained.fit import noisy_sums
from adapters.trained.noisy_mean import DPMERF, RandomFourier, frequencies
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.engine.extend import extend_run
from pe.errors import APIError, RecipeError
from pe.fit.trainer import FitTerms, Fitting, PrivateRecords
from pe.plugins.protocols import RandomRequest
from pe.privacy.ledger import Budget, Ledger, MemoryStore
from pe.privacy.noise import grid_for
from pe.privacy.release import Relation, Release
from pe.recipe.schema import Recipe
from pe.store.run import purge
from tests.adapters.trained.clean import NoNoise

SHAPE = (4, 4, 1)
W = frequencies(20, 16, [0.8], seed=3)
RELEASE = Release("fit/mean_features", "discrete_gaussian", 1.0, 2.0, grid=grid_for(2.0, 1.0, fractional=True))


TERMS = FitTerms(("a", "b", "c"), SHAPE, 40, Relation.ADD_REMOVE, "record", Budget(1.0, 1e-5), 0)


@pytest.mark.parametrize(("batch", "terms"), [(2, TERMS), (1, dataclasses.replace(TERMS, classes=("a",)))])
def test_a_batch_without_an_image_of_every_label_is_refused_before_anything_is_charged(
    batch: int, terms: FitTerms
) -> None:
    with pytest.raises(RecipeError, match=rf"api\.batch is {batch}, .* take {batch + 1} or more"):
        DPMERF(batch=batch).planned(terms)
    assert DPMERF(batch=batch + 1).planned(terms)


def records(count: int, seed: int, units: list[int] | None = None) -> PrivateRecords:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, *SHAPE)).astype(np.uint8)
    return PrivateRecords(images, rng.integers(0, 2, count).astype(np.int32), np.array(units or range(count)))


def clean(private: PrivateRecords) -> np.ndarray:
    features = RandomFourier(W)
    return noisy_sums(private, 2, features.of_record, features.size, RELEASE, NoNoise())


def without(private: PrivateRecords, unit: int) -> PrivateRecords:
    kept = private.units != unit
    return PrivateRecords(private.samples[kept], private.labels[kept], private.units[kept])


def furthest(private: PrivateRecords) -> float:
    """The most that the removal of one unit moves the clean sum, in sensitivities."""
    whole = clean(private)
    moves = [np.linalg.norm(whole - clean(without(private, unit))) for unit in np.unique(private.units)]
    return max(moves) / RELEASE.grid


@given(st.integers(1, 12), st.integers(0, 10**6), st.integers(1, 4))
def test_no_unit_moves_the_sum_by_more_than_its_sensitivity(count: int, seed: int, per_unit: int) -> None:
    private = records(count, seed, [i // per_unit for i in range(count)])
    assert furthest(private) <= RELEASE.sensitivity


def test_a_version_that_weighs_records_and_not_units_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    private = records(9, 1, [i // 3 for i in range(9)])
    alone = np.unique
    monkeypatch.setattr(
        features.np, "unique", lambda values, **_: (values, *alone(values, return_inverse=True)[1:], np.ones(9))
    )
    whole, rest = clean(private), clean(without(private, 0))
    assert np.linalg.norm(whole - rest) / RELEASE.grid > RELEASE.sensitivity


def test_a_record_s_features_depend_on_no_other_record() -> None:
    private = records(6, 2)
    alone = [without_others(private, unit) for unit in private.units]
    np.testing.assert_array_equal(clean(private), sum(clean(one) for one in alone))


def without_others(private: PrivateRecords, unit: int) -> PrivateRecords:
    kept = private.units == unit
    return PrivateRecords(private.samples[kept], private.labels[kept], private.units[kept])


def test_the_features_are_those_of_the_gaussian_kernel() -> None:
    for bandwidths in ([0.8], [0.4, 1.6]):
        phi = RandomFourier(frequencies(20_000, 16, bandwidths, seed=0))
        x, y = np.random.default_rng(0).integers(0, 256, (2, *SHAPE)).astype(np.uint8)
        squared = ((x / 255 - y / 255) ** 2).sum()
        wanted = np.mean([np.exp(-squared / (2 * bandwidth**2)) for bandwidth in bandwidths])
        assert phi.of_record(x) @ phi.of_record(y) == pytest.approx(wanted, abs=0.02)
        assert np.linalg.norm(phi.of_record(x)) == pytest.approx(1)


def test_the_features_of_made_images_are_those_of_records_but_for_a_factor() -> None:
    phi, images = RandomFourier(W), records(3, 0).samples
    made = phi.of_batch(torch.from_numpy(images / np.float32(255))).numpy()
    np.testing.assert_allclose(made / np.sqrt(len(W)), [phi.of_record(image) for image in images], atol=1e-5)


def private_file(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    images = np.concatenate([rng.integers(0, 40, (800, *SHAPE)), rng.integers(215, 255, (800, *SHAPE))])
    np.savez(folder / "private.npz", images=images.astype(np.uint8), labels=np.array(["dark"] * 800 + ["light"] * 800))
    return folder / "private.npz"


def recipe(path: Path, iterations: int = 0, **changes: object) -> Recipe:
    fit = {"fit": {"budget_share": 0.5}} if iterations else {}
    content: dict[str, object] = {
        "private": {
            "kind": "npz",
            "path": path,
            "size": 4,
            "channels": 1,
            "classes": ["dark", "light"],
            "declared_size": 1600,
        },
        "api": {"kind": "dp_merf", "features": 40, "bandwidth": 0.3, "steps": 200, "batch": 32} | fit,
        "embedding": {"kind": "pixels", "size": 4},
        "privacy": {"epsilon": 8, "delta": 1e-5},
        "evolution": {"iterations": iterations, "population": 20, "lookahead": 2},
    }
    return Recipe.parse(content | changes, "the test")


def shades(run: pe.Run) -> tuple[float, float]:
    found, labels = run.synthetic.samples.array.mean(axis=(1, 2, 3)), run.synthetic.labels
    return float(found[labels == 0].mean()), float(found[labels == 1].mean())


def test_without_iterations_it_is_the_trained_baseline_at_the_whole_budget(tmp_path: Path) -> None:
    run = run_recipe(recipe(private_file(tmp_path)), tmp_path / "run", Surroundings())
    dark, light = shades(run)
    assert dark < 80
    assert light > 170
    assert [release["name"] for release in run.guarantee["releases"]] == ["fit/mean_features"]
    assert run.guarantee["epsilon"] == pytest.approx(8, abs=1e-3)
    covered = {file["file"] for file in run.guarantee["covered"]}
    assert {"model/generator.safetensors", "model/settings.json", "releases/fit-mean_features.npy"} <= covered
    purge(run)
    more = extend_run(run.folder, 6, 0.5, Surroundings())
    assert np.load(more)["images"].shape == (6, *SHAPE)


def test_fitted_on_part_of_the_budget_it_is_evolved_by_the_rest_on_one_ledger(tmp_path: Path) -> None:
    run = run_recipe(recipe(private_file(tmp_path), iterations=2), tmp_path / "run", Surroundings())
    names = [release["name"] for release in run.guarantee["releases"]]
    assert names == ["fit/mean_features", "histogram/1", "histogram/2"]
    assert 7.99 < run.guarantee["epsilon"] <= 8
    dark, light = shades(run)
    assert light - dark > 90


def test_a_fit_that_breaks_off_after_its_release_goes_on_without_the_private_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = private_file(tmp_path)
    with monkeypatch.context() as broken:

        def fail(*_args: object, **_settings: object) -> None:
            raise APIError("the machine went down")

        broken.setattr(generator, "fit_generator", fail)
        with pytest.raises(APIError, match="went down"):
            run_recipe(recipe(path), tmp_path / "run", Surroundings())
    released = (tmp_path / "run" / "releases" / "fit-mean_features.npy").read_bytes()
    assert not (tmp_path / "run" / "model").exists()
    path.unlink()
    run = resume_run(tmp_path / "run", Surroundings())
    recipients = json.loads((run.confidential / "audit-record.json").read_text())["recipients"]
    assert recipients[0]["data"].startswith("the private records themselves, while it is fitted")
    assert (run.folder / "releases" / "fit-mean_features.npy").read_bytes() == released
    assert run.guarantee["releases"][0]["charges"] == 1


def test_the_same_release_gives_the_same_model_and_samples(tmp_path: Path) -> None:
    runs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        surroundings = Surroundings(noise=NoNoise())
        runs.append(run_recipe(recipe(private_file(tmp_path)), tmp_path / name / "run", surroundings))
    for file in ("model/generator.safetensors", "synthetic.npz"):
        assert (runs[0].folder / file).read_bytes() == (runs[1].folder / file).read_bytes()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"api": {"kind": "dp_merf", "features": 7}}, "features is 7: it must be an even number"),
        ({"api": {"kind": "dp_merf", "bandwidth": [0.2, 0]}}, r"bandwidth is \[0.2, 0.*it must lie above 0, or"),
        ({"api": {"kind": "dp_merf", "bandwidth": []}}, r"bandwidth is \[\]: it must lie above 0, or be a list"),
        ({"api": {"kind": "dp_merf", "features": 2, "bandwidth": [1, 2]}}, "too few for 2 bandwidths: take at least 4"),
        ({"api": {"kind": "dp_merf", "steps": 0}}, "steps is 0: it must lie above 0"),
        ({"api": {"kind": "glyphs", "fit": {"budget_share": 0.5}}}, "'glyphs' is not fitted on private records"),
        ({"privacy": {"noise_multiplier": 3, "delta": 1e-5}}, "leaves no budget to fit 'dp_merf' with: give epsilon"),
        ({"evolution": {"iterations": 2, "population": 20}}, "api.fit.budget_share is missing"),
        (
            {
                "api": {"kind": "dp_merf", "fit": {"budget_share": 1}},
                "evolution": {"iterations": 2, "population": 20},
            },
            "leaves nothing to evolve with",
        ),
    ],
)
def test_a_recipe_at_odds_with_its_fit_is_one_sentence(
    changes: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=sentence):
        run_recipe(recipe(private_file(tmp_path), **changes), tmp_path / "run", Surroundings())
    assert not (tmp_path / "run").exists()


def test_before_the_fit_it_says_so() -> None:
    with pytest.raises(APIError, match="answers once it is fitted"):
        DPMERF().random_api(RandomRequest(("a",), np.zeros(1, dtype=np.uint64)))


def test_replacing_a_record_is_twice_the_sensitivity() -> None:
    terms = FitTerms(("a",), SHAPE, 10, Relation.REPLACE_ONE, "record", Budget(1.0, 1e-5))
    assert DPMERF().planned(terms)[0].sensitivity == 2


def test_a_fit_without_a_plan_refuses_what_a_plan_does_and_charges_nothing(tmp_path: Path) -> None:
    terms = FitTerms(("a", "b", "c"), (4, 4, 1), 100, Relation.ADD_REMOVE, "record", Budget(1, 1e-5))
    planned = DPMERF().planned(terms)
    ledger = Ledger(terms.budget, terms.relation, terms.unit, planned, MemoryStore())
    with pytest.raises(RecipeError, match=r"api\.batch is 2"):
        DPMERF(batch=2).fit(Fitting(terms, lambda: pytest.fail("records were read"), ledger, tmp_path))
    assert not ledger.drawn(planned[0])
