"""Several devices in one process: what they share while a model is loaded, and the precision that each is given."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.diffusion.device import dtype_on
from adapters.diffusion.engine import Engine
from adapters.diffusion.items import Item, Job, normals, seeded
from pe.engine.execution import Surroundings, run_recipe
from pe.errors import RecipeError
from pe.planning.build import set_up_generator
from pe.planning.checks import look_ahead
from pe.planning.forecast import Forecast, forecast
from pe.plugins import devices
from pe.recipe.schema import Recipe
from tests.fake_cards import fake_cards
from tests.recipe.test_schema import with_


@pytest.fixture
def default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("default_dtype")
def test_no_device_samples_while_another_loads_its_model_under_another_default_dtype() -> None:
    """As diffusers and transformers load: their default dtype is the whole process's."""
    loaded, sampling, dtypes = [], threading.Event(), []

    class Noting:
        def sample(self, job: Job, items: Any) -> Any:
            dtypes.append(torch.get_default_dtype())
            sampling.set()
            return [np.zeros((1, 1, 1), dtype=np.uint8) for _ in items]

        vary = sample

    def load(device: torch.device) -> Any:
        torch.set_default_dtype(torch.bfloat16)
        if loaded:
            sampling.wait(0.2)  # for the other device, if it does not wait for this one
        torch.set_default_dtype(torch.float32)
        loaded.append(device)
        return Noting()

    Engine(load, device=["cpu", "cpu"], batch_size=1).run([Item(Job(1), seed) for seed in range(4)])
    assert len(loaded) == 2
    assert set(dtypes) == {torch.float32}


@pytest.mark.parametrize(("device", "most"), [("cuda:0", 1024), ("mps", 64), ("cpu", 64)])
def test_a_batch_grows_to_a_whole_request_on_a_gpu(device: str, most: int) -> None:
    sizes = []

    class Noting:
        def sample(self, job: Job, items: Any) -> Any:
            sizes.append(len(items))
            return [np.zeros((1, 1, 1), dtype=np.uint8)] * len(items)

        vary = sample

    with fake_cards():
        engine = Engine(lambda _: Noting(), device=device)
        for _ in range(3):
            engine.run([Item(Job(1), 0)] * 1024)
    assert max(sizes) == most


@pytest.mark.usefixtures("default_dtype")
def test_noise_is_float32_under_any_default_dtype() -> None:
    expected = normals((4, 4), [seeded(7)])
    torch.set_default_dtype(torch.bfloat16)
    drawn = normals((4, 4), [seeded(7)])
    assert drawn.dtype == torch.float32
    assert torch.equal(drawn, expected)


@pytest.mark.parametrize(
    ("device", "native", "dtype"),
    [
        ("cuda:1", True, torch.bfloat16),
        ("cuda:1", False, torch.float32),
        ("mps", True, torch.float32),
        ("cpu", True, torch.float32),
    ],
)
def test_precision_auto_is_bf16_where_a_gpu_computes_in_it(
    device: str, native: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """torch alone says that GPUs before Ampere can, since it emulates it there."""
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native or including_emulation)
    with caplog.at_level("INFO"):
        assert dtype_on(torch.device(device), "auto") == dtype
    assert f"precision: auto is {'bf16' if dtype == torch.bfloat16 else 'fp32'} on {device}." in caplog.text
    assert dtype_on(torch.device(device), "fp32") == torch.float32


def recipe_of(private: Path, **api: object) -> Recipe:
    api |= {"kind": "pixel_diffusion", "model": "small"}
    return Recipe.parse(with_(api=api, private__path=str(private)), "here")


def planned(recipe: Recipe) -> Forecast:
    generator, why = set_up_generator(recipe.api)
    assert generator is not None, why
    return forecast(recipe, generator, look_ahead(recipe, generator))


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's GPUs of two kinds, of which the first computes in bf16."""
    for name in ("nvidia0", "nvidia1"):
        (tmp_path / name).touch()
    inside: list[torch.device] = []

    @contextmanager
    def entered(device: torch.device) -> Iterator[None]:
        inside.append(device)
        yield

    monkeypatch.setattr(devices, "DRIVER", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device", entered)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: inside[-1].index == 0)


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("api", "told"),
    [
        ({}, "auto, which is bf16 on cuda:0, fp32 on cuda:1"),
        ({"device": "cuda:1"}, "auto, which is fp32 on cuda:1"),
        ({"device": "cpu"}, "auto, which is fp32 on cpu"),
        ({"precision": "fp16"}, "fp16"),
    ],
)
def test_the_plan_states_the_precision(api: dict[str, object], told: str, tmp_path: Path) -> None:
    found = planned(recipe_of(tmp_path, **api))
    assert found.to_dict()["precision"] == told
    assert f"\nPrecision   {told}\n" in f"{found}\n"


def test_without_a_gpu_the_plan_states_it_without_torch() -> None:
    code = (
        "import sys\n"
        "from adapters.diffusion.pixel import PixelSpace\n"
        "print(PixelSpace(model='small').describe_precision(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "auto, which is fp32 here False\n"


@pytest.mark.usefixtures("driver")
def test_a_device_that_is_not_there_stops_the_plan_and_the_start(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, device="cuda:2", precision="fp32")
    says = r"evice is 'cuda:2', and this machine has 2 CUDA devices to use .+: give one that is there, or auto\.$"
    found = planned(recipe)
    (warning,) = (one for one in found.warnings if "cuda:2" in one)
    assert re.match(f"A run would not start: d{says}", warning)
    assert found.to_dict()["precision"] is None
    with pytest.raises(RecipeError, match=f"^d{says}"):
        run_recipe(recipe, tmp_path / "run", Surroundings())
    assert not (tmp_path / "run").exists()
