"""A model that one run fitted, answering in others: what its fit cost is counted there, too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pe
from adapters.trained.reused import Trained
from pe.engine.execution import RunContext, run_recipe
from pe.engine.extend import extend_run
from pe.errors import PEError, RecipeError
from pe.planning.other_runs import check_other_runs
from pe.privacy.accounting import epsilon
from pe.privacy.certificate import certified_releases, verify
from pe.privacy.covered import sha256
from pe.recipe.schema import Recipe
from pe.store.certified import reissue
from tests.adapters.trained.diffusion.small import PLAIN, SHAPE, TRAINING, api, images_file
from tests.adapters.trained.diffusion.small import recipe as common
from tests.seeded_noise import UnsafeSeededNoise

DELTA = 1e-3
MERF = {"kind": "dp_merf", "features": 40, "steps": 5, "batch": 32}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("private")
    for name, seed in (("first", 0), ("second", 1)):
        images_file(folder / f"{name}.npz", seed=seed)
    return folder


@pytest.fixture(scope="module")
def fitted(files: Path, tmp_path_factory: pytest.TempPathFactory) -> pe.Run:
    """A run that fitted DP-MERF at ε = 2."""
    folder = tmp_path_factory.mktemp("fitted")
    return run_recipe(recipe(files, MERF, iterations=0, epsilon=2.0), folder / "a", RunContext())


def recipe(
    files: Path,
    api: dict[str, Any],
    private: str = "first",
    iterations: int = 2,
    epsilon: float = 4.0,
) -> Recipe:
    privacy = {"epsilon": epsilon, "delta": DELTA}
    return common(files / f"{private}.npz", "dpdm", iterations, api=api, privacy=privacy)


def reusing(run: pe.Run, **settings: Any) -> dict[str, Any]:
    return {"kind": "trained", "path": str(run.folder), **settings}


def refused(files: Path, api: dict[str, Any], out: Path, sentence: str, **settings: Any) -> None:
    with pytest.raises(PEError, match=sentence):
        run_recipe(recipe(files, api, **settings), out, RunContext())
    assert not out.exists()


def test_the_other_fit_and_the_evolution_stand_on_one_ledger(
    files: Path, fitted: pe.Run, tmp_path: Path
) -> None:
    run = run_recipe(recipe(files, reusing(fitted)), tmp_path / "b", RunContext())
    ours, theirs = certified_releases(run.guarantee), certified_releases(fitted.guarantee)
    assert [release.name for release in ours] == ["fit/mean_features", "histogram/1", "histogram/2"]
    assert ours[:1] == theirs
    assert run.guarantee["epsilon"] == pytest.approx(epsilon(ours, DELTA), rel=1e-9)
    assert 3.99 < run.guarantee["epsilon"] <= 4
    assert verify(run.guarantee, run.folder) == []


def test_a_version_that_forgets_what_the_fit_cost_is_caught(
    files: Path, fitted: pe.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.trained.reused._with_own_names", lambda _: ())
    refused(files, reusing(fitted), tmp_path / "b", "not counted here")


def test_a_fit_that_was_charged_twice_counts_twice_and_one_that_cost_too_much_is_refused(
    files: Path, fitted: pe.Run, tmp_path: Path
) -> None:
    copy = copied(fitted, tmp_path)
    path = copy / "model/fitted.json"
    content = json.loads(path.read_text())
    content["releases"] *= 2
    path.write_text(json.dumps(content))
    recertified(copy)
    run = run_recipe(
        recipe(files, reusing(pe.Run.open(copy)), epsilon=5.0), tmp_path / "b", RunContext()
    )
    names = [release.name for release in certified_releases(run.guarantee)]
    assert names == ["fit/mean_features", "fit/mean_features/again-2", "histogram/1", "histogram/2"]
    said = r"privacy\.epsilon` is 1\.5, but the fit of .* cost ε = 2 at δ"
    refused(files, reusing(fitted), tmp_path / "c", said, epsilon=1.5)


def test_a_third_run_that_takes_the_model_over_from_a_second_counts_the_first_one_s_fit(
    files: Path, fitted: pe.Run, tmp_path: Path
) -> None:
    second = run_recipe(recipe(files, reusing(fitted), "second"), tmp_path / "b", RunContext())
    third = run_recipe(recipe(files, reusing(second)), tmp_path / "c", RunContext())
    assert certified_releases(third.guarantee)[:1] == certified_releases(fitted.guarantee)


def test_a_model_that_an_earlier_version_built_on_one_whose_cost_it_left_out_is_refused(
    files: Path, fitted: pe.Run, tmp_path: Path
) -> None:
    copy = copied(fitted, tmp_path)
    path = copy / "model/fitted.json"
    content = json.loads(path.read_text())
    path.write_text(
        json.dumps(content | {"built_on": [{"run": "z", "counted": False, "releases": []}]})
    )
    recertified(copy)
    refused(files, reusing(pe.Run.open(copy)), tmp_path / "b", "fitted.json is damaged")


def test_the_run_holds_all_that_it_needs_to_grow(
    files: Path, fitted: pe.Run, tmp_path: Path
) -> None:
    copy = copied(fitted, tmp_path)
    run = run_recipe(recipe(files, reusing(pe.Run.open(copy))), tmp_path / "b", RunContext())
    shutil.rmtree(copy)
    assert np.load(extend_run(run.folder, 4, 0.5, RunContext()))["images"].shape == (4, *SHAPE)


@pytest.mark.parametrize(
    ("section", "changes", "said"),
    [
        ("api", {"fit": {"budget_share": 0.5}}, "is spent. Remove"),
        ("private", {"classes": ["oh", "ell"]}, "the labels ell, oh, but this recipe says oh, ell"),
        (
            "private",
            {"size": 4, "resize": "stretch"},
            "and channels 8, 8, 1, but this recipe says 4, 4, 1",
        ),
        (
            "privacy",
            {"relation": "replace_one"},
            "the relation add_remove, but this recipe says replace_one",
        ),
        ("api", {"settings": {"devise": "cpu"}}, "unknown key 'devise'"),
        ("api", {"path": "nowhere"}, "`api.path`: the run /.*/nowhere does not exist. Name one"),
    ],
)
def test_a_model_of_another_kind_is_refused_in_a_sentence(
    files: Path, fitted: pe.Run, tmp_path: Path, section: str, changes: dict[str, Any], said: str
) -> None:
    content = recipe(files, reusing(fitted)).model_dump(mode="json", exclude_none=True)
    content[section] |= changes
    with pytest.raises(PEError, match=said):
        run_recipe(Recipe.parse(content, "the test"), tmp_path / "b", RunContext())
    assert not (tmp_path / "b").exists()


def test_a_model_that_was_changed_or_is_unsafe_is_refused(
    files: Path, fitted: pe.Run, tmp_path: Path
) -> None:
    copy = copied(fitted, tmp_path)
    (copy / "model/generator.safetensors").write_bytes(b"another")
    said = r"generator\.safetensors is not as .* certificate has it"
    refused(files, reusing(pe.Run.open(copy)), tmp_path / "b", said)
    unsafe = RunContext(noise=UnsafeSeededNoise(0))
    run = run_recipe(recipe(files, MERF, iterations=0), tmp_path / "unsafe", unsafe)
    refused(files, reusing(run), tmp_path / "b", "unsafe noise")


def test_a_file_that_says_what_a_model_cost_twice_is_refused(
    files: Path, fitted: pe.Run, tmp_path: Path
) -> None:
    file = copied(fitted, tmp_path) / "model/fitted.json"
    file.write_text(file.read_text().replace('"releases": ', '"releases": [], "releases": ', 1))
    recertified(file.parents[1])
    refused(
        files, reusing(pe.Run.open(file.parents[1])), tmp_path / "b", r"fitted\.json is damaged"
    )


# At whatever depth of a recipe another run's model stands.


@pytest.fixture(scope="module")
def network(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that fitted a diffusion model."""
    folder = tmp_path_factory.mktemp("network")
    return begin(files, folder / "a", api("dpdm"), epsilon=50).folder


