"""The check `embeddings`: vectors of a convolutional network and of a transformer, by batch, and beside the CPU's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from embeddings.dinov2 import DINOv2
from embeddings.inception import Inception
from embeddings.torch_model import TorchEmbedding
from pe.data.images import Images
from pe.plugins.gpu_checks import Figure, Found, GPUCheck, Size, judged
from pe.plugins.protocols import Vectors

_SIZES: dict[Size, tuple[int, int]] = {"tiny": (2, 2), "small": (16, 16), "real": (16, 64)}
"""The larger batch, and how many images there are."""

_NEAR = 1e-3
"""Of the vectors' root mean square, by which fp32 may differ between batches, and between the GPU and the CPU."""

_CPU_IMAGES = 8
Build = Callable[[str, int], TorchEmbedding]


def check_embeddings(device: str, size: Size) -> Found:
    """How far vectors of batches of 16 are from those of batches of 1, and both from the CPU's, in float32."""
    figures: dict[str, Figure] = {}
    faults: list[str] = []
    batch, count = _SIZES[size]
    images = Images(np.random.default_rng(0).integers(0, 256, (count, 64, 64, 3), dtype=np.uint8))
    for kind in (_inception, _dinov2):
        with kind(size) as (name, build):
            alone = build(device, 1).embed(images)
            together = build(device, batch)
            together.embed(Images(images.pixels[:batch]))
            begun = time.perf_counter()
            found = together.embed(images)
            figures[f"{name}: images/s"] = count / (time.perf_counter() - begun)
            few = Images(images.pixels[:_CPU_IMAGES])
            apart = {
                f"batch 1 against {batch}": _apart(alone, found),
                "GPU against CPU": _apart(build("cpu", 1).embed(few), alone[:_CPU_IMAGES]),
            }
        for what, difference in apart.items():
            figures[f"{name}: {what}"] = "identical" if difference == 0 else difference
            if not difference <= _NEAR:
                faults.append(f"{name}: {what} differ by {difference:.1e} of their size, and {_NEAR:g} is allowed")
    return judged(figures, faults)


def _apart(vectors: Vectors, others: Vectors) -> float:
    """The largest difference, as a share of the vectors' root mean square."""
    return float(np.abs(vectors - others).max() / np.sqrt(np.square(vectors, dtype=np.float64).mean()))


@contextmanager
def _inception(_size: Size) -> Iterator[tuple[str, Build]]:
    """Inception-v3 with random weights; it has one size."""
    import torch
    from safetensors.torch import save_file

    from embeddings.inception_network import InceptionNetwork

    torch.manual_seed(0)
    network = InceptionNetwork()
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.kaiming_normal_(parameter)  # signals neither die nor grow
    with TemporaryDirectory() as folder:
        file = str(Path(folder) / "inception.safetensors")
        save_file(network.state_dict(), file)
        yield "Inception", lambda device, batch: Inception(weights=file, device=device, batch_size=batch, offline=True)


@contextmanager
def _dinov2(size: Size) -> Iterator[tuple[str, Build]]:
    """DINOv2 with random weights; its base model's shape, but in tests."""
    import torch
    from transformers import Dinov2Config, Dinov2Model

    torch.manual_seed(0)
    tiny = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28}
    crop = 28 if size == "tiny" else 224
    with TemporaryDirectory() as folder:
        Dinov2Model(Dinov2Config(**(tiny if size == "tiny" else {"image_size": 224}))).save_pretrained(folder)
        yield "DINOv2", lambda device, batch: DINOv2(model=folder, crop=crop, device=device, batch_size=batch)


CHECK = GPUCheck(check_embeddings, seconds=150)
