"""Stable Diffusion's architectures with random weights, at any size, saved as real models are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline, StableDiffusionXLPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from adapters.diffusion.device import free_memory
from adapters.diffusion.text_to_image import TextToImage
from pe.plugins.protocols import GenerationAPI, RandomRequest

GPU = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # diffusers and numpy 2
    pytest.mark.filterwarnings("ignore:.*upcast_vae:FutureWarning"),  # diffusers' own
]
STEPS = {True: 2, False: 20}
"""Steps of drawing an image, by `tiny`."""


@dataclass(frozen=True)
class Shape:
    """Channels of the levels of UNet and autoencoder, width and layers of the text encoder, pixels, attention."""

    unet: tuple[int, ...]
    vae: tuple[int, ...]
    text: tuple[int, int]
    side: int
    heads: tuple[int, ...]
    deep: tuple[int, ...]


SD = {
    True: Shape((8, 8, 16, 16), (4, 4, 8, 8), (16, 1), 32, (2,) * 4, (1,) * 4),
    False: Shape((160, 320, 640, 640), (128, 256, 512, 512), (768, 2), 512, (4,) * 4, (1,) * 4),
}
"""Stable Diffusion 1.5 with half its channels, which is built in seconds."""

SDXL = {
    True: Shape((8, 8, 16), (4, 4, 8, 8), (16, 1), 32, (2, 2, 2), (1, 1, 1)),
    False: Shape((160, 320, 640), (128, 256, 512, 512), (640, 2), 1024, (2, 5, 10), (1, 2, 4)),
}
"""Stable Diffusion XL with half its UNet's channels; its autoencoder, which takes the memory, is of the real size."""


@contextmanager
def stable_diffusion(tiny: bool, device: str) -> Iterator[Callable[..., TextToImage]]:
    """Build the adapter over Stable Diffusion 1.5's shape: give its settings by name."""
    shape = SD[tiny]
    schedule = diffusers.DDIMScheduler(clip_sample=False, **_SCHEDULE)
    with _drawn_on(device):
        parts = _vae(shape), _text(CLIPTextModel, shape), _tokenizer(), _unet(shape, shape.text[0]), schedule
    pipeline = StableDiffusionPipeline(*parts, None, None, requires_safety_checker=False)
    with _saved(pipeline, device, torch.float32) as folder:
        yield _builder(folder, shape, device, STEPS[tiny])


@contextmanager
def stable_diffusion_xl(tiny: bool, device: str) -> Iterator[Callable[..., TextToImage]]:
    """The same of Stable Diffusion XL's shape in fp16, whose autoencoder decodes in float32."""
    shape = SDXL[tiny]
    width = shape.text[0]
    more = {
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 16,
        "projection_class_embeddings_input_dim": 6 * 16 + width,
    }
    schedule = diffusers.EulerDiscreteScheduler(**_SCHEDULE)
    with _drawn_on(device):
        encoders = _text(CLIPTextModel, shape), _text(CLIPTextModelWithProjection, shape)
        parts = _vae(shape), *encoders, _tokenizer(), _tokenizer(), _unet(shape, 2 * width, **more), schedule
    pipeline = StableDiffusionXLPipeline(*parts, add_watermarker=False)
    with _saved(pipeline, device, torch.float16) as folder:
        yield _builder(folder, shape, device, 4)


@contextmanager
def full_float32() -> Iterator[None]:
    """No TF32, which torch takes for convolutions in float32 on a GPU unless it is told otherwise."""
    places: tuple[Any, ...] = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = "ieee"
        yield
    finally:
        for place, was in zip(places, before, strict=True):
            place.fp32_precision = was


def new_images(api: GenerationAPI, count: int, first: int = 0) -> np.ndarray:
    """uint8 n×h×w×c: one request for the images of the seeds from `first` on."""
    answer = api.random_api(RandomRequest(("a",) * count, np.arange(first, first + count, dtype=np.uint64)))
    assert not answer.missing, answer.missing
    return answer.samples.array


def in_batches(api: GenerationAPI, count: int, size: int) -> np.ndarray:
    """The same images by requests of `size` each."""
    return np.concatenate([new_images(api, size, first) for first in range(0, count, size)])


def grey_levels(images: np.ndarray, others: np.ndarray) -> int:
    """The largest difference, in grey levels of 255."""
    return int(np.abs(images.astype(np.int16) - others.astype(np.int16)).max())


def _builder(folder: str, shape: Shape, on: str, steps: int) -> Callable[..., TextToImage]:
    settings = {"size": shape.side, "device": on, "steps": steps, "guidance": 1.0, "offline": True}
    return lambda **more: TextToImage(model=folder, prompts="a photo of a cat", **settings | more)


@contextmanager
def _drawn_on(device: str) -> Iterator[None]:
    """Weights are drawn on the device, which is quick on a GPU; the same in every process."""
    torch.manual_seed(0)
    with torch.device(device):
        yield


@contextmanager
def _saved(pipeline: Any, device: str, dtype: torch.dtype) -> Iterator[str]:
    pipeline.to("cpu", dtype)
    free_memory(torch.device(device))
    with TemporaryDirectory() as folder:
        pipeline.save_pretrained(folder)
        yield folder


def _unet(shape: Shape, width: int, **more: Any) -> UNet2DConditionModel:
    return UNet2DConditionModel(
        sample_size=shape.side // 8,
        block_out_channels=shape.unet,
        attention_head_dim=shape.heads,  # diffusers' name for the number of heads
        transformer_layers_per_block=shape.deep,
        cross_attention_dim=width,
        norm_num_groups=min(32, shape.unet[0] // 2),
        **more,
    )


def _vae(shape: Shape) -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=shape.vae,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        norm_num_groups=min(32, shape.vae[0] // 2),
        latent_channels=4,
        sample_size=shape.side,
    )


def _text(kind: Any, shape: Shape) -> Any:
    width, layers = shape.text
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "projection_dim": width}
    tokens = {"vocab_size": 2, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    heads = max(1, width // 64)
    return kind(CLIPTextConfig(num_hidden_layers=layers, num_attention_heads=heads, **sizes, **tokens))


def _tokenizer() -> CLIPTokenizer:
    """It knows no word."""
    return CLIPTokenizer({"<|startoftext|>": 0, "<|endoftext|>": 1}, [], model_max_length=77)


_SCHEDULE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
