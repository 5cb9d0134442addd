"""The network that all share: diffusers' UNet2DModel, conditional by class, with GroupNorm."""

from __future__ import annotations

import torch
from diffusers import DDIMScheduler, UNet2DModel
from torch import nn

from adapters.trained.diffusion.levels import Network, levels
from adapters.trained.plain import torch_seed

TIMESTEPS = 1000

_GROUPS = 4
_HEAD = 8


def unet(network: Network, shape: tuple[int, int, int], classes: int, seed: int, phase: str) -> UNet2DModel:
    """A new network of `classes` classes, with weights that `seed` and `phase` settle.

    Time and class scale and shift what GroupNorm has normalised: merely added before it, the norm would take a good
    part of them away again where a group has few channels.

    Args:
        network: its size.
        shape: height, width, channels of the images.
        classes: how many.
        seed: the recipe's.
        phase: what the network is for.

    Raises:
        RecipeError: the images are too small for it.
    """
    height, width, channels = shape
    widths = levels(network, height, width)
    deep = len(widths) - 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, phase))
        return UNet2DModel(
            sample_size=height if height == width else (height, width),
            in_channels=channels,
            out_channels=channels,
            layers_per_block=network.layers,
            block_out_channels=widths,
            down_block_types=("DownBlock2D",) * deep + ("AttnDownBlock2D",),
            up_block_types=("AttnUpBlock2D",) + ("UpBlock2D",) * deep,
            norm_num_groups=_GROUPS,
            attention_head_dim=_HEAD,
            resnet_time_scale_shift="scale_shift",
            num_class_embeds=classes,
        )


def scheduler() -> DDIMScheduler:
    """The noise schedule: a cosine down to no signal at all, velocities predicted (Salimans and Ho 2022)."""
    return DDIMScheduler(
        num_train_timesteps=TIMESTEPS,
        beta_schedule="squaredcos_cap_v2",
        prediction_type="v_prediction",
        clip_sample=True,
        timestep_spacing="trailing",
        rescale_betas_zero_snr=True,
    )


def with_new_classes(model: UNet2DModel, classes: int, seed: int) -> UNet2DModel:
    """The same network with a new embedding of `classes` classes, as one has it that was never trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "classes"))
        embedding = nn.Embedding(classes, model.class_embedding.weight.shape[1])
    model.class_embedding = embedding.to(model.class_embedding.weight.device)
    model.register_to_config(num_class_embeds=classes)
    return model


def only_attention_and_classes(model: UNet2DModel) -> UNet2DModel:
    """The same network, of which attention and class embedding alone are to be trained (DP-LDM)."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".attentions." in name or name.startswith("class_embedding."))
    return model
