"""A Stable Diffusion checkpoint is fitted through its latents, each of one record alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.trained.dp_sgd.gradients import record_gradients, trained_parameters
from adapters.trained.finetune import FineTune, LoRA, prepare
from adapters.trained.finetune_models import LatentCheckpoint, latent_checkpoint
from pe.engine.execution import Surroundings, run_recipe
from pe.errors import PEError
from pe.recipe.schema import Recipe
from tests.adapters.diffusion.tiny import SIDE, stable_diffusion, stable_diffusion_2
from tests.adapters.trained.finetune.test_gradients import CPU, moved

LABELS, PROMPTS, COUNT = ("ell", "oh"), {"ell": "a l", "oh": "an o"}, 8


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("brought")
    torch.manual_seed(0)
    stable_diffusion().save_pretrained(folder)
    return folder


def checkpoint(place: Path) -> LatentCheckpoint:
    return latent_checkpoint(place, PROMPTS, LABELS, (SIDE, SIDE, 1))


def records() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (COUNT, SIDE, SIDE, 1), dtype=np.uint8)


@pytest.mark.parametrize("pipeline", [stable_diffusion, stable_diffusion_2])
def test_per_record_gradients_equal_a_loop_s_and_feel_no_other_record(
    pipeline: Callable[[], Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    pipeline().save_pretrained(tmp_path)
    found = checkpoint(tmp_path)
    model, loss = moved(prepare(found.network(), LoRA(rank=2), ("conv_in",), 0)), found.loss(CPU)
    images = torch.from_numpy(records()[:3]).permute(0, 3, 1, 2) / 127.5 - 1
    labels = torch.tensor([0, 1, 1])
    drawn = loss.draw(3, 2, (1, SIDE, SIDE), torch.Generator().manual_seed(1))
    assert drawn[2].shape == (3, 2, 4, SIDE // 8, SIDE // 8)
    before = record_gradients(model, loss, trained_parameters(model), images, labels, drawn)
    trained = [value for value in model.parameters() if value.requires_grad]
    for i in range(3):
        model.zero_grad()
        loss(model, images[i], labels[i], tuple(part[i] for part in drawn)).mean().backward()
        for ours, parameter in zip(before, trained, strict=True):
            assert (ours[i] - parameter.grad).abs().max() <= 1e-5 * max(1.0, float(parameter.grad.abs().max()))
    images[1:] = -images[1:]
    after = record_gradients(model, loss, trained_parameters(model), images, labels, drawn)
    assert all(torch.equal(one[0], other[0]) for one, other in zip(before, after, strict=True))
    assert not any(torch.equal(one[1], other[1]) for one, other in zip(before[:4], after[:4], strict=True))


def test_what_is_noised_is_the_scaled_latent_under_the_label_s_prompt(brought: Path) -> None:
    pipeline = stable_diffusion().from_pretrained(brought, requires_safety_checker=False)
    loss, image = checkpoint(brought).loss(CPU), torch.from_numpy(records()[0]).permute(2, 0, 1) / 127.5 - 1
    drawn = tuple(part[0] for part in loss.draw(1, 2, (1, SIDE, SIDE), torch.Generator().manual_seed(1)))
    with torch.no_grad():
        latent = pipeline.vae.encode(image.expand(3, -1, -1)[None]).latent_dist.mode() * 0.18215
        wanted = pipeline.scheduler.add_noise(latent.expand(2, -1, -1, -1), drawn[2], drawn[0])
        text = pipeline.encode_prompt("an o", CPU, 1, False)[0]

    def oracle(noisy: torch.Tensor, steps: torch.Tensor, encoder_hidden_states: torch.Tensor) -> Any:
        torch.testing.assert_close(noisy, wanted)
        torch.testing.assert_close(encoder_hidden_states, text.expand(2, -1, -1))
        return type("Output", (), {"sample": drawn[2] + 0.5})

    torch.testing.assert_close(loss(oracle, image, torch.tensor(1), drawn), torch.full((2,), 0.25))


def carried_out(folder: Path, model: Path, **changes: Any) -> Any:
    np.savez(folder / "private.npz", images=records(), labels=np.array(LABELS)[np.arange(COUNT) % 2])
    size = changes.pop("size", SIDE)
    shape = {"size": size, "channels": 1, "classes": list(LABELS), "declared_size": COUNT}
    api = {
        "kind": "finetune",
        "model": str(model),
        "prompts": PROMPTS,
        "training": {"steps": 1, "expected_batch": COUNT, "draws": 1, "micro_batch": COUNT, "learning_rate": 0.1},
        "sampling": {"steps": 2},
        "device": "cpu",
    }
    content = {
        "private": {"kind": "npz", "path": folder / "private.npz", **shape},
        "api": api | changes,
        "embedding": {"kind": "pixels", "size": 8},
        "privacy": {"epsilon": 8, "delta": 1e-3},
        "evolution": {"iterations": 0, "population": 2},
    }
    return run_recipe(Recipe.parse(content, "the test"), folder / "run", Surroundings())


def test_it_is_fitted_and_sampled_and_all_but_the_chosen_layers_is_the_checkpoint_s(
    brought: Path, tmp_path: Path
) -> None:
    run = carried_out(tmp_path, brought)
    assert run.synthetic.samples.array.shape == (2, SIDE, SIDE, 1)
    assert set(run.synthetic.conditions["prompt"]) == {"a l", "an o"}
    kind = type(stable_diffusion())
    before, after = (kind.from_pretrained(each, safety_checker=None) for each in (brought, run.folder / "model"))
    for part in ("unet", "vae", "text_encoder"):
        old, new = (getattr(each, part).state_dict() for each in (before, after))
        moved = {name for name, value in new.items() if not torch.equal(value, old[name])}
        layers = tuple(f"{name}.weight" for name in LoRA().targets)
        assert moved == ({name for name in new if name.endswith(layers)} if part == "unet" else set())
    assert "unet/diffusion_pytorch_model.safetensors" in json.loads(
        (run.folder / "model" / "checkpoint.json").read_text()
    )
    out = run.export(tmp_path / "out")
    assert [path.name for path in out.rglob("*.*") if str(brought.parent).encode() in path.read_bytes()] == []
    images = np.random.default_rng(0).integers(0, 256, (2, SIDE, SIDE, 1)).astype(np.uint8)
    fitted = FineTune(model="./nowhere", device="cpu")
    losses = fitted.record_losses(run.folder / "model", images, ["oh", "ell"])
    assert (fitted.record_losses(run.folder / "model", images[1:], ["ell"]) == losses[1:]).all()
    assert (fitted.record_losses(run.folder / "model", images[1:], ["oh"]) != losses[1:]).all()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prompts": None}, "prompts is missing: give a public text for each label"),
        ({"prompts": {"ell": "a l"}}, "prompts: there is none for the label 'oh'"),
        ({"classes": {"ell": 0}}, "classes is given, but api.model draws from text"),
        ({"sampling": {"sampler": "ddpm"}}, "api.model has a sampler of its own"),
        ({"size": 24}, "images whose sides 16 divides, grey or RGB, and the private images are 24×24×1"),
        ({"model": "small"}, "prompts is given, but api.model is in pixel space"),
        ({"layers": ["to_qq"]}, "layers: no layer .* ends in 'to_qq'"),
    ],
)
def test_what_cannot_be_fitted_is_one_sentence(
    changes: dict[str, Any], sentence: str, brought: Path, tmp_path: Path
) -> None:
    with pytest.raises(PEError, match=sentence) as raised:
        carried_out(tmp_path, **({"model": brought} | changes))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_another_pipeline_is_refused(brought: Path, tmp_path: Path) -> None:
    index = json.loads((brought / "model_index.json").read_text())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model_index.json").write_text(json.dumps(index | {"_class_name": "FluxPipeline"}))
    with pytest.raises(PEError, match=r"api\.model is a FluxPipeline: those that can be fitted are"):
        carried_out(tmp_path, tmp_path / "other")
