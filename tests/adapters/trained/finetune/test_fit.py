"""Runs that fit a checkpoint, sample and evolve it; what cannot be fitted is one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import exp, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler, UNet2DModel

from adapters.diffusion.pixel import PixelFiles
from adapters.trained.diffusion_networks import Velocity
from adapters.trained.finetune import FineTune
from adapters.trained.public import torch_seed
from adapters.trained.settings import FineTuning
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.errors import MissingDependency, PEError, PrivacyError, RecipeError
from pe.plugins.protocols import RandomRequest
from pe.privacy.ledger import MemoryStore
from tests.adapters.trained.diffusion import small
from tests.adapters.trained.diffusion.small import (
    BLOCKS,
    CLASSES,
    SHAPE,
    Broken,
    breaking,
    fitting,
    private_file,
    recipe,
    records,
    releases,
    terms,
)
from tests.adapters.trained.finetune.brought import LORA, checkpoint, write_checkpoint

TRAINING = small.TRAINING | {"steps": 2, "block": 1, "draws": 1}


def api(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "finetune",
        "model": checkpoint(),
        "lora": LORA,
        "classes": {"ell": "L"},
        "training": TRAINING,
        "sampling": {"steps": 3},
        "device": "cpu",
    } | changes


def carried_out(folder: Path, iterations: int = 0, **changes: Any) -> Any:
    share = {"fit": {"budget_share": 0.6}} if iterations else {}
    made = recipe(private_file(folder), "dpdm", iterations, api=api(**changes) | share)
    return run_recipe(made, folder / "run", Surroundings())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return PixelFiles.find(str(folder), None, offline=True).network().state_dict()


def delta_of(releases: list[dict[str, Any]], epsilon: float) -> float:
    """δ of Gaussians without sampling, by hand: they are one, of μ = √Σ 1/σ² (Balle and Wang 2018)."""
    mu = sqrt(sum(one["count"] / one["noise_multiplier"] ** 2 for one in releases))
    phi = NormalDist().cdf
    return phi(mu / 2 - epsilon / mu) - exp(epsilon) * phi(-mu / 2 - epsilon / mu)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Fitted and evolved on one ledger; it broke off in the fit, was refused another checkpoint, and went on."""
    folder = tmp_path_factory.mktemp("evolved")
    place = write_checkpoint(folder / "brought")
    kept = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    with breaking(after=1), pytest.raises(Broken):
        carried_out(folder, iterations=2, model=str(place))
    write_checkpoint(place, seed=1)
    with pytest.raises(RecipeError, match="holds another checkpoint than when this fit began"):
        resume_run(folder / "run", Surroundings())
    for path, content in kept.items():
        path.write_bytes(content)
    return resume_run(folder / "run", Surroundings())


def test_it_is_evolved_on_the_fit_s_ledger_whose_total_is_that_counted_by_hand(run: Any) -> None:
    assert releases(run) == [(name, 1) for name in (*BLOCKS, "histogram/1", "histogram/2")]
    counted = run.guarantee["releases"]
    assert all((one["count"], one["sampling"]) == (1, None) for one in counted)  # every record is in every step
    assert delta_of(counted, run.guarantee["epsilon"]) == pytest.approx(1e-3, rel=1e-3)
    assert 7.99 < run.guarantee["epsilon"] <= 8
    np.testing.assert_array_equal(run.synthetic.conditions["api_class"], run.synthetic.labels)
    assert run.synthetic.samples.array.shape == (8, *SHAPE)


def test_what_was_not_chosen_is_the_checkpoint_s_to_the_bit_and_the_model_needs_the_checkpoint_no_more(
    run: Any,
) -> None:
    before, after = weights(run.folder.parent / "brought"), weights(run.folder / "model")
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    targets = tuple(f"{name}.weight" for name in LORA["targets"])
    assert moved == {name for name in after if name.endswith(targets)} | {"class_embedding.weight"}
    found = FineTune(model="./nowhere", device="cpu")
    found.load(run.folder / "model")
    assert len(found.random_api(RandomRequest(CLASSES, np.array([1, 2], dtype=np.uint64))).samples) == 2
    digest = json.loads((run.folder / "model" / "checkpoint.json").read_text())
    assert len(digest["weights"]) == 64
    assert "model/checkpoint.json" in {file["file"] for file in run.guarantee["covered"]}


