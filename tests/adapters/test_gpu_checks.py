"""Each check of `pe doctor --gpu`, on a processor and with tiny shapes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.backends import cudnn
from torch.nn.modules.module import register_module_forward_pre_hook

from adapters.gpu_check.busy import readings
from pe.engine.gpu_check.runner import GROUP, check_names
from pe.engine.gpu_check.search import _FLOAT32
from pe.plugins.gpu_checks import Found, GPUCheck
from pe.plugins.registry import load

ELSEWHERE = ("replicas", "versions")
"""tests/adapters/server/test_replicas.py and tests/engine/test_gpu_check.py."""

SLOW = ("bits", "embeddings", "batches", "compile")
"""They start processes of their own."""


CONVOLUTIONS = {
    "batches": {"ieee", "tf32"},  # what is judged, and what torch takes by itself
    "memory": {"ieee"},
    "compile": {"ieee"},
    "two_gpus": {"ieee"},
    "recovery": {"tf32"},
    "busy": {"tf32"},
}
"""In what a text model's float32 convolutions would be computed on a GPU."""


@pytest.fixture
def arithmetic() -> Iterator[set[str]]:
    """torch's setting for convolutions at each call of a text model's network."""
    seen: set[str] = set()

    def note(module: Any, _given: Any) -> None:
        if type(module).__name__ == "UNet2DConditionModel":
            seen.add(cudnn.conv.fp32_precision)

    handle = register_module_forward_pre_hook(note)
    yield seen
    handle.remove()
    assert cudnn.conv.fp32_precision == "tf32"  # as it was before


def passed(name: str) -> Found:
    check: GPUCheck = load(GROUP, name)
    found = check.run("cpu", "tiny")
    assert found.state == "pass", found
    return found


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # diffusers and numpy 2
@pytest.mark.filterwarnings("ignore:.*upcast_vae:FutureWarning")  # diffusers' own
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name in check_names()
        if name not in ELSEWHERE
    ],
)
def test_a_check_passes_on_a_processor(name: str, arithmetic: set[str]) -> None:
    assert passed(name).figures
    assert arithmetic == CONVOLUTIONS.get(name, set())


def test_the_busy_share_is_the_driver_s_without_its_first_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    program = f"#!/bin/sh\necho \"$@\" > {asked}\necho 3\necho 90\necho '[N/A]'\necho 96\nexec sleep 60\n"
    (tmp_path / "nvidia-smi").write_text(program)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with readings("GPU-1") as shares:
        while not asked.exists():
            time.sleep(0.01)
        time.sleep(0.1)
    assert shares == [90.0, 96.0]
    assert asked.read_text().split()[:2] == ["--id=GPU-1", "--query-gpu=utilization.gpu"]
    with readings(None) as shares:
        pass
    assert shares == []


def test_the_error_that_tells_tf32_from_float32_lies_between_the_two() -> None:
    rng = np.random.default_rng(0)
    queries, candidates = (rng.standard_normal((n, 768), dtype=np.float32) for n in (16, 2_000))
    exact = np.square(queries[:, None].astype(np.float64) - candidates).sum(axis=2)
    reach = (np.linalg.norm(queries, axis=1)[:, None] + np.linalg.norm(candidates, axis=1)) ** 2

    def error(product: np.ndarray) -> float:
        squares = np.square(queries).sum(axis=1)[:, None] + np.square(candidates).sum(axis=1)
        return float(np.abs((squares - 2 * product - exact) / reach).max())

    cut = [(one.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for one in (queries, candidates)]
    assert 4 * error(queries @ candidates.T) < _FLOAT32 < error(cut[0] @ cut[1].T) / 4
