"""Tiny random pipelines of Qwen-Image and Z-Image, built from configurations."""

from __future__ import annotations

from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImageEditPipeline,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
)

from tests.adapters.diffusion import tiny
from tests.adapters.diffusion.tiny_parts import VOCABULARY, bold, chat_words, qwen3


def scheduler() -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)


def qwen_vae(halvings: int) -> AutoencoderKLQwenImage:
    """The video autoencoder of Qwen-Image; a real one halves the sides three times."""
    vae = AutoencoderKLQwenImage(
        base_dim=4,
        z_dim=4,
        dim_mult=[1] * (halvings + 1),
        num_res_blocks=0,
        temperal_downsample=[False] * halvings,
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    bold(vae.encoder.conv_out, 16)
    bold(vae.decoder, 3)
    bold(vae.decoder.conv_out, 0.5)  # else most pixels are black or white
    return vae


def qwen_vl() -> Qwen2_5_VLForConditionalGeneration:
    marks = {
        f"{name}_token_id": VOCABULARY.index(f"<|{mark}|>")
        for name, mark in (
            ("image", "image_pad"),
            ("video", "video_pad"),
            ("vision_start", "vision_start"),
            ("vision_end", "vision_end"),
        )
    }
    text = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]},
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": 16,
        "fullatt_block_indexes": [0],
    }
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision, **marks))


def qwen_transformer() -> QwenImageTransformer2DModel:
    transformer = QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(4, 6, 6),
    )
    return bold(transformer, 3)


def qwen_processor() -> Qwen2VLProcessor:
    """A processor that shows the text encoder at most four patches' worth of an image, whatever its size."""
    sizes = {"shortest_edge": 28 * 28, "longest_edge": 56 * 56}
    return Qwen2VLProcessor(Qwen2VLImageProcessor(size=sizes), chat_words(), Qwen2VLVideoProcessor())


def qwen_image() -> QwenImagePipeline:
    return QwenImagePipeline(scheduler(), qwen_vae(halvings=3), qwen_vl(), chat_words(), qwen_transformer())


def qwen_image_edit() -> QwenImageEditPipeline:
    """Qwen-Image-Edit."""
    parts = qwen_vae(halvings=3), qwen_vl(), chat_words(), qwen_processor(), qwen_transformer()
    return QwenImageEditPipeline(scheduler(), *parts)


def z_image() -> ZImagePipeline:
    transformer = ZImageTransformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=1,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=16,
        axes_dims=[4, 6, 6],
        axes_lens=[1024, 64, 64],
    )
    return ZImagePipeline(scheduler(), tiny.vae(), qwen3(), chat_words(), transformer)
