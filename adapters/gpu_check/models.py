"""Stable Diffusion's architectures with random weights, at any size, saved as real models are; and what asks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from adapters.diffusion.device import Precision, free_memory
from adapters.diffusion.items import Pixels
from adapters.diffusion.text_to_image import TextToImage
from pe.errors import APIError
from pe.plugins.gpu_checks import Size
from pe.plugins.protocols import GenerationAPI, RandomRequest

PROMPT = "a photo of a cat"
STEPS: dict[Size, int] = {"tiny": 2, "small": 10, "real": 20}
"""Of drawing an image, where nothing else is said."""

Build = Callable[..., TextToImage]
"""The adapter with a precision, and with more of its settings by their names."""


@dataclass(frozen=True)
class Shape:
    """The size of a text-to-image model.

    Attributes:
        unet: channels of each level.
        vae: channels of each of its four levels.
        text: width and layers of its text encoder, or of both of them.
        side: pixels.
        heads: of attention, at each level of the UNet.
        deep: transformer layers at each level of the UNet.
    """

    unet: tuple[int, ...]
    vae: tuple[int, ...]
    text: tuple[int, int]
    side: int
    heads: tuple[int, ...] = (4, 4, 4, 4)
    deep: tuple[int, ...] = (1, 1, 1, 1)

    @property
    def words(self) -> str:
        """As the figures name it."""
        return f"UNet {'-'.join(map(str, self.unet))}, {self.side}×{self.side}"


REDUCED: dict[Size, Shape] = {
    "tiny": Shape((8, 8, 16, 16), (4, 4, 8, 8), (16, 1), 32, heads=(2, 2, 2, 2)),
    "small": Shape((64, 128, 256, 256), (32, 64, 128, 128), (256, 2), 256),
    "real": Shape((160, 320, 640, 640), (128, 256, 512, 512), (768, 2), 512),
}
"""Stable Diffusion 1.5 with half its channels, which is built in seconds."""

SD_15: dict[Size, Shape] = REDUCED | {
    "real": Shape((320, 640, 1280, 1280), (128, 256, 512, 512), (768, 12), 512, heads=(8, 8, 8, 8))
}

SDXL: dict[Size, Shape] = {
    "tiny": Shape((8, 8, 16), (4, 4, 8, 8), (16, 1), 32, heads=(2, 2, 2), deep=(1, 1, 1)),
    "small": Shape((64, 128, 256), (64, 128, 256, 256), (256, 2), 512, heads=(1, 2, 4), deep=(1, 1, 2)),
    "real": Shape((160, 320, 640), (128, 256, 512, 512), (640, 2), 1024, heads=(2, 5, 10), deep=(1, 2, 4)),
}
"""Stable Diffusion XL with half its UNet's channels; its autoencoder, which takes the memory, is of the real size."""


def stable_diffusion(shape: Shape, device: str, precision: Precision = "fp32") -> AbstractContextManager[str]:
    """A folder with a model of Stable Diffusion 1.5's kind."""
    from diffusers import StableDiffusionPipeline

    with _drawn_on(device):
        unet, vae, encoder = _unet(shape, shape.text[0]), _vae(shape), _text(shape)
    parts = (vae, encoder, _words(), unet, _scheduler("DDIMScheduler"))
    return _saved(StableDiffusionPipeline(*parts, None, None, requires_safety_checker=False), device, precision)


def stable_diffusion_xl(shape: Shape, device: str, precision: Precision = "fp16") -> AbstractContextManager[str]:
    """A folder with a model of Stable Diffusion XL's kind, whose autoencoder decodes in float32."""
    from diffusers import StableDiffusionXLPipeline

    width = shape.text[0]
    more = {
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 16,
        "projection_class_embeddings_input_dim": 6 * 16 + width,
    }
    with _drawn_on(device):
        unet, vae = _unet(shape, 2 * width, **more), _vae(shape)
        encoders = _text(shape), _text(shape, projected=True)
    parts = (vae, *encoders, _words(), _words(), unet, _scheduler("EulerDiscreteScheduler"))
    return _saved(StableDiffusionXLPipeline(*parts, add_watermarker=False), device, precision)


