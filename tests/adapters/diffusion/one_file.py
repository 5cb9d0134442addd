"""Stable Diffusion 1.x in one .safetensors file, with the names that checkpoints of its first code have."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from diffusers import StableDiffusionPipeline
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]

_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "time_emb_proj": "emb_layers.1",
    "conv_shortcut": "skip_connection",
}
_OUTSIDE = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
_ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}


def checkpoint(pipeline: StableDiffusionPipeline, file: Path) -> Path:
    """The pipeline's weights in one file."""
    layers = pipeline.unet.config.layers_per_block
    found = {
        f"model.diffusion_model.{_unet(key, layers)}": tensor for key, tensor in pipeline.unet.state_dict().items()
    }
    found |= {f"first_stage_model.{name}": tensor for name, tensor in _vae(pipeline.vae.state_dict()).items()}
    texts = pipeline.text_encoder.state_dict().items()
    found |= {f"cond_stage_model.transformer.text_model.{key}": tensor for key, tensor in texts}
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, file)
    return file


def _unet(key: str, layers: int) -> str:
    for ours, theirs in _OUTSIDE.items():
        if key.startswith(ours + "."):
            return key.replace(ours, theirs, 1)
    match = re.match(
        r"(down|mid|up)_block(?:s\.(\d+))?\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)\.(.*)", key
    )
    assert match, key
    side, block, part, place, rest = match[1], int(match[2] or 0), match[3], int(match[4]), match[5]
    if part == "resnets":
        name, _, end = rest.partition(".")
        rest = f"{_RESNET[name]}.{end}"
    if side == "mid":
        return f"middle_block.{2 * place if part == 'resnets' else 1}.{rest}"
    if part == "downsamplers":
        return f"input_blocks.{(layers + 1) * (block + 1)}.0.op.{rest.removeprefix('conv.')}"
    if part == "upsamplers":
        inner = 2 if block == 0 else 1  # the tiny network has attention in its first block upwards alone
        return f"output_blocks.{(layers + 1) * block + layers}.{inner}.{rest}"
    where = (layers + 1) * block + place + (1 if side == "down" else 0)
    return f"{'input' if side == 'down' else 'output'}_blocks.{where}.{0 if part == 'resnets' else 1}.{rest}"


def _vae(state: Tensors) -> Tensors:
    blocks = 1 + max(int(found[1]) for key in state if (found := re.search(r"up_blocks\.(\d+)", key)))
    return {_vae_name(key, blocks): _as_convolution(key, tensor) for key, tensor in state.items()}


def _vae_name(key: str, blocks: int) -> str:
    key = re.sub(r"up_blocks\.(\d+)", lambda found: f"up.{blocks - 1 - int(found[1])}", key)
    key = re.sub(r"down_blocks\.(\d+)", r"down.\1", key)
    key = re.sub(r"mid_block\.resnets\.(\d)", lambda found: f"mid.block_{int(found[1]) + 1}", key)
    key = key.replace("mid_block.attentions.0", "mid.attn_1").replace("conv_norm_out", "norm_out")
    key = key.replace("resnets.", "block.").replace("conv_shortcut", "nin_shortcut")
    key = key.replace("downsamplers.0", "downsample").replace("upsamplers.0", "upsample")
    if "attn_1" in key:
        for ours, theirs in _ATTENTION.items():
            key = key.replace(f".{ours}.", f".{theirs}.")
    return key


def _as_convolution(key: str, tensor: torch.Tensor) -> torch.Tensor:
    """Attention was made of convolutions there."""
    is_attention = "attentions" in key and "group_norm" not in key and key.endswith("weight")
    return tensor[:, :, None, None] if is_attention else tensor
