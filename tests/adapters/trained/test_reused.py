"""A model that one run fitted, answering in others: what its fit cost is counted there, too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import pe
from adapters.trained.reused import Trained, _merged
from pe.cli.watch import status
from pe.engine.execution import Surroundings, run_recipe
from pe.engine.extend import extend_run
from pe.engine.report import write_report
from pe.errors import PEError, RecipeError
from pe.privacy.accounting import epsilon
from pe.privacy.certificate import certified_releases, verify
from pe.privacy.covered import sha256
from pe.privacy.noise import SystemNoise
from pe.recipe.schema import Recipe

SIDE, DELTA = 4, 1e-5


class SeededNoise(SystemNoise):
    """Says of itself that it is unsafe."""

    unsafe = True


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("private")
    for name, seed in (("first", 0), ("second", 1)):
        rng = np.random.default_rng(seed)
        images = np.concatenate([rng.integers(0, 40, (80, SIDE, SIDE, 1)), rng.integers(215, 255, (80, SIDE, SIDE, 1))])
        labels = np.array(["dark"] * 80 + ["light"] * 80)
        np.savez(folder / f"{name}.npz", images=images.astype(np.uint8), labels=labels)
    return folder


@pytest.fixture(scope="module")
def fitted(files: Path, tmp_path_factory: pytest.TempPathFactory) -> pe.Run:
    """A run that fitted DP-MERF at ε = 2."""
    api = {"kind": "dp_merf", "features": 40, "steps": 60, "batch": 32}
    return run_recipe(recipe(files, api, epsilon=2.0), tmp_path_factory.mktemp("fitted") / "a", Surroundings())


def recipe(files: Path, api: dict[str, Any], *, private: str = "first", epsilon: float = 4.0, **changes: Any) -> Recipe:
    content: dict[str, Any] = {
        "private": {
            "kind": "npz",
            "path": files / f"{private}.npz",
            "size": SIDE,
            "channels": 1,
            "classes": ["dark", "light"],
            "declared_size": 160,
        },
        "api": api,
        "embedding": {"kind": "pixels", "size": SIDE},
        "privacy": {"epsilon": epsilon, "delta": DELTA},
        "evolution": {"iterations": 2, "population": 20, "lookahead": 0},
    }
    if api["kind"] == "dp_merf":
        content["evolution"]["iterations"] = 0
    return Recipe.parse(content | changes, "the test")


def reusing(run: pe.Run, **settings: Any) -> dict[str, Any]:
    return {"kind": "trained", "path": str(run.folder), **settings}


def test_the_other_fit_and_the_evolution_stand_on_one_ledger(files: Path, fitted: pe.Run, tmp_path: Path) -> None:
    run = run_recipe(recipe(files, reusing(fitted)), tmp_path / "b", Surroundings())
    ours, theirs = certified_releases(run.guarantee), certified_releases(fitted.guarantee)
    assert [release.name for release in ours] == ["fit/mean_features", "histogram/1", "histogram/2"]
    assert ours[:1] == theirs
    assert run.guarantee["epsilon"] == pytest.approx(epsilon(ours, DELTA), rel=1e-9)
    assert 3.99 < run.guarantee["epsilon"] <= 4
    assert verify(run.guarantee, run.folder) == []


def test_it_answers_as_the_run_that_fitted_it(files: Path, fitted: pe.Run, tmp_path: Path) -> None:
    still = {"iterations": 0, "population": 20}
    run = run_recipe(recipe(files, reusing(fitted), evolution=still), tmp_path / "b", Surroundings())
    np.testing.assert_array_equal(run.synthetic.samples.array, fitted.synthetic.samples.array)


def test_a_version_that_forgets_what_the_fit_cost_is_caught(
    files: Path, fitted: pe.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.trained.reused._with_own_names", lambda _: ())
    with pytest.raises(RecipeError, match="is not counted here"):
        run_recipe(recipe(files, reusing(fitted)), tmp_path / "b", Surroundings())


def test_a_fit_that_was_charged_twice_counts_twice(files: Path, fitted: pe.Run, tmp_path: Path) -> None:
    copy = copied(fitted, tmp_path)
    content = json.loads((copy / "model/fitted.json").read_text())
    content["releases"] *= 2
    recertified(copy, content)
    run = run_recipe(recipe(files, reusing(pe.Run.open(copy)), epsilon=5.0), tmp_path / "b", Surroundings())
    names = [release.name for release in certified_releases(run.guarantee)]
    assert names == ["fit/mean_features", "fit/mean_features/again-2", "histogram/1", "histogram/2"]


@pytest.mark.parametrize("iterations", [0, 2])
def test_a_fit_that_cost_more_than_the_budget_is_refused_before_the_run_exists(
    files: Path, fitted: pe.Run, tmp_path: Path, iterations: int
) -> None:
    wanted = recipe(files, reusing(fitted), epsilon=1.5).model_dump(mode="json", exclude_none=True)
    wanted["evolution"]["iterations"] = iterations
    with pytest.raises(RecipeError, match=r"privacy\.epsilon is 1\.5, and the fit of .* has cost ε = 2 at δ"):
        run_recipe(Recipe.parse(wanted, "the test"), tmp_path / "b", Surroundings())
    assert not (tmp_path / "b").exists()


def test_disjoint_sets_are_declared_and_the_certificate_says_not_verified(
    files: Path, fitted: pe.Run, tmp_path: Path
) -> None:
    api = reusing(fitted, private_sets="disjoint")
    run = run_recipe(recipe(files, api, private="second"), tmp_path / "b", Surroundings())
    certificate = run.guarantee
    assert [release.name for release in certified_releases(certificate)] == ["histogram/1", "histogram/2"]
    others = certificate["fitted_on_others"]
    both = [*certified_releases(fitted.guarantee), *certified_releases(certificate)]
    assert others["private_sets"] == "declared disjoint, not verified"
    assert others["epsilon"] == pytest.approx(fitted.guarantee["epsilon"])
    assert others["epsilon_if_in_both"] == pytest.approx(epsilon(both, DELTA))
    assert "declared, not verified" in (run.folder / "certificate.md").read_text()
    assert verify(certificate, run.folder) == []
    silent = certificate | {"fitted_on_others": None}
    assert verify(silent, run.folder) != []


def test_records_that_are_the_very_same_are_not_disjoint(files: Path, fitted: pe.Run, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="these very records: take 'may_overlap'"):
        run_recipe(recipe(files, reusing(fitted, private_sets="disjoint")), tmp_path / "b", Surroundings())


def test_a_third_run_counts_the_first_one_s_fit_whatever_the_second_declared(
    files: Path, fitted: pe.Run, tmp_path: Path
) -> None:
    api = reusing(fitted, private_sets="disjoint")
    second = run_recipe(recipe(files, api, private="second"), tmp_path / "b", Surroundings())
    third = run_recipe(recipe(files, reusing(second)), tmp_path / "c", Surroundings())
    assert certified_releases(third.guarantee)[:1] == certified_releases(fitted.guarantee)


def test_sets_are_declared_disjoint_from_those_of_the_run_that_fitted_and_of_no_other(
    files: Path, fitted: pe.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = reusing(fitted, private_sets="disjoint")
    second = run_recipe(recipe(files, api, private="second"), tmp_path / "b", Surroundings())
    handed_on = recipe(files, reusing(second, private_sets="disjoint"))  # the first's records, and the first's model
    with pytest.raises(RecipeError, match="took its model over from the run 'a', whose records count"):
        run_recipe(handed_on, tmp_path / "c", Surroundings())
    assert not (tmp_path / "c").exists()
    monkeypatch.setattr("pe.fit.trainer.Fitted.handed_on_by", lambda *_: False)
    with pytest.raises(RecipeError, match="/a was fitted on these very records"):
        run_recipe(handed_on, tmp_path / "c", Surroundings())


def test_a_section_of_settings_is_changed_key_by_key() -> None:
    fitted = {"alignment": {"steps": 10, "companions": 40}, "device": "cuda"}
    merged = _merged(fitted, {"alignment": {"steps": 5}, "device": "cpu"})
    assert merged == {"alignment": {"steps": 5, "companions": 40}, "device": "cpu"}


def test_the_run_holds_all_that_it_needs_to_grow(files: Path, fitted: pe.Run, tmp_path: Path) -> None:
    copy = copied(fitted, tmp_path)
    run = run_recipe(recipe(files, reusing(pe.Run.open(copy))), tmp_path / "b", Surroundings())
    write_report(run.folder)
    shutil.rmtree(copy)
    told = CliRunner().invoke(status, [str(run.folder)], catch_exceptions=False)
    assert (told.exit_code, told.output.splitlines()[0]) == (0, f"{run.folder}: finished")
    assert np.load(extend_run(run.folder, 4, 0.5, Surroundings()))["images"].shape == (4, SIDE, SIDE, 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"api": {"fit": {"budget_share": 0.5}}}, "is spent: leave it out"),
        ({"private": {"classes": ["light", "dark"]}}, "the labels dark, light, and this recipe says light, dark"),
        (
            {"private": {"size": 8, "resize": "stretch"}},
            "height, width and channels 4, 4, 1, and this recipe says 8, 8, 1",
        ),
        ({"privacy": {"relation": "replace_one"}}, "the relation add_remove, and this recipe says replace_one"),
        ({"api": {"private_sets": "other"}}, "private_sets"),
        ({"api": {"settings": {"steps": 0}}}, "steps is 0"),
        ({"api": {"settings": {"devise": "cpu"}}}, "unknown key 'devise'"),
        ({"api": {"path": "nowhere"}}, "api.path: the run /.*/nowhere does not exist: name one"),
    ],
)
def test_a_model_of_another_kind_is_refused_in_a_sentence(
    files: Path, fitted: pe.Run, tmp_path: Path, changes: dict[str, dict[str, Any]], said: str
) -> None:
    content = recipe(files, reusing(fitted)).model_dump(mode="json", exclude_none=True)
    for section, values in changes.items():
        content[section] |= values
    with pytest.raises(PEError, match=said):
        run_recipe(Recipe.parse(content, "the test"), tmp_path / "b", Surroundings())
    assert not (tmp_path / "b").exists()


def test_a_model_that_was_changed_or_is_unsafe_is_refused(files: Path, fitted: pe.Run, tmp_path: Path) -> None:
    copy = copied(fitted, tmp_path)
    (copy / "model/generator.safetensors").write_bytes(b"another")
    with pytest.raises(RecipeError, match=r"generator\.safetensors is not as .* certificate has it"):
        run_recipe(recipe(files, reusing(pe.Run.open(copy))), tmp_path / "b", Surroundings())
    api = {"kind": "dp_merf", "features": 40, "steps": 2, "batch": 32}
    unsafe = run_recipe(recipe(files, api), tmp_path / "unsafe", Surroundings(noise=SeededNoise()))
    with pytest.raises(RecipeError, match="unsafe noise"):
        run_recipe(recipe(files, reusing(unsafe)), tmp_path / "b", Surroundings())


@pytest.mark.parametrize("name", ["model/fitted.json", "certificate.json"])
def test_a_file_that_says_what_a_model_cost_twice_is_refused(
    files: Path, fitted: pe.Run, tmp_path: Path, name: str
) -> None:
    copy = copied(fitted, tmp_path)
    text = (copy / name).read_text()
    (copy / name).write_text(text.replace('"releases": ', '"releases": [], "releases": ', 1))
    if name == "model/fitted.json":
        certificate = json.loads((copy / "certificate.json").read_text())
        entry = next(one for one in certificate["covered"] if one["file"] == name)
        entry["sha256"] = sha256(copy / name)
        (copy / "certificate.json").write_text(json.dumps(certificate))
    with pytest.raises(PEError, match=f"{name} is damaged"):
        run_recipe(recipe(files, reusing(pe.Run.open(copy))), tmp_path / "b", Surroundings())


def test_before_its_run_it_says_what_the_fitted_generator_would(fitted: pe.Run) -> None:
    api = Trained(path=fitted.folder)
    assert api.capabilities.max_chunk == 1024
    assert api.describe_degree(0.5) == "0.5"


def copied(run: pe.Run, folder: Path) -> Path:
    return Path(shutil.copytree(run.folder, folder / "copy"))


def recertified(run: Path, fitted: dict[str, Any]) -> None:
    """The model's record changed, and the certificate with it, as if the run had written both."""
    path = run / "model/fitted.json"
    path.write_text(json.dumps(fitted))
    certificate = json.loads((run / "certificate.json").read_text())
    for one in certificate["covered"]:
        if one["file"] == "model/fitted.json":
            one["sha256"] = sha256(path)
    (run / "certificate.json").write_text(json.dumps(certificate))
