"""Tiny random PixArt-Sigma, and files that come beside a pipeline: a LoRA and quantised weights."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import (
    DPMSolverMultistepScheduler,
    FluxTransformer2DModel,
    GGUFQuantizationConfig,
    PixArtSigmaPipeline,
    PixArtTransformer2DModel,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)

from tests.adapters.diffusion import tiny


def pixart_sigma() -> PixArtSigmaPipeline:
    """PixArt-Sigma; its call draws 256 pixels or more and resizes, unless `use_resolution_binning=False`."""
    transformer = PixArtTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=8,
        num_layers=1,
        cross_attention_dim=16,
        caption_channels=32,
        sample_size=32,
        norm_num_groups=1,
    )
    flux = tiny.flux()
    return PixArtSigmaPipeline(
        flux.tokenizer_2, flux.text_encoder_2, tiny.vae(), transformer, DPMSolverMultistepScheduler()
    )


def lora(folder: Path, unet: UNet2DConditionModel, rank: int = 2, name: str = "lora.safetensors") -> Path:
    """Write a LoRA for the attention of this UNet in diffusers' format, as `train_text_to_image_lora.py` does."""
    weights = {}
    for layer, module in unet.named_modules():
        if layer.endswith((".to_q", ".to_v")):
            weights[f"{layer}.lora_A.weight"] = torch.randn(rank, module.in_features)
            weights[f"{layer}.lora_B.weight"] = torch.randn(module.out_features, rank)
    StableDiffusionPipeline.save_lora_weights(folder, unet_lora_layers=weights, weight_name=name)
    return folder / name


def gguf_file(path: Path, model: torch.nn.Module) -> Path:
    """Write the weights of this model in GGUF: matrices whose rows fill blocks in 8 bits, the others as they are."""
    import gguf

    writer = gguf.GGUFWriter(path, "flux")
    for name, tensor in model.state_dict().items():
        values = tensor.float().numpy()
        kind = gguf.GGMLQuantizationType.F32
        if values.ndim == 2 and values.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            values = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_transformer(file: Path, folder: Path) -> FluxTransformer2DModel:
    """Load such a file with the configuration of this pipeline's transformer."""
    return FluxTransformer2DModel.from_single_file(
        str(file),
        quantization_config=GGUFQuantizationConfig(compute_dtype=torch.float32),
        config=str(folder),
        subfolder="transformer",
        torch_dtype=torch.float32,
    )
