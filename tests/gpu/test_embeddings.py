"""Vectors of a convolutional network and of a transformer: by batch, and beside the CPU's."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import Dinov2Config, Dinov2Model

from embeddings.inception_network import InceptionNetwork
from embeddings.networks import DINOv2, Inception
from pe.data.images import Images
from tests.gpu.conftest import Tell
from tests.gpu.models import GPU

pytestmark = GPU
NEAR = 1e-3
"""Of the vectors' root mean square, by which fp32 may differ between batches, and between the GPU and the CPU."""


def inception(folder: Path, _tiny: bool) -> Callable[..., Any]:
    network = InceptionNetwork()
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.kaiming_normal_(parameter)  # signals neither die nor grow
    file = str(folder / "inception.safetensors")
    save_file(network.state_dict(), file)
    return lambda **settings: Inception(weights=file, offline=True, **settings)


def dinov2(folder: Path, tiny: bool) -> Callable[..., Any]:
    side = 28 if tiny else 224
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2} if tiny else {}
    Dinov2Model(Dinov2Config(image_size=side, **small)).save_pretrained(folder)
    return lambda **settings: DINOv2(model=str(folder), crop=side, **settings)


@pytest.mark.parametrize("kind", [inception, dinov2])
def test_vectors_differ_by_rounding_alone(
    kind: Callable[..., Any], device: str, tiny: bool, tell: Tell, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    build = kind(tmp_path, tiny)
    batch, count = (2, 2) if tiny else (16, 64)
    images = Images(np.random.default_rng(0).integers(0, 256, (count, 64, 64, 3), dtype=np.uint8))
    alone, together = build(device=device, batch_size=1).embed(images), build(device=device, batch_size=batch)
    together.embed(Images(images.pixels[:batch]))
    begun = time.perf_counter()
    vectors = together.embed(images)
    tell("images/s", count / (time.perf_counter() - begun))
    few = build(device="cpu", batch_size=1).embed(Images(images.pixels[:8]))
    for what, one, other in ((f"batch 1 against {batch}", alone, vectors), ("GPU against CPU", alone[:8], few)):
        apart = float(np.abs(one - other).max() / np.sqrt(np.square(one, dtype=np.float64).mean()))
        tell(what, apart)
        assert apart <= NEAR
