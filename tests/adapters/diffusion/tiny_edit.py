"""Tiny random pipelines that take an image besides, or instead of, a prompt, built from
configurations.
"""

import diffusers
import torch
import transformers
from safetensors.torch import save_file

from tests.adapters.diffusion import tiny


def clip_vision(width=16):
    """An image encoder whose embeddings have as many numbers as the text embeddings of
    `tiny.clip_text`.
    """
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = transformers.CLIPVisionConfig(
        image_size=tiny.SIDE, patch_size=8, projection_dim=width, **sizes
    )
    return transformers.CLIPVisionModelWithProjection(config)


def bold(model, gain):
    """Multiply the weights of this model, for a random transformer hardly heeds a parent."""
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim >= 2:
                weights.mul_(gain)
    return model


def instruct_pix2pix():
    """InstructPix2Pix: its UNet sees the parent's latents beside the noisy ones."""
    return tiny.stable_diffusion(
        kind=diffusers.StableDiffusionInstructPix2PixPipeline,
        unet=tiny.cross_unet(in_channels=8, out_channels=4),
        scheduler=diffusers.DDIMScheduler(**tiny.betas()),
    )


def kandinsky():
    """Kandinsky 2.2: a prior makes an image embedding of the prompt, a decoder makes an image of
    the embedding.
    """
    prior = diffusers.PriorTransformer(
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=1,
        embedding_dim=16,
        num_embeddings=16,
    )
    torch.nn.init.ones_(prior.clip_std)  # 0 in a new one, so that each embedding would be the same
    unet = tiny.cross_unet(
        sample_size=tiny.SIDE // 4,
        out_channels=8,  # the mean and the variance
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        encoder_hid_dim=16,
        encoder_hid_dim_type="image_proj",
        addition_embed_type="image",
        resnet_time_scale_shift="scale_shift",
    )
    movq = diffusers.VQModel(
        block_out_channels=(32, 32, 32),  # its norms have 32 groups whatever is asked
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        latent_channels=4,
        num_vq_embeddings=12,
        vq_embed_dim=4,
        norm_type="spatial",
    )
    betas = {
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "clip_sample": True,
        "variance_type": "learned_range",
    }
    return diffusers.KandinskyV22CombinedPipeline(
        unet,
        diffusers.DDPMScheduler(**betas),
        movq,
        prior,
        clip_vision(),
        tiny.clip_text(projected=True),
        tiny.words(),
        diffusers.UnCLIPScheduler(
            variance_type="fixed_small_log", prediction_type="sample", clip_sample_range=10.0
        ),
        tiny.extractor(),
    )


def control_net(unet):
    """A ControlNet for this UNet, whose last convolutions are random: a new one's are 0, so it
    would do nothing.
    """
    net = diffusers.ControlNetModel.from_unet(
        unet, conditioning_embedding_out_channels=(4, 4, 4, 4)
    )
    bold(net.controlnet_cond_embedding, 2)
    for layer in (
        *net.controlnet_down_blocks,
        net.controlnet_mid_block,
        net.controlnet_cond_embedding.conv_out,
    ):
        torch.nn.init.normal_(layer.weight)
    return net


def ip_adapter(folder, unet):
    """Write an IP-Adapter for this UNet, laid out as h94/IP-Adapter, and return what
    `load_ip_adapter` takes.
    """
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
            weights[f"ip_adapter.{2 * at + 1}.{kind}.weight"] = torch.randn(
                keys.out_features, width
            )
    models = folder / "models"
    vision.save_pretrained(models / "image_encoder")
    save_file(weights, models / "ip-adapter_sd15.safetensors")
    return {
        "pretrained_model_name_or_path_or_dict": str(folder),
        "subfolder": "models",
        "weight_name": "ip-adapter_sd15.safetensors",
        "image_encoder_folder": "image_encoder",
    }
