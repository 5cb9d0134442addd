"""What a run takes from other runs is counted or declared, at whatever depth of its recipe it stands."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pe
from adapters.trained.reused import Trained
from pe.engine.execution import Surroundings, run_recipe
from pe.errors import RecipeError
from pe.planning.other_runs import find_other_runs
from pe.privacy.accounting import epsilon
from pe.privacy.certificate import certified_releases, verify
from tests.adapters.trained.diffusion.small import COUNT, PLAIN, PUBLIC, SIDE, TRAINING, api, private_file, recipe

MERF = {"kind": "dp_merf", "features": 20, "steps": 3}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records, and others of the same kind."""
    folder = tmp_path_factory.mktemp("private")
    path = private_file(folder)
    content = dict(np.load(path))
    np.savez(folder / "others.npz", images=content["images"][::-1] // 2, labels=content["labels"])
    return folder


@pytest.fixture(scope="module")
def merf(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return first(files, tmp_path_factory.mktemp("merf") / "a", MERF)


@pytest.fixture(scope="module")
def network(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return first(files, tmp_path_factory.mktemp("network") / "a", api("dpdm"))


def first(files: Path, out: Path, fitted: dict[str, Any]) -> Path:
    privacy = {"epsilon": 50, "delta": 1e-3}
    return run_recipe(recipe(files / "private.npz", api=fitted, privacy=privacy), out, Surroundings()).folder


def easy(run: Path, kind: str = "dp_feta", **says: Any) -> dict[str, Any]:
    warm = {"kind": "trained", "path": str(run), "share": 0.6, "images": 12, "training": PLAIN, **says}
    public = {"public": PUBLIC, "pretraining": PLAIN, "query": PLAIN} if kind == "privimage" else {}
    return api("dpdm") | {"kind": kind, "easy": [warm]} | public


def portfolio(model: Path) -> dict[str, Any]:
    return {"kind": "portfolio", "of": [pixels(model), pixels(model) | {"name": "again"}]}


def captions(model: Path) -> dict[str, Any]:
    write = {"kind": "public_texts", "path": "captions.txt"}
    return {"kind": "caption_then_draw", "captions": write, "draw": {"kind": "diffusion", "model": str(model)}}


def finetune(model: Path) -> dict[str, Any]:
    return {"kind": "finetune", "model": str(model), "training": TRAINING, "device": "cpu"}


def pixels(model: Path) -> dict[str, Any]:
    return {"kind": "pixel_diffusion", "model": str(model), "device": "cpu", "steps": 3}


def begin(files: Path, out: Path, spec: dict[str, Any], data: str = "private", **privacy: Any) -> pe.Run:
    wanted = recipe(files / f"{data}.npz", api=spec, privacy={"epsilon": 8, "delta": 1e-3, **privacy})
    return run_recipe(wanted, out, Surroundings())


class Wraps:
    """A user's object that answers from a model that a run fitted."""

    def __init__(self, run: Path, info: pe.PluginInfo | None = None) -> None:
        self._model = Trained(path=run, private_sets="disjoint")
        self._model.load(run / "model")
        self.info = info or pe.PluginInfo(hosts=())
        self.capabilities = self._model.capabilities

    def random_api(self, request: Any) -> Any:
        return self._model.random_api(request)

    def variation_api(self, request: Any) -> Any:
        return self._model.variation_api(request)


@pytest.mark.parametrize("kind", ["dp_feta", "privimage"])
def test_a_warm_start_from_the_very_same_records_is_not_disjoint(
    files: Path, merf: Path, tmp_path: Path, kind: str
) -> None:
    with pytest.raises(RecipeError, match="was fitted on these very records"):
        begin(files, tmp_path / "b", easy(merf, kind, private_sets="disjoint"))
    assert not (tmp_path / "b").exists()


def test_a_warm_start_from_other_records_is_named_and_every_later_run_inherits_its_cost(
    files: Path, merf: Path, tmp_path: Path
) -> None:
    second = begin(files, tmp_path / "b", easy(merf, private_sets="disjoint"), "others")
    told = second.guarantee["fitted_on_others"]
    both = [*certified_releases(second.guarantee), *certified_releases(pe.Run.open(merf).guarantee)]
    assert (told["run"], told["epsilon_if_in_both"]) == ("a", pytest.approx(epsilon(both, 1e-3)))
    assert verify(second.guarantee, second.folder) == []
    assert verify(second.guarantee | {"fitted_on_others": None}, second.folder) != []
    reused = {"kind": "trained", "path": str(second.folder)}
    with pytest.raises(RecipeError, match="has cost ε = 53"):  # the second's own 8 alone would fit
        begin(files, tmp_path / "c", reused, epsilon=40)
    third = begin(files, tmp_path / "c", reused, epsilon=60)
    assert {one.name for one in certified_releases(third.guarantee)} == {one.name for one in both}
    with pytest.raises(RecipeError, match="was built on that of the run 'a', whose records count"):
        begin(files, tmp_path / "d", reused | {"private_sets": "disjoint"})
    with pytest.raises(RecipeError, match="/a was fitted on these very records"):  # as the second run's notes have it
        begin(files, tmp_path / "d", pixels(second.folder / "model"), private_sets="disjoint")


def test_a_warm_start_that_may_be_from_these_records_is_counted(files: Path, merf: Path, tmp_path: Path) -> None:
    run = begin(files, tmp_path / "b", easy(merf, share=0.9), epsilon=60)
    assert run.guarantee["fitted_on_others"] is None
    assert certified_releases(run.guarantee)[:1] == certified_releases(pe.Run.open(merf).guarantee)


@pytest.mark.parametrize("make", [pixels, portfolio, finetune])
@pytest.mark.parametrize("where", ["model", "a copy of it", "a link to it"])
def test_a_model_of_a_run_is_known_by_what_lies_beside_it(
    files: Path, network: Path, tmp_path: Path, make: Callable[[Path], dict[str, Any]], where: str
) -> None:
    model = network / "model"
    if where == "a copy of it":
        model = Path(shutil.copytree(model, tmp_path / "net"))
    elif where == "a link to it":
        (tmp_path / "net").symlink_to(model)
        model = tmp_path / "net"
    with pytest.raises(RecipeError, match=r"comes from the run 'a'.* is not counted here"):
        begin(files, tmp_path / "b", make(model))
    if where != "a copy of it":  # whose records nobody knows
        with pytest.raises(RecipeError, match="was fitted on these very records"):
            begin(files, tmp_path / "b", make(model), private_sets="disjoint")
    run = begin(files, tmp_path / "b", make(model), "others", private_sets="disjoint")
    assert run.guarantee["fitted_on_others"]["run"] == "a"
    assert verify(run.guarantee, run.folder) == []


@pytest.mark.parametrize("name", ["model", "model/unet", "synthetic.npz", ""])
@pytest.mark.parametrize("make", [captions, lambda path: {"kind": "public_images", "path": str(path), "channels": 1}])
def test_whatever_a_recipe_takes_from_a_run_is_found(
    files: Path, network: Path, make: Callable[[Path], dict[str, Any]], name: str
) -> None:
    wanted = recipe(files / "private.npz", api=make(network / name))
    with pytest.raises(RecipeError, match=r"comes from the run 'a'.* is not counted here"):
        find_other_runs(wanted, ())


def test_an_own_object_that_declares_nothing_is_told_so(files: Path, network: Path, tmp_path: Path) -> None:
    data = pe.ImageNpz(files / "private.npz", size=SIDE, channels=1, classes=("ell", "oh"), declared_size=COUNT)
    settings = {"embedding": pe.embedding("pixels", size=SIDE), "epsilon": 1.0, "delta": 1e-3, "population": 8}
    settings |= {"iterations": 1, "lookahead": 0, "degree": 0.5}
    run = pe.evolve(data, Wraps(network), out=tmp_path / "b", **settings)
    assert run.guarantee["fitted_on_others"] == "not declared"
    assert "does not declare any" in (run.folder / "certificate.md").read_text()
    assert verify(run.guarantee | {"fitted_on_others": None}, run.folder) != []
    declared = pe.PluginInfo(hosts=(), disjoint_from=(network,))
    with pytest.raises(RecipeError, match="was fitted on these very records"):
        pe.evolve(data, Wraps(network, declared), out=tmp_path / "c", **settings)
    with pytest.raises(RecipeError, match="holds no run's model or data"):
        pe.evolve(data, Wraps(network, pe.PluginInfo(disjoint_from=(tmp_path / "no",))), out=tmp_path / "c", **settings)
    none = pe.evolve(data, Wraps(network, pe.PluginInfo(disjoint_from=())), out=tmp_path / "c", **settings)
    assert none.guarantee["fitted_on_others"] is None


def test_words_that_name_a_folder_of_runs_by_chance_refuse_nothing(
    files: Path, merf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(merf, tmp_path / "cpu" / "a")
    monkeypatch.chdir(tmp_path)
    assert find_other_runs(recipe(files / "private.npz", api=api("dpdm")), ()) == ()
