"""Several devices in one process: what they share while a model is loaded, and the precision that each is given."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from adapters.diffusion.device import dtype_on
from adapters.diffusion.engine import Engine
from adapters.diffusion.items import Item, Job
from adapters.diffusion.noise import normals, seeded


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
