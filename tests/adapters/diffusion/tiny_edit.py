"""Tiny random pipelines that take an image besides, or instead of, a prompt, built from configurations."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLFlux2,
    ControlNetModel,
    DDIMScheduler,
    DDPMScheduler,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Transformer2DModel,
    FluxKontextPipeline,
    FluxTransformer2DModel,
    KandinskyV22CombinedPipeline,
    PriorTransformer,
    StableDiffusionImageVariationPipeline,
    StableDiffusionInstructPix2PixPipeline,
    UnCLIPScheduler,
    UNet2DConditionModel,
    VQModel,
)
from safetensors.torch import save_file

from tests.adapters.diffusion import tiny
from tests.adapters.diffusion.tiny_parts import bold, chat_words, clip_vision, extractor, qwen3


def instruct_pix2pix() -> StableDiffusionInstructPix2PixPipeline:
    """InstructPix2Pix: its UNet sees the parent's latents beside the noisy ones."""
    unet = tiny.cross_unet(in_channels=8, out_channels=4)
    return StableDiffusionInstructPix2PixPipeline(
        tiny.vae(),
        tiny.clip_text(),
        tiny.words(),
        unet,
        DDIMScheduler(**tiny.betas()),
        None,
        None,
        requires_safety_checker=False,
    )


def image_variation() -> StableDiffusionImageVariationPipeline:
    """Stable Diffusion image variations: a CLIP embedding of the parent stands where the prompt's stood."""
    return StableDiffusionImageVariationPipeline(
        tiny.vae(),
        clip_vision(),
        tiny.cross_unet(),
        DDIMScheduler(**tiny.betas()),
        None,
        extractor(),
        requires_safety_checker=False,
    )


def flux_kontext() -> FluxKontextPipeline:
    """FLUX.1 Kontext [dev], whose transformer is told the guidance scale."""
    parts = tiny.flux().components
    transformer = FluxTransformer2DModel.from_config(parts["transformer"].config, guidance_embeds=True)
    bold(parts["vae"].encoder.conv_out, 16)
    bold(parts["vae"].decoder.conv_out, 2)
    return FluxKontextPipeline(**parts | {"transformer": bold(transformer, 2)})


def flux_2(distilled: bool = False) -> Flux2KleinPipeline:
    """FLUX.2 [klein]; its text encoder has 28 layers, for the call reads the states after 9, 18 and 27."""
    vae = AutoencoderKLFlux2(
        block_out_channels=(4, 4, 8, 8), layers_per_block=1, latent_channels=4, norm_num_groups=2, sample_size=tiny.SIDE
    )
    bold(vae.encoder.conv_out, 16)
    bold(vae.decoder.conv_out, 2)
    transformer = Flux2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=3 * 8,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=False,
    )
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    encoder = qwen3(layers=28, width=8, head=True)
    return Flux2KleinPipeline(scheduler, vae, encoder, chat_words(), bold(transformer, 3), is_distilled=distilled)


def kandinsky() -> KandinskyV22CombinedPipeline:
    """Kandinsky 2.2: a prior makes an image embedding of the prompt, a decoder makes an image of the embedding."""
    prior = PriorTransformer(
        num_attention_heads=2, attention_head_dim=8, num_layers=1, embedding_dim=16, num_embeddings=16
    )
    torch.nn.init.ones_(prior.clip_std)  # 0 in a new one, so that each embedding would be the same
    unet = UNet2DConditionModel(
        sample_size=tiny.SIDE // 4,
        in_channels=4,
        out_channels=8,  # the mean and the variance
        block_out_channels=(8, 16),
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        layers_per_block=1,
        encoder_hid_dim=16,
        encoder_hid_dim_type="image_proj",
        addition_embed_type="image",
        cross_attention_dim=16,
        attention_head_dim=4,
        norm_num_groups=4,
        resnet_time_scale_shift="scale_shift",
    )
    movq = VQModel(
        block_out_channels=(32, 32, 32),  # its norms have 32 groups whatever is asked
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        latent_channels=4,
        num_vq_embeddings=12,
        vq_embed_dim=4,
        norm_type="spatial",
    )
    betas = {"beta_start": 0.00085, "beta_end": 0.012, "clip_sample": True, "variance_type": "learned_range"}
    return KandinskyV22CombinedPipeline(
        unet,
        DDPMScheduler(**betas),
        movq,
        prior,
        clip_vision(),
        tiny.clip_text(projected=True),
        tiny.words(),
        UnCLIPScheduler(variance_type="fixed_small_log", prediction_type="sample", clip_sample_range=10.0),
        extractor(),
    )


def control_net(unet: UNet2DConditionModel) -> ControlNetModel:
    """A ControlNet for this UNet, whose last convolutions are random: a new one's are 0, so it would do nothing."""
    net = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=(4, 4, 4, 4))
    bold(net.controlnet_cond_embedding, 2)
    for layer in (*net.controlnet_down_blocks, net.controlnet_mid_block, net.controlnet_cond_embedding.conv_out):
        torch.nn.init.normal_(layer.weight)
    return net


def ip_adapter(folder: Path, unet: UNet2DConditionModel) -> dict[str, str]:
    """Write an IP-Adapter for this UNet, laid out as h94/IP-Adapter, and return what `load_ip_adapter` takes."""
    width = unet.config.cross_attention_dim
    vision = clip_vision()
    tokens = 4  # as many as the loader takes for granted
    weights = {
        "image_proj.proj.weight": torch.randn(tokens * width, vision.config.projection_dim),
        "image_proj.proj.bias": torch.zeros(tokens * width),
        "image_proj.norm.weight": torch.ones(width),
        "image_proj.norm.bias": torch.zeros(width),
    }
    crossing = [name for name in unet.attn_processors if "attn2" in name]
    for at, name in enumerate(crossing):
        keys = unet.get_submodule(name.removesuffix(".processor")).to_k
        for kind in ("to_k_ip", "to_v_ip"):
            weights[f"ip_adapter.{2 * at + 1}.{kind}.weight"] = torch.randn(keys.out_features, width)
    models = folder / "models"
    vision.save_pretrained(models / "image_encoder")
    save_file(weights, models / "ip-adapter_sd15.safetensors")
    return {
        "pretrained_model_name_or_path_or_dict": str(folder),
        "subfolder": "models",
        "weight_name": "ip-adapter_sd15.safetensors",
        "image_encoder_folder": "image_encoder",
    }
