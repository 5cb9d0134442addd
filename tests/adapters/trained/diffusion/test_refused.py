"""What cannot be fitted or answered is one sentence."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from adapters.trained.diffusion import DPDM, PrivImage
from adapters.trained.semantics import QueryTraining
from adapters.trained.settings import FineTuning, Network
from pe.engine.execution import Surroundings, run_recipe
from pe.errors import APIError, PrivacyError, RecipeError
from pe.planning.forecast import differences
from pe.plugins.protocols import RandomRequest
from pe.privacy.ledger import MemoryStore
from pe.recipe.schema import Recipe
from tests.adapters.trained.diffusion.small import (
    BLOCKS,
    COUNT,
    NETWORK,
    PUBLIC,
    TRAINING,
    api,
    fitting,
    private_file,
    recipe,
    releases,
    terms,
)
from tests.adapters.trained.sources import source

EASY = {"kind": "central_images", "share": 0.2}


def unlabelled(folder: Path) -> str:
    (folder / "public").mkdir(exist_ok=True)
    for i in range(4):
        Image.fromarray(np.full((8, 8), 60 * i, dtype=np.uint8)).save(folder / "public" / f"{i}.png")
    return str(folder / "public")


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"privacy": {"epsilon": 1e-3, "delta": 1e-9}}, PrivacyError, "noise drowns even what all of them agree on"),
        ({"api": api("privimage", public="PUBLIC")}, RecipeError, "has no labels, and PrivImage selects by them"),
        ({"api": api("privimage", public="nowhere")}, RecipeError, "there is no folder with images at '.*nowhere'"),
        (
            {"api": api("pdp_diffusion", public="nowhere.npz")},
            RecipeError,
            r"there is no \.npz file at '.*nowhere\.npz'",
        ),
        ({"api": api("privimage", semantics=3)}, RecipeError, "takes 6 public labels, and the public set has 4: take"),
        ({"api": api("privimage", semantics=0)}, RecipeError, "semantics is 0: it must be at least 1"),
        ({"api": api("privimage", semantics_share=1)}, RecipeError, "semantics_share is 1.0: it must lie between"),
        (
            {"api": api("privimage", query={"network": "efficientnet"})},
            RecipeError,
            r"unknown key 'query\.network'; known are 'batch', 'learning_rate', 'steps'",
        ),
        (
            {"api": api("privimage", query={"views": 2})},
            RecipeError,
            r"unknown key 'query\.views'; known are 'batch', ",
        ),
        ({"api": api("dpdm", training={"spare_blocks": 1})}, RecipeError, r"unknown key 'training\.spare_blocks'; "),
        ({"api": api("dpdm", network={"channels": [8, 8, 8, 8]})}, RecipeError, "8×8 pixels are too small for that"),
        (
            {"api": api("dpdm", network={"channels": [9]})},
            RecipeError,
            "api 'dpdm': network.channels.0: .*multiple of 8",
        ),
        ({"api": api("dpdm", training={"step": 3})}, RecipeError, "unknown key 'training.step'; did you mean 'steps'"),
        (
            {"api": api("dpdm", training={"expected_batch": 99})},
            RecipeError,
            "expected_batch is 99: it must be at most",
        ),
        (
            {"api": api("dp_feta", easy=[EASY | {"kind": "dpgan"}])},
            RecipeError,
            "have a release named 'fit/training/1'",
        ),
        (
            {"api": api("dp_feta", easy=[EASY | {"kind": "dp_merf"}, EASY | {"kind": "dp_mepf"}])},
            RecipeError,
            "two parts of the fit of 'dp_feta' have a release named 'fit/mean_features': leave one of them out",
        ),
        ({"api": api("dpdm", device="tpu")}, RecipeError, "device is 'tpu'"),
        ({"api": api("dpdm", device="cuda:99")}, RecipeError, "device is 'cuda:99', and this machine has"),
        (
            {
                "api": api("dpdm", sampling={"steps": 5}) | {"fit": {"budget_share": 0.5}},
                "evolution": {"iterations": 2, "population": 8, "degree": [0.5, 0.1], "lookahead": 0},
            },
            RecipeError,
            r"evolution\.degree is 0\.1, and of 5 steps that leaves none to run: take a degree of at least 0\.2",
        ),
        ({"api": api("dpdm", batch_size=0)}, RecipeError, "batch_size is 0: it must be at least 1"),
        (
            {"api": api("privimage", public={"kind": "folder"})},
            RecipeError,
            "'public.path' is missing: where the folder",
        ),
        ({"api": api("dpdm", sampling={"steps": 1001})}, RecipeError, r"sampling\.steps must be at most 1,000"),
        ({"api": api("dp_feta", easy=[])}, RecipeError, "easy is empty: name what is fitted first"),
        ({"api": api("dp_feta", easy=[EASY, EASY])}, RecipeError, "easy names 'central_images' twice"),
        ({"api": api("dp_feta", easy=[EASY | {"kind": "glyphs"}])}, RecipeError, "'glyphs' is no cheap generator"),
        ({"api": api("dp_feta", easy=[EASY | {"shrank": 3}])}, RecipeError, "unknown key 'shrank'"),
        (
            {"api": api("dp_feta", easy=[EASY, {"kind": "dp_merf", "share": 0.8}])},
            RecipeError,
            r"the shares add up to 1, which leaves DP-SGD nothing",
        ),
        (
            {"api": api("privimage", easy=[EASY | {"share": 0.9}])},
            RecipeError,
            r"semantics_share and the shares of easy add up to 1\.1, which leaves DP-SGD nothing",
        ),
        ({"api": api("privimage", public={"kind": "glyphs", "count": 61})}, RecipeError, "there are 62 characters"),
    ],
)
def test_a_recipe_that_cannot_be_fitted_is_one_sentence_before_the_run_exists(
    changes: dict[str, Any], error: type[Exception], sentence: str, tmp_path: Path
) -> None:
    if changes.get("api", {}).get("public") == "PUBLIC":
        changes = {"api": changes["api"] | {"public": unlabelled(tmp_path)}}
    with pytest.raises(error, match=sentence) as raised:
        run_recipe(recipe(private_file(tmp_path), **changes), tmp_path / "run", Surroundings())
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["dp_feta", "privimage"])
def test_public_images_of_a_cheaper_fit_are_compared_with_the_records(kind: str, tmp_path: Path) -> None:
    path = private_file(tmp_path)
    np.savez(tmp_path / "public.npz", images=np.load(path)["images"])
    easy = [{"kind": "dp_gaussian", "share": 0.2, "public": str(tmp_path / "public.npz")}]
    with pytest.raises(RecipeError, match="public images are private records"):
        run_recipe(recipe(path, api=api(kind, easy=easy)), tmp_path / "run", Surroundings())


def test_public_images_of_a_cheaper_fit_are_found_from_the_recipe(tmp_path: Path) -> None:
    text = """
