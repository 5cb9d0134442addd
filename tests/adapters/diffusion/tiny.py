"""Diffusion models of a few thousand parameters, built from configurations and saved as real ones
are.
"""

import diffusers
import torch
import transformers
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker

SIDE = 32
"""Pixels, of the images that the text-to-image models draw."""


def unet(classes=None, channels=1, size=8, seed=0, **more):
    torch.manual_seed(seed)
    return diffusers.UNet2DModel(
        sample_size=size,
        in_channels=channels,
        out_channels=channels,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=8,
        num_class_embeds=classes,
        **more,
    )


def pixel_folder(folder, classes=None, channels=1, size=8):
    """A model in diffusers' format, as `save_pretrained` writes it."""
    scheduler = diffusers.DDIMScheduler(num_train_timesteps=1000)
    diffusers.DDIMPipeline(unet(classes, channels, size), scheduler).save_pretrained(folder)
    return str(folder)


def words():
    """A tokenizer that knows single letters."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    known = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    return transformers.CLIPTokenizer(
        {word: i for i, word in enumerate(known)}, [], model_max_length=16
    )


def clip_text(projected=False, width=16):
    sizes = {
        "hidden_size": width,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    tokens = {"vocab_size": 54, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = transformers.CLIPTextConfig(
        max_position_embeddings=16, projection_dim=width, **sizes, **tokens
    )
    return (
        transformers.CLIPTextModelWithProjection(config)
        if projected
        else transformers.CLIPTextModel(config)
    )


def vae(channels=4):
    """An autoencoder that halves the sides three times, as real ones do."""
    return diffusers.AutoencoderKL(
        block_out_channels=(4, 4, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=channels,
        norm_num_groups=2,
        sample_size=SIDE,
        shift_factor=0.0,
    )


def faithful_vae():
    """An autoencoder that gives images back to a few grey levels: latents are the pixels, bent by
    its 3·tanh(z/3).
    """
    sizes = {"encoder_block_out_channels": (4,), "decoder_block_out_channels": (4,)}
    vae = diffusers.AutoencoderTiny(**sizes, num_encoder_blocks=(0,), num_decoder_blocks=(0,))
    into, to_latents = vae.encoder.layers
    from_latents, _, out = vae.decoder.layers
    with torch.no_grad():
        for layer, slope, bias in (
            (into, 1.0, 0.0),  # sees pixels in [0, 1]
            (to_latents, 2.0, -1.0),
            (from_latents, 1.0, 3.0),  # a ReLU follows, so all above 0
            (out, 0.5, -1.0),
        ):
            torch.nn.init.zeros_(layer.weight)
            torch.nn.init.constant_(layer.bias, bias)
            for channel in range(3):
                layer.weight[channel, channel, 1, 1] = slope
    return vae


def cross_unet(width=16, **more):
    settings = {
        "sample_size": SIDE // 8,
        "block_out_channels": (8, 16),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "layers_per_block": 1,
        "cross_attention_dim": width,
        "attention_head_dim": 4,
        "norm_num_groups": 4,
    }
    return diffusers.UNet2DConditionModel(**(settings | more))


def betas():
    """The noise schedule of Stable Diffusion."""
    return {
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "clip_sample": False,
        "set_alpha_to_one": False,
        "steps_offset": 1,
    }


def stable_diffusion(
    checker=None, faithful=False, kind=diffusers.StableDiffusionPipeline, unet=None, scheduler=None
):
    """Stable Diffusion 1.x, with the scheduler that its checkpoints carry; or one of its
    relatives.
    """
    schedule = {name: value for name, value in betas().items() if name != "clip_sample"}
    return kind(
        faithful_vae() if faithful else vae(),
        clip_text(),
        words(),
        unet or cross_unet(),
        scheduler or diffusers.PNDMScheduler(**schedule, skip_prk_steps=True),
        safety_checker=checker,
        feature_extractor=extractor() if checker else None,
        requires_safety_checker=checker is not None,
    )


def stable_diffusion_2():
    """Stable Diffusion 2.x: linear projections, heads per block, and a network that predicts
    velocities.
    """
    unet = cross_unet(use_linear_projection=True, attention_head_dim=(2, 4))
    return stable_diffusion(
        unet=unet, scheduler=diffusers.DDIMScheduler(**betas(), prediction_type="v_prediction")
    )


def latent_consistency():
    kind = diffusers.LatentConsistencyModelPipeline
    unet = cross_unet(time_cond_proj_dim=8)
    return stable_diffusion(kind=kind, unet=unet, scheduler=diffusers.LCMScheduler(**betas()))


def safety_checker(threshold=-1.0):
    """One that takes an image for unsafe when its likeness to a concept is above the threshold: at
    −1, any.
    """
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    vision = sizes | {"image_size": SIDE, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=sizes, vision_config=vision, projection_dim=8)
    checker = StableDiffusionSafetyChecker(config)
    torch.manual_seed(0)
    torch.nn.init.normal_(checker.visual_projection.weight)
    checker.concept_embeds.data = torch.randn(17, 8)
    checker.concept_embeds_weights.data = torch.full((17,), 2.0)  # never
    checker.concept_embeds_weights.data[0] = threshold
    checker.special_care_embeds_weights.data = torch.full((3,), 2.0)
    return checker


def extractor():
    return transformers.CLIPImageProcessor(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
    )


def stable_diffusion_xl():
    unet = cross_unet(
        width=32,
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=4,
        projection_class_embeddings_input_dim=4 * 6 + 16,
        transformer_layers_per_block=(1, 1),
    )
    schedule = {
        name: value
        for name, value in betas().items()
        if name not in ("clip_sample", "set_alpha_to_one")
    }
    scheduler = diffusers.EulerDiscreteScheduler(**schedule)
    return diffusers.StableDiffusionXLPipeline(
        vae(),
        clip_text(),
        clip_text(projected=True),
        words(),
        words(),
        unet,
        scheduler,
        add_watermarker=False,
    )


def flux():
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=16,
        axes_dims_rope=(4, 4, 8),
    )
    sizes = {
        "vocab_size": 54,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 16,
        "num_layers": 1,
        "num_heads": 2,
    }
    t5 = transformers.T5EncoderModel(transformers.T5Config(decoder_start_token_id=0, **sizes))
    letters = [("▁", -2.0), *((letter, -3.0) for letter in "abcdefghijklmnopqrstuvwxyz")]
    known = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *letters]
    pieces = transformers.T5Tokenizer(known, extra_ids=0, model_max_length=16)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    return diffusers.FluxPipeline(scheduler, vae(), clip_text(), words(), t5, pieces, transformer)
