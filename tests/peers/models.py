"""Models for foreign servers, built from configurations: no weights are fetched."""

import json
import struct
from pathlib import Path

import torch
from diffusers import AutoencoderTiny, UNet2DConditionModel
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPTextModel

from tests.adapters.diffusion import tiny


def tiny_stable_diffusion(folder: Path) -> Path:
    """A Stable Diffusion of a few thousand parameters in diffusers' format; its latents are the
    pixels.
    """
    tiny.stable_diffusion(faithful=True).save_pretrained(folder)
    return folder


def blank_stable_diffusion(folder: Path) -> Path:
    """A Stable Diffusion 1.x whose weights are all zero, of the smallest shape that
    stable-diffusion.cpp knows.

    It removes no noise, so a sample is the parent, or nothing, plus the noise of its seed and
    strength. The files are sparse: 850 MB that take no room.
    """
    with torch.device("meta"):
        unet = UNet2DConditionModel(
            layers_per_block=1,
            block_out_channels=(320, 640, 1280),
            cross_attention_dim=768,
            down_block_types=("CrossAttnDownBlock2D",) * 3,
            up_block_types=("CrossAttnUpBlock2D",) * 3,
            mid_block_type=None,
        )
        heads = {"num_hidden_layers": 12, "num_attention_heads": 12}
        text = CLIPTextModel(CLIPTextConfig(hidden_size=768, intermediate_size=3072, **heads))
    _zeros(folder / "unet" / "diffusion_pytorch_model.safetensors", unet)
    _zeros(folder / "text_encoder" / "model.safetensors", text, "text_model.")
    return folder


def faithful_autoencoder(path: Path) -> Path:
    """The TAESD that stable-diffusion.cpp knows, which keeps every eighth pixel: latents are those,
    bent by tanh.
    """
    autoencoder = AutoencoderTiny()
    into, *_, to_latents = _convolutions(autoencoder.encoder.layers)
    from_latents, *_, out = _convolutions(autoencoder.decoder.layers)
    with torch.no_grad():
        for parameter in autoencoder.parameters():
            parameter.zero_()
        for layer in (
            *_convolutions(autoencoder.encoder.layers),
            *_convolutions(autoencoder.decoder.layers),
        ):
            for channel in range(3):
                layer.weight[channel, channel, 1, 1] = 1
        to_latents.weight.mul_(2)
        to_latents.bias.fill_(-1)
        from_latents.bias.fill_(3)  # a ReLU follows
        out.weight.mul_(0.5)
        out.bias.fill_(-1)
    assert into.in_channels == out.out_channels == 3
    save_file(autoencoder.state_dict(), path)
    return path


def _convolutions(layers: torch.nn.Sequential) -> list[torch.nn.Conv2d]:
    return [layer for layer in layers if isinstance(layer, torch.nn.Conv2d)]


def _zeros(path: Path, model: torch.nn.Module, prefix: str = "") -> None:
    """Write half-precision zeros of a model's shapes in safetensors' format, without its
    weights.
    """
    header, end = {}, 0
    for name, tensor in model.state_dict().items():
        start, end = end, end + 2 * tensor.numel()
        header[prefix + name] = {
            "dtype": "F16",
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
