"""The devices that a name stands for, and the precision that each is given."""

from contextlib import nullcontext

import pytest
import torch

from pe.errors import RecipeError
from pe.planning.checks import obstacles
from pe.planning.forecast import forecast
from pe.planning.parts import set_up_generator
from pe.plugins import devices
from pe.plugins.devices import choose_devices
from pe.plugins.specs import construct
from pe.recipe.schema import Recipe
from tests.recipe.test_schema import with_


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A driver's GPUs of two kinds, of which the first computes in bf16."""
    (tmp_path / "nvidia0").touch()
    inside = []
    monkeypatch.setattr(devices, "DRIVER", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(inside.append(device)))
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: inside[-1].index == 0
    )


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("device", "chosen"),
    [
        ("auto", ["cuda:0", "cuda:1"]),
        ("cuda", ["cuda:0"]),
        ("cuda:1", ["cuda:1"]),
        (["cuda:1", "cuda:0"], ["cuda:1", "cuda:0"]),
        ("cpu", ["cpu"]),
    ],
)
def test_the_device_that_is_named_is_taken_and_auto_takes_all(device, chosen):
    assert [str(one) for one in choose_devices(device)] == chosen


def test_without_cards_auto_is_the_processor_and_what_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert [str(device) for device in choose_devices("auto")] == ["cpu"]
    with pytest.raises(RecipeError, match="device` is 'mps', but this machine has no MPS"):
        choose_devices("mps")
    hidden = (
        r"device` is 'cuda:0', but this machine has 0 CUDA devices to use \(CUDA_VISIBLE_DEVICES "
        r"hides others\)"
    )
    with pytest.raises(RecipeError, match=hidden):
        choose_devices("cuda:0")
    for wrong in ("gpu", ["cuda:0", "cuda:x"]):
        with pytest.raises(
            RecipeError, match=r"it must be auto, cpu, mps, cuda, or a GPU such as cuda:1"
        ):
            construct("pe.adapters", "pixel_diffusion", {"model": "small", "device": wrong})


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("api", "told"),
    [
        ({}, "auto, which is bf16 on cuda:0, fp32 on cuda:1"),
        ({"device": "cpu"}, "auto, which is fp32 on cpu"),
        ({"precision": "fp16"}, "fp16"),
        ({"device": "cuda:2"}, None),
    ],
)
def test_the_plan_states_the_precision_and_that_a_device_is_not_there(api, told, tmp_path):
    api |= {"kind": "pixel_diffusion", "model": "small"}
    recipe = Recipe.parse(with_(api=api, private__path=str(tmp_path)), "here")
    generator, _ = set_up_generator(recipe.api)
    found = forecast(recipe, generator, obstacles(recipe, generator))
    assert found.to_dict()["precision"] == told
    assert told is None or f"\nPrecision   {told}\n" in f"{found}\n"
    says = "A run would not start. `device` is 'cuda:2', but this machine has 2 CUDA devices"
    assert any(warning.startswith(says) for warning in found.warnings) == (told is None)
