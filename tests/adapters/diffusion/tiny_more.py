"""Files that come beside a pipeline: a LoRA and quantised weights."""

import torch
from diffusers import StableDiffusionPipeline


def lora(folder, unet, rank=2, name="lora.safetensors"):
    """Write a LoRA for the attention of this UNet in diffusers' format, as `train_text_to_image_lora.py` does."""
    weights = {}
    for layer, module in unet.named_modules():
        if layer.endswith((".to_q", ".to_v")):
            weights[f"{layer}.lora_A.weight"] = torch.randn(rank, module.in_features)
            weights[f"{layer}.lora_B.weight"] = torch.randn(module.out_features, rank)
    StableDiffusionPipeline.save_lora_weights(folder, unet_lora_layers=weights, weight_name=name)
    return folder / name


def gguf_file(path, model):
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
    return str(path)
