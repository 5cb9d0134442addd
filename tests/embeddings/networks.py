"""Randomly initialised networks in weight files, for the embeddings that run networks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from embeddings.inception_network import InceptionNetwork
from embeddings.networks import DINOv2, EfficientNetLite, Inception, OpenCLIP
from embeddings.sentence_transformers import SentenceTransformers
from pe.data.images import Images
from pe.plugins.protocols import Embedding
from tests.embeddings import sentences

TOWER = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}


def images(count: int, seed: int = 0, *, height: int = 12, width: int = 12, channels: int = 3) -> Images:
    shape = (count, height, width, channels)
    return Images(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def lively(module: torch.nn.Module, seed: int = 0) -> dict[str, torch.Tensor]:
    """A state dict with which signals neither die nor grow, and no two channels are alike."""
    draw = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in module.state_dict().items():
        noise = torch.randn(tensor.shape, generator=draw, dtype=torch.float32)
        if name.endswith("running_var"):
            state[name] = 1 + 0.3 * noise.abs()
        elif name.endswith("num_batches_tracked"):
            state[name] = tensor
        elif tensor.ndim > 1:
            state[name] = noise * (2 / tensor[0].numel()) ** 0.5
        else:
            state[name] = 0.1 * noise + (1.0 if name.endswith("weight") else 0.0)
    return state


def inception_file(folder: Path) -> Path:
    file = folder / "inception.safetensors"
    save_file(lively(InceptionNetwork()), file)
    return file


def open_clip_files(folder: Path, quick_gelu: bool = False) -> tuple[Path, Path]:
    """A configuration and its weights, as OpenCLIP itself makes them."""
    import open_clip

    text = {"context_length": 8, "vocab_size": 16, "width": 16, "heads": 1, "layers": 1}
    config = folder / "tiny-tower.json"
    content = {"embed_dim": 24, "quick_gelu": quick_gelu, "vision_cfg": TOWER, "text_cfg": text}
    config.write_text(json.dumps(content), encoding="utf-8")
    model = open_clip.CLIP(24, TOWER, text, quick_gelu=quick_gelu)
    torch.save(lively(model), folder / "tiny.pt")
    return config, folder / "tiny.pt"


def dinov2_folder(folder: Path) -> Path:
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14)
    model = Dinov2Model(config)
    model.load_state_dict(lively(model))
    model.save_pretrained(folder / "dinov2")
    return folder / "dinov2"


def networks(folder: Path) -> dict[str, Embedding]:
    """All embeddings that run a network, with random weights in files below `folder`."""
    config, weights = open_clip_files(folder)
    return {
        "dinov2": DINOv2(model=str(dinov2_folder(folder)), resize=32, crop=28, device="cpu", batch_size=8),
        "efficientnet_lite": EfficientNetLite(resize=32, crop=32, device="cpu", batch_size=8),  # its real weights
        "inception": Inception(weights=str(inception_file(folder)), device="cpu", batch_size=2),
        "open_clip": OpenCLIP(model=str(config), weights=str(weights), device="cpu", batch_size=8),
        "sentence_transformers": SentenceTransformers(
            model=sentences.encoder(folder / "e"), device="cpu", batch_size=4
        ),
        "static": SentenceTransformers(model=sentences.static(folder / "static"), device="cpu", batch_size=4),
    }
