"""What is trained is what was chosen, and each record's gradient is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from adapters.diffusion.pixel import PixelFiles
from adapters.trained.dp_sgd.gradients import record_gradients, trained_parameters
from adapters.trained.finetune import COVERED, LoRA, prepare
from adapters.trained.finetune_models import LowRank, PixelCheckpoint, check_gradients, merge_matrices
from pe.errors import PluginError
from tests.adapters.trained.dp_sgd.models import Classifying, Denoising, resnet
from tests.adapters.trained.finetune.brought import LORA, checkpoint, write_checkpoint

LABELS, CPU = ("L", "oh"), torch.device("cpu")
EVERYWHERE = {
    "LoRA": (LoRA.model_validate(LORA), ("class_embedding",)),
    "layers": (None, ("to_k", "group_norm", "conv_in", "linear_1", "class_embedding")),
}


def brought(labels: tuple[str, ...] = LABELS, place: str | None = None, **classes: str | int) -> PixelCheckpoint:
    files = PixelFiles.find(place or checkpoint(), None, offline=True)
    return PixelCheckpoint(files, labels, (8, 8, 1), classes or None)


def moved(model: nn.Module, by: float = 0.1) -> nn.Module:
    """With LoRA's second matrices no longer zero, where half of the gradients would be."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            if value.requires_grad:
                value += by * torch.randn(value.shape, generator=generator)
    return model


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand((3, 1, 8, 8), generator=torch.Generator().manual_seed(2)) * 2 - 1, torch.tensor([0, 1, 1])


@pytest.mark.parametrize("lora, layers", EVERYWHERE.values(), ids=EVERYWHERE)  # noqa: PT006
def test_per_record_gradients_of_what_is_chosen_equal_a_loop_s(lora: LoRA | None, layers: tuple[str, ...]) -> None:
    model, loss = moved(prepare(brought().network(), lora, layers, 0)), brought().loss(CPU)
    images, labels = batch()
    drawn = loss.draw(3, 2, (1, 8, 8), torch.Generator().manual_seed(1))
    found = record_gradients(model, loss, trained_parameters(model), images, labels, drawn)
    trained = [value for value in model.parameters() if value.requires_grad]
    for i in range(3):
        model.zero_grad()
        loss(model, images[i], labels[i], tuple(part[i] for part in drawn)).mean().backward()
        for ours, parameter in zip(found, trained, strict=True):
            assert (ours[i] - parameter.grad).abs().max() <= 1e-5 * max(1.0, float(parameter.grad.abs().max()))
            assert ours.any() or parameter.shape[0] == 2  # a label's row, of a record with the other
    assert all(value.grad is None for value in model.parameters() if not value.requires_grad)


def only_chosen_are_trained(model: nn.Module) -> None:
    names = {name.rpartition(".")[2] for name in trained_parameters(model) if not name.startswith("class_embedding")}
    assert names == {"A", "B"}
    counted = sum(value.numel() for value in trained_parameters(model).values())
    wanted = sum(
        2 * (module.base.weight[0].numel() + module.base.weight.shape[0])
        for module in model.modules()
        if isinstance(module, LowRank)
    )
    assert counted == wanted + 2 * 32  # and a row of 32 for each label


def test_lora_trains_its_matrices_and_the_label_embedding_alone() -> None:
    model = prepare(brought().network(), *EVERYWHERE["LoRA"], 0)
    only_chosen_are_trained(model)
    next(module for module in model.modules() if isinstance(module, LowRank)).base.requires_grad_(True)
    with pytest.raises(AssertionError):  # a base layer that is trained, too
        only_chosen_are_trained(model)