def easy(run: Path, share: float) -> dict[str, Any]:
    warm = {"kind": "trained", "path": str(run), "share": share, "images": 12, "training": PLAIN}
    return api("dp_feta", easy=[warm])


def portfolio(model: Path) -> dict[str, Any]:
    return {"kind": "portfolio", "of": [pixels(model), pixels(model) | {"name": "again"}]}


def captions(model: Path) -> dict[str, Any]:
    write = {"kind": "public_texts", "path": "captions.txt"}
    return {
        "kind": "caption_then_draw",
        "captions": write,
        "draw": {"kind": "diffusion", "model": str(model)},
    }


def finetune(model: Path) -> dict[str, Any]:
    return {"kind": "finetune", "model": str(model), "training": TRAINING, "device": "cpu"}


def pixels(model: Path) -> dict[str, Any]:
    return {"kind": "pixel_diffusion", "model": str(model), "device": "cpu", "steps": 3}


def begin(files: Path, out: Path, spec: dict[str, Any], **privacy: Any) -> pe.Run:
    wanted = common(
        files / "first.npz", api=spec, privacy={"epsilon": 8, "delta": DELTA, **privacy}
    )
    return run_recipe(wanted, out, RunContext())


def test_a_warm_start_from_another_run_is_counted(
    files: Path, fitted: pe.Run, tmp_path: Path
) -> None:
    run = begin(files, tmp_path / "b", easy(fitted.folder, 0.9))
    assert certified_releases(run.guarantee)[:1] == certified_releases(fitted.guarantee)


