"""A checkpoint is fitted: what is trained of it, by which loss, in pixel space and through
latents.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.diffusion.pixel import PixelFiles
from adapters.trained.finetune import FineTune, LoRA, prepare
from adapters.trained.finetune_models import (
    PixelCheckpoint,
    latent_checkpoint,
    merge_matrices,
)
from pe.engine.execution import RunContext, resume_run, run_recipe
from pe.errors import RecipeError
from pe.plugins.protocols import RandomRequest
from pe.recipe.schema import Recipe
from tests.adapters.diffusion.tiny import SIDE, stable_diffusion
from tests.adapters.trained.diffusion import small
from tests.adapters.trained.diffusion.small import (
    BLOCKS,
    CLASSES,
    Broken,
    breaking,
    recipe,
    releases,
)
from tests.adapters.trained.dp_sgd.test_gradients import moved
from tests.adapters.trained.finetune.brought import LORA, checkpoint, write_checkpoint

LABELS, CPU = ("L", "oh"), torch.device("cpu")
CHOSEN = LoRA.model_validate(LORA), ("class_embedding",)


def brought(
    labels: tuple[str, ...] = LABELS, place: str | None = None, **classes: str | int
) -> PixelCheckpoint:
    files = PixelFiles.find(place or checkpoint(), None, offline=True)
    return PixelCheckpoint(files, labels, (8, 8, 1), classes or None)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(
        (3, 1, 8, 8), generator=torch.Generator().manual_seed(2)
    ) * 2 - 1, torch.tensor([0, 1, 1])


def test_the_model_begins_as_it_was_and_the_merged_one_is_the_fitted_one() -> None:
    images, labels = batch()
    steps = torch.tensor([10, 500, 900])
    before = brought().network()
    model = prepare(brought().network(), *CHOSEN, 0)
    with torch.no_grad():
        torch.testing.assert_close(
            model(images, steps, labels).sample, before(images, steps, labels).sample
        )
        fitted = moved(model)(images, steps, labels).sample
        merge_matrices(model)
        assert model.state_dict().keys() == before.state_dict().keys()
        torch.testing.assert_close(
            model(images, steps, labels).sample, fitted, atol=1e-5, rtol=1e-4
        )
        assert (fitted - before(images, steps, labels).sample).abs().max() > 0.01


def test_a_label_begins_at_its_class_or_at_the_mean_and_one_without_classes_leaves_the_network_as_it_was(
    tmp_path: Path,
) -> None:
    known = brought().files.network().class_embedding.weight
    rows = brought(("L", "oh", "two"), oh="O", two=3).network().class_embedding.weight
    torch.testing.assert_close(rows, known[[0, 1, 3]])
    torch.testing.assert_close(brought().network().class_embedding.weight[1], known.mean(dim=0))
    plain = brought(place=str(write_checkpoint(tmp_path, classes=())))
    images, labels = batch()
    with torch.no_grad():
        found = plain.network()(images, 7, labels).sample
        assert torch.equal(found, plain.files.network().eval()(images, 7).sample)


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_the_loss_is_of_what_the_checkpoint_predicts_on_its_own_schedule(
    prediction: str, tmp_path: Path
) -> None:
    place = write_checkpoint(
        tmp_path, prediction_type=prediction, beta_schedule="squaredcos_cap_v2"
    )
    found = brought(place=str(place))
    loss, schedule = found.loss(CPU), found.files.sampler("ddpm")
    drawn = loss.draw(4, (1, 8, 8), torch.Generator().manual_seed(3))
    steps, _, noise = drawn
    x = batch()[0][:1]
    wanted = {"epsilon": noise, "sample": x.expand(4, -1, -1, -1)}
    wanted["v_prediction"] = schedule.get_velocity(wanted["sample"], noise, steps)

    def oracle(noisy: torch.Tensor, t: torch.Tensor, class_labels: torch.Tensor) -> Any:
        torch.testing.assert_close(noisy, schedule.add_noise(wanted["sample"], noise, steps))
        return type("Output", (), {"sample": wanted[prediction] + 0.5})

    torch.testing.assert_close(loss(oracle, x[0], torch.tensor(0), drawn), torch.full((4,), 0.25))


TRAINING = small.TRAINING | {"steps": 2, "block": 1, "draws": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Fitted; it broke off in the fit, was refused another checkpoint, and went on."""
    folder = tmp_path_factory.mktemp("fitted")
    place = write_checkpoint(folder / "brought")
    kept = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    api = {
        "kind": "finetune",
        "model": str(place),
        "lora": LORA,
        "classes": {"ell": "L"},
        "training": TRAINING,
    }
    made = recipe(small.private_file(folder), api=api | {"sampling": {"steps": 3}, "device": "cpu"})
    with breaking(after=1), pytest.raises(Broken):
        run_recipe(made, folder / "run", RunContext())
    write_checkpoint(place, seed=1)
    with pytest.raises(RecipeError, match="holds another checkpoint than when this fit began"):
        resume_run(folder / "run", RunContext())
    for path, content in kept.items():
        path.write_bytes(content)
    return resume_run(folder / "run", RunContext())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return PixelFiles.find(str(folder), None, offline=True).network().state_dict()