private: {kind: npz, path: private.npz, size: 8, channels: 1, classes: [ell, oh], declared_size: 24}
privacy: {epsilon: 1, delta: 1.0e-6}
api: {kind: dp_feta, easy: [{kind: dp_gaussian, public: public.npz}]}
embedding: {kind: pixels}
evolution: {iterations: 0, population: 8}
"""
    (tmp_path / "recipe.yaml").write_text(text)
    found = Recipe.load(tmp_path / "recipe.yaml").api.settings["easy"][0]["public"]
    assert str(found) == str(tmp_path / "public.npz")


def test_a_fit_goes_on_by_the_declared_size_that_it_was_planned_by(tmp_path: Path) -> None:
    before = recipe(private_file(tmp_path))
    private = before.private
    after = before.model_copy(update={"private": dataclasses.replace(private, declared_size=COUNT + 1)})
    assert differences(before, after) == [f"private.declared_size: {COUNT} → {COUNT + 1}"]


def test_pdp_diffusion_takes_unlabelled_images(tmp_path: Path) -> None:
    changed = {"api": api("pdp_diffusion", public=unlabelled(tmp_path))}
    run = run_recipe(recipe(private_file(tmp_path), **changed), tmp_path / "run", Surroundings())
    assert [name for name, _ in releases(run)] == BLOCKS


def test_units_larger_than_a_record_are_refused() -> None:
    with pytest.raises(PrivacyError, match="protects no 'patient'"):
        DPDM().planned(terms(unit="patient"))


def test_it_answers_for_the_labels_that_it_was_fitted_for_and_says_so(tmp_path: Path) -> None:
    model = DPDM(network=Network.model_validate(NETWORK), training=FineTuning.model_validate(TRAINING), device="cpu")
    request = RandomRequest(("ell", "em"), np.zeros(2, dtype=np.uint64))
    with pytest.raises(APIError, match="answers once it is fitted"):
        model.random_api(request)
    model.fit(fitting(model, tmp_path / "model", MemoryStore()))
    model.load(tmp_path / "model")
    with pytest.raises(RecipeError, match="fitted for the labels 'ell', 'oh', and 'em' is none of them"):
        model.random_api(request)
    with pytest.raises(RecipeError, match="is missing"):
        model.load(tmp_path)


@pytest.mark.parametrize(("batch", "remedy"), [(8, "take batch: 4"), (1, "take a smaller network")])
def test_memory_that_does_not_suffice_names_the_remedy(
    batch: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.Tensor, "backward", refused)
    model = PrivImage(
        public=source(PUBLIC),
        query=QueryTraining(steps=1, batch=batch),
        training=FineTuning.model_validate(TRAINING),
        device="cpu",
    )
    with pytest.raises(RecipeError, match=remedy):
        model.fit(fitting(model, tmp_path / "model", MemoryStore()))
