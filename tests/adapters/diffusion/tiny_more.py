"""Files that come beside a pipeline: a LoRA and quantised weights."""

import torch
from diffusers import StableDiffusionPipeline


def lora(folder, unet, rank=2, name="lora.safetensors"):
    """Write a LoRA for the attention of this UNet in diffusers' format, as
    `train_text_to_image_lora.py` does.
    """
    weights = {}
    for layer, module in unet.named_modules():
        if layer.endswith((".to_q", ".to_v")):
            weights[f"{layer}.lora_A.weight"] = torch.randn(rank, module.in_features)
            weights[f"{layer}.lora_B.weight"] = torch.randn(module.out_features, rank)
    StableDiffusionPipeline.save_lora_weights(folder, unet_lora_layers=weights, weight_name=name)
    return folder / name
