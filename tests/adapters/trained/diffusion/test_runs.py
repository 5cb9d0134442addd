"""Runs that fit each of the four kinds, sample it, vary it and evolve it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.diffusion.pixel import PixelFiles, PixelSpace
from adapters.trained import diffusion_networks as pretraining
from adapters.trained import fit, public
from adapters.trained.diffusion import DPLDM
from adapters.trained.fit import Fit
from adapters.trained.settings import FineTuning, Network, PlainTraining
from pe.engine.execution import Surroundings, run_recipe
from pe.engine.extend import extend_run
from pe.plugins.protocols import RandomRequest
from pe.plugins.specs import construct
from pe.privacy.ledger import MemoryStore
from pe.privacy.release import Poisson, Relation
from pe.store.run import purge
from tests.adapters.trained.diffusion.small import (
    BLOCKS,
    CLASSES,
    FIRST,
    KINDS,
    NETWORK,
    PLAIN,
    PUBLIC,
    SHAPE,
    TRAINING,
    api,
    counted,
    fitting,
    private_file,
    recipe,
    records,
    releases,
    terms,
    trainer,
)
from tests.adapters.trained.sources import source


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_fitted_sampled_and_varied_on_the_whole_budget(kind: str, tmp_path: Path) -> None:
    run = run_recipe(recipe(private_file(tmp_path), kind), tmp_path / "run", Surroundings())
    assert run.synthetic.samples.array.shape == (8, *SHAPE)
    assert releases(run) == [(name, 1) for name in (*FIRST.get(kind, []), *BLOCKS)]
    assert 7.99 < run.guarantee["epsilon"] <= 8
    covered = {file["file"] for file in run.guarantee["covered"]}
    drawn = {f"releases/{name.replace('/', '-')}.npy" for name, _ in releases(run)}
    model = {"unet/diffusion_pytorch_model.safetensors", "unet/config.json", "scheduler/scheduler_config.json"}
    assert drawn | {f"model/{file}" for file in model | {"classes.json"}} <= covered
    files = PixelFiles.find(str(run.folder / "model"), None, offline=True)
    assert (files.classes, files.unet["num_class_embeds"]) == (CLASSES, 2)
    labels = run.synthetic.labels
    np.testing.assert_array_equal(run.synthetic.conditions["api_class"], labels)
    purge(run)
    more = extend_run(run.folder, 6, 0.7, Surroundings())
    assert np.load(more)["images"].shape == (6, *SHAPE)


def test_privimage_learns_from_cheaper_fits_after_its_public_images(tmp_path: Path) -> None:
    easy = KINDS["dp_feta"]["easy"]
    with counted(pretraining, "train") as trainings:
        run = run_recipe(
            recipe(private_file(tmp_path), api=api("privimage", easy=easy)), tmp_path / "run", Surroundings()
        )
    phases = [phase for *_, phase, _ in trainings]
    assert phases == ["pretraining", "pretraining on images of central_images", "pretraining on images of dp_merf"]
    first = ["fit/semantics", "fit/central_images", "fit/mean_features"]
    assert releases(run) == [(name, 1) for name in (*first, *BLOCKS)]
    assert 7.99 < run.guarantee["epsilon"] <= 8


def test_the_moving_average_is_what_answers_and_pixel_diffusion_reads_it(tmp_path: Path) -> None:
    run = run_recipe(recipe(private_file(tmp_path)), tmp_path / "run", Surroundings())
    last = np.load(run.folder / "releases" / "fit-training-2.npy")
    count = (len(last) - 1) // 4
    plainly = PixelSpace(
        model=str(run.folder / "model"), steps=3, classes={name: name for name in CLASSES}, device="cpu", batch_size=4
    )
    weights = [value.flatten() for _, value in plainly._files().network().named_parameters()]
    np.testing.assert_array_equal(torch.cat(weights).detach().numpy(), last[1 + count : 1 + 2 * count])
    fitted = construct("pe.adapters", "dpdm", {"sampling": {"steps": 3}, "device": "cpu", "batch_size": 4})
    fitted.load(run.folder / "model")
    request = RandomRequest(CLASSES, np.array([1, 2], dtype=np.uint64))
    assert np.array_equal(plainly.random_api(request).samples.array, fitted.random_api(request).samples.array)


def test_fitted_on_part_of_the_budget_it_is_evolved_by_the_rest_on_one_ledger(tmp_path: Path) -> None:
    run = run_recipe(recipe(private_file(tmp_path), "privimage", iterations=2), tmp_path / "run", Surroundings())
    names = [name for name, _ in releases(run)]
    assert names == ["fit/semantics", *BLOCKS, "histogram/1", "histogram/2"]
    assert 7.99 < run.guarantee["epsilon"] <= 8
    np.testing.assert_array_equal(run.synthetic.conditions["api_class"], run.synthetic.labels)


class Remembering(DPLDM):
    """DP-LDM that keeps what its network was before the first private step."""

    def _begin(self, fit: Fit) -> Any:
        model = super()._begin(fit)
        self.first = {name: value.clone() for name, value in model.state_dict().items()}
        return model


def test_dp_ldm_leaves_all_but_attention_and_classes_as_the_public_images_left_it(tmp_path: Path) -> None:
    model = Remembering(
        public=source(PUBLIC),
        pretraining=PlainTraining.model_validate(PLAIN),
        network=Network.model_validate(NETWORK),
        training=FineTuning.model_validate(TRAINING),
        device="cpu",
    )
    model.fit(fitting(model, tmp_path / "model", MemoryStore()))
    after = PixelSpace(model=str(tmp_path / "model"))._files().network().state_dict()
    moved = {name for name, value in after.items() if not torch.equal(value, model.first[name])}
    assert moved == {name for name in after if ".attentions." in name or name == "class_embedding.weight"}


def test_private_records_are_seen_only_while_a_release_is_drawn_and_never_by_the_public_part(tmp_path: Path) -> None:
    store, model, asked = MemoryStore(), trainer(), []

    def private() -> Any:
        asked.append([one.release.name for one in store.charged() if one.array is None])
        return records()

    with counted(public, "tensors") as calls:
        model.fit(fitting(model, tmp_path / "model", store, private))
    assert asked == [["fit/semantics"]]  # and then kept in memory, for the blocks
    seen = {image.tobytes() for images, _ in calls for image in images}
    assert seen
    assert not seen & {image.tobytes() for image in records().samples}


def test_the_noise_is_found_once_per_process() -> None:
    model = trainer()
    with counted(fit, "calibrate") as searches:
        first = model.planned(terms(7.5))
        count = len(searches)
        assert model.planned(terms(7.5)) == first
    assert len(searches) == count > 0


def test_steps_are_declared_as_sampled_at_the_rate_of_the_declared_size() -> None:
    settings = FineTuning(steps=7, block=3).dp_sgd(800)
    declared = fit.block_releases(settings.with_noise(1.0), fit.TRAINING, Relation.ADD_REMOVE)
    assert [release.count for release in declared] == [3, 3, 1]
    assert {release.sampling for release in declared} == {Poisson(1 / 8)}


def test_what_is_planned_under_replace_one_moves_twice_as_far() -> None:
    planned = trainer().planned(terms(relation=Relation.REPLACE_ONE))
    assert [release.sensitivity for release in planned] == pytest.approx([2**0.5, 2, 2])