@contextmanager
def reduced(device: str, size: Size) -> Iterator[tuple[str, Build]]:
    """Stable Diffusion 1.5 with half its channels: as the figures name it, and what builds the adapter over it."""
    shape = REDUCED[size]
    with stable_diffusion(shape, device) as folder:

        def build(precision: Precision, device: str | list[str] = device, **more: Any) -> TextToImage:
            return text_to_image(folder, shape, device, precision, **{"steps": STEPS[size]} | more)

        yield f"Stable Diffusion 1.5's shape, {shape.words}, random weights", build


@contextmanager
def full_float32() -> Iterator[None]:
    """No TF32, which torch takes for convolutions in float32 on a GPU unless it is told otherwise."""
    from torch import backends

    cudnn: Any = backends.cudnn
    places = (cudnn.conv, backends.cuda.matmul)
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = "ieee"
        yield
    finally:
        for place, was in zip(places, before, strict=True):
            place.fp32_precision = was


def text_to_image(folder: str, shape: Shape, device: str | list[str], precision: Precision, **more: Any) -> TextToImage:
    """The adapter over such a folder; without guidance, unless `more` says otherwise."""
    settings = {"steps": 4, "guidance": 1.0, "offline": True, **more}
    return TextToImage(model=folder, prompts=PROMPT, size=shape.side, device=device, precision=precision, **settings)


def new_images(api: GenerationAPI, count: int, first: int = 0) -> Pixels:
    """uint8 n×h×w×c: one request for the images of the seeds from `first` on.

    Raises:
        APIError: one of them could not be made.
    """
    seeds = np.arange(first, first + count, dtype=np.uint64)
    answer = api.random_api(RandomRequest(("a",) * count, seeds))
    for missing in answer.missing.values():
        raise APIError(f"An image was not made: {missing.reason}.")
    images: Pixels = answer.samples.array
    return images


def in_batches(api: GenerationAPI, count: int, size: int) -> Pixels:
    """The same images by requests of `size` each."""
    return np.concatenate([new_images(api, size, first) for first in range(0, count, size)])


def grey_levels(images: Pixels, others: Pixels) -> int:
    """The largest difference, in grey levels of 255."""
    return int(np.abs(images.astype(np.int16) - others.astype(np.int16)).max())


@contextmanager
def _drawn_on(device: str) -> Iterator[None]:
    """Weights are drawn on the device, which is quick on a GPU; the same in every process."""
    import torch

    torch.manual_seed(0)
    with torch.device(device):
        yield


@contextmanager
def _saved(pipeline: Any, device: str, precision: Precision) -> Iterator[str]:
    import torch

    pipeline.to("cpu", {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32))
    free_memory(torch.device(device))
    with TemporaryDirectory() as folder:
        pipeline.save_pretrained(Path(folder))
        yield folder


def _unet(shape: Shape, width: int, **more: Any) -> Any:
    from diffusers import UNet2DConditionModel

    settings = {
        "sample_size": shape.side // 8,
        "block_out_channels": shape.unet,
        "attention_head_dim": shape.heads,  # diffusers' name for the number of heads
        "transformer_layers_per_block": shape.deep,
        "cross_attention_dim": width,
        "norm_num_groups": min(32, shape.unet[0] // 2),
    }
    return UNet2DConditionModel(**settings | more)


def _vae(shape: Shape) -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=shape.vae,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        norm_num_groups=min(32, shape.vae[0] // 2),
        latent_channels=4,
        sample_size=shape.side,
    )


def _text(shape: Shape, projected: bool = False) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    width, layers = shape.text
    config = CLIPTextConfig(
        vocab_size=2,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        projection_dim=width,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    return CLIPTextModelWithProjection(config) if projected else CLIPTextModel(config)


def _words() -> Any:
    """A tokenizer that knows no word."""
    from transformers import CLIPTokenizer

    return CLIPTokenizer({"<|startoftext|>": 0, "<|endoftext|>": 1}, [], model_max_length=77)


def _scheduler(kind: str) -> Any:
    import diffusers

    schedule = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
    return getattr(diffusers, kind)(**schedule | ({"clip_sample": False} if kind == "DDIMScheduler" else {}))
