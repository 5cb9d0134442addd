"""Stable Diffusion's architecture with random weights, at any size, saved as a real model is."""

from contextlib import contextmanager
from tempfile import TemporaryDirectory

import diffusers
import numpy as np
import pytest
import torch
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from adapters.diffusion.text_to_image import TextToImage
from pe.plugins.devices import free_memory
from pe.plugins.protocols import RandomRequest

GPU = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation:DeprecationWarning"
    ),  # diffusers and numpy 2
]
STEPS = {True: 2, False: 20}
"""Steps of drawing an image, by `tiny`."""


@contextmanager
def stable_diffusion(tiny, device):
    """Build the adapter over Stable Diffusion 1.5 with half its channels, or tiny: give its
    settings by name.
    """
    channels, coded = (
        ((8, 8, 16, 16), (4, 4, 8, 8)) if tiny else ((160, 320, 640, 640), (128, 256, 512, 512))
    )
    width, side = (16, 32) if tiny else (768, 512)
    sizes = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    tokens = {"vocab_size": 2, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    schedule = {
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "steps_offset": 1,
    }
    torch.manual_seed(0)
    with torch.device(device):  # drawn there, which is quick on a GPU; the same in every process
        vae = diffusers.AutoencoderKL(
            block_out_channels=coded,
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            layers_per_block=2,
            norm_num_groups=min(32, coded[0] // 2),
            latent_channels=4,
            sample_size=side,
        )
        text = CLIPTextModel(CLIPTextConfig(**sizes, **tokens))
        unet = diffusers.UNet2DConditionModel(
            sample_size=side // 8,
            block_out_channels=channels,
            attention_head_dim=2 if tiny else 4,  # diffusers' name for the number of heads
            cross_attention_dim=width,
            norm_num_groups=min(32, channels[0] // 2),
        )
    words = CLIPTokenizer(
        {"<|startoftext|>": 0, "<|endoftext|>": 1}, [], model_max_length=77
    )  # it knows none
    scheduler = diffusers.DDIMScheduler(clip_sample=False, **schedule)
    parts = vae, text, words, unet, scheduler, None, None
    pipeline = diffusers.StableDiffusionPipeline(*parts, requires_safety_checker=False).to(
        "cpu", torch.float32
    )
    free_memory(torch.device(device))
    settings = {
        "prompts": "a cat",
        "size": side,
        "device": device,
        "steps": STEPS[tiny],
        "guidance": 1.0,
    }
    with TemporaryDirectory() as folder:
        pipeline.save_pretrained(folder)
        yield lambda **more: TextToImage(**{"model": folder, "offline": True} | settings | more)


@contextmanager
def full_float32():
    """No TF32, which torch takes for convolutions in float32 on a GPU unless it is told
    otherwise.
    """
    with pytest.MonkeyPatch.context() as patch:
        for place in (torch.backends.cudnn.conv, torch.backends.cuda.matmul):
            patch.setattr(place, "fp32_precision", "ieee")
        yield


def new_images(api, count, first=0):
    """uint8 n×h×w×c: one request for the images of the seeds from `first` on."""
    answer = api.random_api(
        RandomRequest(("a",) * count, np.arange(first, first + count, dtype=np.uint64))
    )
    assert not answer.missing, answer.missing
    return answer.samples.array


def in_batches(api, count, size):
    """The same images by requests of `size` each."""
    return np.concatenate([new_images(api, size, first) for first in range(0, count, size)])


def grey_levels(images, others):
    """The largest difference, in grey levels of 255."""
    return int(np.abs(images.astype(np.int16) - others.astype(np.int16)).max())