def test_the_model_begins_as_it_was_and_the_merged_one_is_the_fitted_one() -> None:
    images, labels = batch()
    steps = torch.tensor([10, 500, 900])
    before = brought().network()
    model = prepare(brought().network(), *EVERYWHERE["LoRA"], 0)
    with torch.no_grad():
        torch.testing.assert_close(model(images, steps, labels).sample, before(images, steps, labels).sample)
        fitted = moved(model)(images, steps, labels).sample
        merge_matrices(model)
        assert model.state_dict().keys() == before.state_dict().keys()
        torch.testing.assert_close(model(images, steps, labels).sample, fitted, atol=1e-5, rtol=1e-4)
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
def test_the_loss_is_of_what_the_checkpoint_predicts_on_its_own_schedule(prediction: str, tmp_path: Path) -> None:
    place = write_checkpoint(tmp_path, prediction_type=prediction, beta_schedule="squaredcos_cap_v2")
    found = brought(place=str(place))
    loss, schedule = found.loss(CPU), found.files.sampler("ddpm")
    drawn = tuple(part[0] for part in loss.draw(1, 4, (1, 8, 8), torch.Generator().manual_seed(3)))
    steps, _, noise = drawn
    x = batch()[0][:1]
    wanted = {"epsilon": noise, "sample": x.expand(4, -1, -1, -1)}
    wanted["v_prediction"] = schedule.get_velocity(wanted["sample"], noise, steps)

    def oracle(noisy: torch.Tensor, t: torch.Tensor, class_labels: torch.Tensor) -> Any:
        torch.testing.assert_close(noisy, schedule.add_noise(wanted["sample"], noise, steps))
        return type("Output", (), {"sample": wanted[prediction] + 0.5})

    torch.testing.assert_close(loss(oracle, x[0], torch.tensor(0), drawn), torch.full((4,), 0.25))


class Wrong(torch.autograd.Function):
    """The identity, whose rule for vmap halves all records but the first."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return torch.cat([x[:1], x[1:] / 2]), 0


class Deciding(nn.Module):
    """Looks at a value, which differs from record to record."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum().item() > 0 else -x


class Halving(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Wrong.apply(x)


@pytest.mark.parametrize(
    ("layer", "sentence"), [(Deciding(), "no gradient per record"), (Halving(), "another gradient for a record")]
)
def test_a_layer_that_vmap_does_not_cover_or_gets_wrong_is_refused_before_a_record_is_seen(
    layer: nn.Module, sentence: str
) -> None:
    model = resnet()
    check_gradients(model, Classifying(), (8, 8, 1), CPU)
    model.block.append(layer)
    with pytest.raises(PluginError, match=sentence) as raised:
        check_gradients(model, Classifying(), (8, 8, 1), CPU)
    assert "\n" not in str(raised.value)


def test_every_kind_of_layer_that_may_be_trained_whole_is_checked_here() -> None:
    model = prepare(brought().network(), *EVERYWHERE["layers"], 0)
    kinds = {type(module).__name__ for module in model.modules() if any(p.requires_grad for p in module.parameters())}
    assert set(COVERED) - kinds == {"LayerNorm"}  # of the generator in tests/adapters/trained/dp_sgd/test_gradients.py
    check_gradients(model, Denoising(), (8, 8, 1), CPU)


@pytest.mark.slow  # peft takes seconds to load
def test_the_matrices_compute_what_those_of_peft_do() -> None:
    from peft import LoraConfig, inject_adapter_in_model

    ours = prepare(brought().network(), LoRA.model_validate(LORA | {"alpha": 6.0}), (), 0)
    config = LoraConfig(r=2, lora_alpha=6, target_modules=LORA["targets"])
    theirs = inject_adapter_in_model(config, brought().network())
    matrices = {name: value for name, value in moved(ours).named_parameters() if value.requires_grad}
    with torch.no_grad():
        for name, value in theirs.named_parameters():
            if "lora_" in name:
                value.copy_(matrices[name.replace("lora_", "").replace(".default.weight", "")])
        images, labels = batch()
        torch.testing.assert_close(theirs(images, 7, labels).sample, ours(images, 7, labels).sample)