def test_what_was_not_chosen_is_the_checkpoint_s_to_the_bit_and_the_model_needs_the_checkpoint_no_more(
    run: Any,
) -> None:
    assert releases(run) == [(name, 1) for name in BLOCKS]
    before, after = weights(run.folder.parent / "brought"), weights(run.folder / "model")
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    targets = tuple(f"{name}.weight" for name in LORA["targets"])
    assert moved == {name for name in after if name.endswith(targets)} | {"class_embedding.weight"}
    found = FineTune(model="./nowhere", device="cpu")
    found.load(run.folder / "model")
    assert (
        len(found.random_api(RandomRequest(CLASSES, np.array([1, 2], dtype=np.uint64))).samples)
        == 2
    )
    digest = json.loads((run.folder / "model" / "checkpoint.json").read_text())
    assert len(digest["weights"]) == 64


# Through the latents of Stable Diffusion.

PROMPTS, COUNT = {"ell": "a l", "oh": "an o"}, 8


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("brought")
    torch.manual_seed(0)
    stable_diffusion().save_pretrained(folder)
    return folder


def records() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (COUNT, SIDE, SIDE, 1), dtype=np.uint8)


def test_what_is_noised_is_the_scaled_latent_under_the_label_s_prompt(pipeline: Path) -> None:
    whole = stable_diffusion().from_pretrained(pipeline, requires_safety_checker=False)
    loss, image = (
        latent_checkpoint(pipeline, PROMPTS, CLASSES, (SIDE, SIDE, 1)).loss(CPU),
        torch.from_numpy(records()[0]).permute(2, 0, 1) / 127.5 - 1,
    )
    drawn = loss.draw(2, (1, SIDE, SIDE), torch.Generator().manual_seed(1))
    with torch.no_grad():
        latent = whole.vae.encode(image.expand(3, -1, -1)[None]).latent_dist.mode() * 0.18215
        wanted = whole.scheduler.add_noise(latent.expand(2, -1, -1, -1), drawn[2], drawn[0])
        text = whole.encode_prompt("an o", CPU, 1, False)[0]

    def oracle(
        noisy: torch.Tensor, steps: torch.Tensor, encoder_hidden_states: torch.Tensor
    ) -> Any:
        torch.testing.assert_close(noisy, wanted)
        torch.testing.assert_close(encoder_hidden_states, text.expand(2, -1, -1))
        return type("Output", (), {"sample": drawn[2] + 0.5})

    torch.testing.assert_close(loss(oracle, image, torch.tensor(1), drawn), torch.full((2,), 0.25))


def test_it_is_fitted_and_sampled_and_all_but_the_chosen_layers_is_the_checkpoint_s(
    pipeline: Path, tmp_path: Path
) -> None:
    np.savez(
        tmp_path / "private.npz", images=records(), labels=np.array(CLASSES)[np.arange(COUNT) % 2]
    )
    shape = {"size": SIDE, "channels": 1, "classes": list(CLASSES), "declared_size": COUNT}
    training = {
        "steps": 1,
        "expected_batch": COUNT,
        "draws": 1,
        "micro_batch": COUNT,
        "learning_rate": 0.1,
    }
    api = {"kind": "finetune", "model": str(pipeline), "prompts": PROMPTS, "training": training}
    content = {
        "private": {"kind": "npz", "path": tmp_path / "private.npz", **shape},
        "api": api | {"sampling": {"steps": 2}, "device": "cpu"},
        "embedding": {"kind": "pixels", "size": 8},
        "privacy": {"epsilon": 8, "delta": 1e-3},
        "evolution": {"iterations": 0, "population": 2},
    }
    run = run_recipe(Recipe.parse(content, "the test"), tmp_path / "run", RunContext())
    assert run.synthetic.samples.array.shape == (2, SIDE, SIDE, 1)
    assert set(run.synthetic.conditions["prompt"]) == {"a l", "an o"}
    kind = type(stable_diffusion())
    before, after = (
        kind.from_pretrained(each, safety_checker=None) for each in (pipeline, run.folder / "model")
    )
    for part in ("unet", "vae", "text_encoder"):
        old, new = (getattr(each, part).state_dict() for each in (before, after))
        moved = {name for name, value in new.items() if not torch.equal(value, old[name])}
        layers = tuple(f"{name}.weight" for name in LoRA().targets)
        assert moved == (
            {name for name in new if name.endswith(layers)} if part == "unet" else set()
        )
    assert "unet/diffusion_pytorch_model.safetensors" in json.loads(
        (run.folder / "model" / "checkpoint.json").read_text()
    )
    out = run.export(tmp_path / "out")
    assert [
        path.name for path in out.rglob("*.*") if str(pipeline.parent).encode() in path.read_bytes()
    ] == []
    images = np.random.default_rng(0).integers(0, 256, (2, SIDE, SIDE, 1)).astype(np.uint8)
    fitted = FineTune(model="./nowhere", device="cpu")
    losses = fitted.record_losses(run.folder / "model", images, ["oh", "ell"])
    assert (fitted.record_losses(run.folder / "model", images[1:], ["ell"]) == losses[1:]).all()
    assert (fitted.record_losses(run.folder / "model", images[1:], ["oh"]) != losses[1:]).all()