@pytest.mark.parametrize(
    ("make", "where"),
    [(pixels, "a copy of it"), (portfolio, "a link to it"), (finetune, "model")],
)
def test_a_model_of_a_run_is_known_by_what_lies_beside_it(
    files: Path, network: Path, tmp_path: Path, make: Callable[[Path], dict[str, Any]], where: str
) -> None:
    model = network / "model"
    if where == "a copy of it":
        model = Path(shutil.copytree(model, tmp_path / "net"))
    elif where == "a link to it":
        (tmp_path / "net").symlink_to(model)
        model = tmp_path / "net"
    with pytest.raises(
        RecipeError, match=r"comes from the run /.*(a|net|model), .* are not counted here"
    ):
        begin(files, tmp_path / "b", make(model))


def test_a_model_that_its_owner_took_out_of_the_run_is_used(
    files: Path, network: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(network / "model", tmp_path / "net"))
    (model / "fitted.json").unlink()
    assert begin(files, tmp_path / "b", pixels(model)).is_finished


@pytest.mark.parametrize("name", ["model", "model/unet", "synthetic.npz", ""])
@pytest.mark.parametrize(
    "make", [captions, lambda path: {"kind": "public_images", "path": str(path), "channels": 1}]
)
def test_whatever_a_recipe_takes_from_a_run_is_found(
    files: Path, network: Path, make: Callable[[Path], dict[str, Any]], name: str
) -> None:
    wanted = common(files / "first.npz", api=make(network / name))
    with pytest.raises(
        RecipeError, match=r"comes from the run /.*, which may have used .* are not counted here"
    ):
        check_other_runs(wanted, ())


def test_words_that_name_a_folder_of_runs_by_chance_refuse_nothing(
    files: Path, fitted: pe.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(fitted.folder, tmp_path / "cpu" / "a")
    monkeypatch.chdir(tmp_path)
    check_other_runs(common(files / "first.npz", api=api("dpdm")), ())


def copied(run: pe.Run, folder: Path) -> Path:
    return Path(shutil.copytree(run.folder, folder / "copy"))


def recertified(run: Path) -> None:
    """The certificate follows the model's record, as if the run had written both."""
    certificate = json.loads((run / "certificate.json").read_text())
    entry = next(one for one in certificate["covered"] if one["file"] == "model/fitted.json")
    entry["sha256"] = sha256(run / "model/fitted.json")
    (run / "certificate.json").write_text(json.dumps(certificate))


def test_a_model_that_somebody_else_fitted_names_neither_address_nor_key_nor_file(
    fitted: pe.Run, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(fitted.folder, tmp_path / "received"))
    record = json.loads((run / "model/fitted.json").read_text())
    asking: dict[str, Any] = {"model": "m", "prompts": "x"}

    def refused(**settings: Any) -> str:
        (run / "model/fitted.json").write_text(
            json.dumps(record | {"kind": "fitted_chat", "settings": asking})
        )
        reissue(run, ["model/fitted.json"])
        with pytest.raises(RecipeError) as error:
            Trained(path=run, settings=settings).capabilities  # noqa: B018
        return str(error.value)

    asking |= {"key_command": ["touch", str(tmp_path / "ran")]}
    assert (
        "runs code that it names itself, key_command" in refused()
    )  # though the run is this machine's own
    (run / "confidential/binding.txt").unlink()
    for key, value in (
        ("base_url", "http://127.0.0.1:9/v1"),
        ("key_env", "PATH"),
        ("key_file", "/etc/passwd"),
    ):
        asking = {"model": "m", "prompts": "x", key: value}
        named = {} if key == "base_url" else {"base_url": "http://127.0.0.1:9/v1"}
        assert f"uses a thing of this machine that it names itself, {key}: '{value}'" in refused(
            **named
        )
    asking = {"model": "m", "prompts": "x"}
    assert (
        "kind: 'fitted_chat'. If you trust that, name it in `api.settings`, too (an address as "
        "`base_url`)" in refused()
    )