def test_a_record_s_loss_is_of_the_noise_on_the_checkpoint_s_schedule_and_depends_on_it_alone(run: Any) -> None:
    folder, draws = run.folder / "model", 16
    images = np.random.default_rng(0).integers(0, 256, (3, *SHAPE)).astype(np.uint8)
    found = FineTune(model="./nowhere", device="cpu").record_losses(folder, images, [CLASSES[0]] * 3)
    alone = FineTune(model="./nowhere", device="cpu").record_losses(folder, images[1:2], [CLASSES[0]])
    assert (alone == found[1:2]).all()
    generator = torch.Generator().manual_seed(torch_seed(0, "record-losses"))
    steps, _, noise = (part[0] for part in Velocity().draw(1, draws, (1, 8, 8), generator))
    image = torch.from_numpy(images[1]).permute(2, 0, 1) / 127.5 - 1
    noisy = DDPMScheduler().add_noise(image.expand(draws, -1, -1, -1), noise, steps)
    network = UNet2DModel.from_pretrained(folder / "unet").eval()
    with torch.inference_mode():
        predicted = network(noisy, steps, class_labels=torch.zeros(draws, dtype=torch.int64)).sample
    assert found[1] == pytest.approx(float((predicted - noise).square().mean()), rel=1e-5)


def test_the_records_are_asked_for_only_while_a_block_is_drawn(tmp_path: Path) -> None:
    model = FineTune(model=checkpoint(), training=FineTuning.model_validate(TRAINING), device="cpu")
    store, asked = MemoryStore(), []

    def private() -> Any:
        asked.append([one.release.name for one in store.charged() if one.array is None])
        return records()

    model.fit(fitting(model, tmp_path / "model", store, private))
    assert asked == [BLOCKS[:1]]


def without_classes(folder: Path) -> dict[str, Any]:
    return {"model": str(write_checkpoint(folder / "brought", classes=()))}


def embedding_otherwise(folder: Path) -> dict[str, Any]:
    place = write_checkpoint(folder / "brought")
    config = place / "unet" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"class_embed_type": "timestep"}))
    return {"model": str(place)}


def predicting_otherwise(folder: Path) -> dict[str, Any]:
    place = write_checkpoint(folder / "brought")
    config = place / "scheduler" / "scheduler_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"prediction_type": "flow"}))
    return {"model": str(place)}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "./nowhere"}, r"there is nothing at '\./nowhere'"),
        ({"model": "small"}, "makes images of 28×28×1, and the private images are 8×8×1: set private.size"),
        (embedding_otherwise, "embeds classes by 'timestep'"),
        (
            predicting_otherwise,
            "predicts 'flow', and those that can be fitted predict one of epsilon, sample",
        ),
        ({"lora": {"targets": ["to_kk"]}}, "lora.targets: no layer .* ends in 'to_kk'; did you mean 'to_k'"),
        ({"lora": {"targets": ["attentions.0"]}}, "lora.targets: '.*attentions.0' is a Attention, and LoRA"),
        ({"lora": {"rank": 0}}, "lora.rank .*at least 1"),
        ({"lora": {"ranks": 2}}, "unknown key 'lora.ranks'; did you mean 'rank'"),
        ({"layers": ["mid_block"]}, "layers: 'mid_block' is a UNetMidBlock2D, and those that can be trained"),
        ({"layers": ["class_embedding", "to_q"]}, "to_q' is among lora.targets, too"),
        ({"lora": None, "layers": []}, "lora is null and layers is empty, so nothing is trained"),
        ({"classes": {"ell": "Q"}}, "classes names 'Q', and the checkpoint has no such class: it has 4"),
        ({"classes": {"ell": 4}}, "classes names '4'"),
        ({"classes": {"em": "L"}}, "classes names the label 'em', which the private records do not have"),
        (without_classes, "classes is given, but the checkpoint has no classes"),
        (
            lambda folder: without_classes(folder) | {"classes": None, "layers": []},
            "the checkpoint has no classes, so .* add class_embedding to layers",
        ),
        ({"training": {"expected_batch": 99}}, "expected_batch is 99: it must be at most"),
    ],
)
def test_what_cannot_be_fitted_is_one_sentence_before_the_run_exists(
    changes: dict[str, Any] | Callable[[Path], dict[str, Any]], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(PEError, match=sentence) as raised:
        carried_out(tmp_path, **(changes(tmp_path) if callable(changes) else changes))
    assert "\n" not in str(raised.value)
    assert not isinstance(raised.value, MissingDependency)
    assert not (tmp_path / "run").exists()


def test_units_larger_than_a_record_are_refused() -> None:
    with pytest.raises(PrivacyError, match="protects no 'patient'"):
        FineTune(model=checkpoint()).planned(terms(unit="patient"))


def test_the_dry_run_counts_what_is_trained() -> None:
    model = FineTune(
        model=checkpoint(), lora=None, layers=("class_embedding",), training=FineTuning.model_validate(TRAINING)
    )
    (found,) = model.dry_run(terms())
    assert (found.parameters, found.steps, found.blocks) == (2 * 32, 2, 2)
