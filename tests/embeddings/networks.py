"""Randomly initialised networks in weight files, for the embeddings that run networks."""

import json

import numpy as np
import open_clip
import torch
from safetensors.torch import save_file
from transformers import Dinov2Config, Dinov2Model

from embeddings.networks import DINOv2, EfficientNetLite, Inception, OpenCLIP, build_inception
from embeddings.sentence_transformers import SentenceTransformers
from pe.data.images import Images
from tests.embeddings import sentences

TOWER = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}


def images(count, seed=0, *, height=12, width=12, channels=3):
    shape = (count, height, width, channels)
    return Images(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def lively(module, seed=0):
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


def open_clip_files(folder, quick_gelu=False):
    """A configuration and its weights, as OpenCLIP itself makes them."""
    text = {"context_length": 8, "vocab_size": 16, "width": 16, "heads": 1, "layers": 1}
    config = folder / "tiny-tower.json"
    content = {"embed_dim": 24, "quick_gelu": quick_gelu, "vision_cfg": TOWER, "text_cfg": text}
    config.write_text(json.dumps(content), encoding="utf-8")
    torch.save(lively(open_clip.CLIP(24, TOWER, text, quick_gelu=quick_gelu)), folder / "tiny.pt")
    return config, folder / "tiny.pt"


def dinov2_folder(folder):
    config = Dinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )
    model = Dinov2Model(config)
    model.load_state_dict(lively(model))
    model.save_pretrained(folder / "dinov2")
    return folder / "dinov2"


def tiny_dinov2(folder, **settings):
    return DINOv2(
        **{"model": str(folder), "resize": 32, "crop": 28, "device": "cpu", "batch_size": 8}
        | settings
    )


def networks(folder, offline=False):
    """All embeddings that run a network, by name, with random weights in files below `folder`."""
    config, weights = open_clip_files(folder)
    save_file(lively(build_inception()), folder / "inception.safetensors")
    texts = {
        "sentence_transformers": sentences.encoder(folder / "e"),
        "static": sentences.static(folder / "static"),
    }
    common = {"device": "cpu", "batch_size": 8, "offline": offline}
    return {
        "dinov2": tiny_dinov2(dinov2_folder(folder), offline=offline),
        "efficientnet_lite": EfficientNetLite(resize=32, crop=32, **common),  # its real weights
        "inception": Inception(
            weights=str(folder / "inception.safetensors"), **common | {"batch_size": 2}
        ),
        "open_clip": OpenCLIP(model=str(config), weights=str(weights), **common),
        **{
            name: SentenceTransformers(model=place, **common | {"batch_size": 4})
            for name, place in texts.items()
        },
    }
