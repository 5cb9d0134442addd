"""Whole runs: what is kept when a fit breaks off or is stopped, and what other runs may
take of it.
"""

from __future__ import annotations

from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch

from adapters.diffusion.pixel import PixelFiles, PixelSpace
from adapters.trained import noisy_mean, own_network
from adapters.trained.dp_sgd.training import Training
from adapters.trained.noisy_mean import DPMERF
from pe.engine.execution import RunContext, resume_run, run_recipe
from pe.errors import Interrupted, RecipeError
from pe.plugins.protocols import RandomRequest
from pe.privacy.ledger import MemoryStore
from pe.progress import Progress
from tests.adapters.trained.diffusion.small import (
    BLOCKS,
    Broken,
    api,
    breaking,
    breaks,
    counted,
    images_file,
    private_file,
    recipe,
    releases,
)
from tests.contracts.fitted import CLASSES, fitting, make


def test_the_moving_average_is_what_answers_and_pixel_diffusion_reads_it(tmp_path: Path) -> None:
    fitted, store = make("dpdm"), MemoryStore()
    fitted.fit(fitting(fitted, tmp_path, store))
    last = store.find(BLOCKS[1]).array
    count = (len(last) - 1) // 4
    names = {name: name for name in CLASSES}
    plainly = PixelSpace(model=str(tmp_path), steps=5, classes=names, device="cpu", batch_size=1)
    weights = [value.flatten() for _, value in plainly._files.network().named_parameters()]
    np.testing.assert_array_equal(
        torch.cat(weights).detach().numpy(), last[1 + count : 1 + 2 * count]
    )
    fitted.load(tmp_path)
    request = RandomRequest(CLASSES[:2], np.array([1, 2], dtype=np.uint64))
    assert np.array_equal(
        plainly.random_api(request).samples.array, fitted.random_api(request).samples.array
    )
    files = PixelFiles.find(str(tmp_path), None, offline=True)
    assert (files.classes, files.unet["num_class_embeds"]) == (CLASSES, len(CLASSES))


def test_privimage_learns_from_its_public_images_and_then_from_cheaper_fits(tmp_path: Path) -> None:
    model = make("privimage")
    with counted(own_network, "train") as trainings:
        model.fit(fitting(model, tmp_path))
    assert [phase for *_, phase, _ in trainings] == [
        "pretraining",
        "pretraining on images of dp_merf",
    ]


def test_dp_ldm_leaves_all_but_attention_and_classes_as_the_public_images_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, first = make("dp_ldm"), {}
    pretrained = type(model).pretrained

    def remembered(fit: object) -> object:
        network = pretrained(model, fit)
        first.update({name: value.clone() for name, value in network.state_dict().items()})
        return network

    monkeypatch.setattr(model, "pretrained", remembered)
    model.fit(fitting(model, tmp_path))
    after = PixelFiles.find(str(tmp_path), None, offline=True).network().state_dict()
    moved = {name for name, value in after.items() if not torch.equal(value, first[name])}
    assert moved == {
        name for name in after if ".attentions." in name or name == "class_embedding.weight"
    }


def test_a_fit_that_breaks_off_before_its_first_block_repeats_nothing_that_was_before(
    tmp_path: Path,
) -> None:
    path = private_file(tmp_path)
    with breaking(after=0), pytest.raises(Broken):
        run_recipe(recipe(path, "dp_feta"), tmp_path / "run", RunContext())
    assert not (tmp_path / "run" / "model").exists()
    with counted(own_network, "train") as trained, counted(DPMERF, "fit") as fits:
        run = resume_run(tmp_path / "run", RunContext())
    assert not trained
    assert not fits
    assert releases(run) == [
        (name, 1) for name in ("fit/central_images", "fit/mean_features", *BLOCKS)
    ]
    assert not any("pretrained" in file["file"] for file in run.guarantee["covered"])
    assert not (run.confidential / "fit").exists()


def test_once_all_is_released_the_private_records_are_needed_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, merf = private_file(tmp_path), {"kind": "dp_merf", "features": 20, "steps": 3}
    with monkeypatch.context() as broken:
        broken.setattr(noisy_mean, "write_generator", breaks)
        with pytest.raises(Broken):
            run_recipe(recipe(path, api=merf), tmp_path / "run", RunContext())
    path.unlink()
    run = resume_run(tmp_path / "run", RunContext())
    assert releases(run) == [("fit/mean_features", 1)]


@pytest.mark.parametrize(
    ("owner", "name", "drawn"),
    [(own_network, "train", ["fit/semantics"]), (Training, "block", ["fit/semantics", BLOCKS[0]])],
)
def test_it_stops_where_it_is_asked_to_and_goes_on(
    owner: object, name: str, drawn: list[str], tmp_path: Path
) -> None:
    stop, path = Event(), private_file(tmp_path)
    with counted(owner, name, stop.set), pytest.raises(Interrupted, match="Stopped as asked"):
        run_recipe(recipe(path, "privimage"), tmp_path / "run", RunContext(stop=stop))
    there = {file.name for file in (tmp_path / "run" / "releases").iterdir()}
    assert there == {f"{name.replace('/', '-')}.npy" for name in drawn}
    run = resume_run(tmp_path / "run", RunContext())
    assert releases(run) == [(name, 1) for name in ("fit/semantics", *BLOCKS)]


def test_public_images_of_a_fit_and_of_a_cheaper_one_in_it_are_compared_with_this_run_s_records(
    tmp_path: Path,
) -> None:
    theirs, ours = private_file(tmp_path), images_file(tmp_path / "6.npz", seed=6)
    easy = [
        {"kind": "dp_gaussian", "share": 0.2, "public": str(images_file(tmp_path / "copy.npz"))}
    ]
    with pytest.raises(RecipeError, match="24 of 24 public images are private records"):
        run_recipe(recipe(theirs, api=api("dp_feta", easy=easy)), tmp_path / "first", RunContext())
    assert not (tmp_path / "first").exists()

    first = recipe(theirs, api=api("pdp_diffusion", public=str(ours)))
    run_recipe(first, tmp_path / "first", RunContext())
    reusing = {"api": {"kind": "trained", "path": str(tmp_path / "first")}}
    with pytest.raises(RecipeError, match=r"^The public images .*6\.npz are the private records"):
        run_recipe(recipe(ours, iterations=1, **reusing), tmp_path / "second", RunContext())
    ours.rename(tmp_path / "moved.npz")
    told: list[str] = []

    class Listener(Progress):
        def warn(self, message: str) -> None:
            told.append(message)

    moved = recipe(tmp_path / "moved.npz", iterations=1, **reusing)
    run_recipe(moved, tmp_path / "second", RunContext(progress=Listener()))
    assert any("6.npz are not there, so they cannot be checked" in sentence for sentence in told)
