"""Compare the speed of the diffusion adapters with a bare loop over the same pipeline.

    python benchmarks/diffusion.py [--rounds N]

The bare loop calls the same pipeline objects as the adapter, in the same thread and with the same
batch. (A copy in another thread was up to 15 % faster or slower, depending on where its memory
lay.) Both take turns, and the table has medians over the rounds, so other work on the machine slows
both. Models have random weights. On a CUDA device the pipeline has the size of Stable Diffusion 1.5
and makes images of 512×512 in fp16; on a processor it is small and has one core. Writes
results/diffusion.md.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
from diffusers import (
    AutoencoderKL,
    DDIMPipeline,
    DDIMScheduler,
    StableDiffusionPipeline,
    UNet2DConditionModel,
    UNet2DModel,
)
from record import keep, where
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from adapters.diffusion.pixel import PixelSpace
from adapters.diffusion.text_to_image import TextToImage
from pe.plugins.protocols import Answer, RandomRequest, VariationRequest

CUDA = torch.cuda.is_available()
DEVICE = "cuda:0" if CUDA else "cpu"
DEGREE = 0.5
PROMPT = "a photo of a cat"


@dataclass(frozen=True)
class Size:
    """A text-to-image pipeline's size, and how it is run."""

    unet: tuple[int, ...]
    vae: tuple[int, ...]
    text: tuple[int, int]  # width, layers
    side: int
    batch: int
    steps: int
    precision: str


LARGE = Size((320, 640, 1280, 1280), (128, 256, 512, 512), (768, 12), 512, 8, 20, "fp16")
SMALL = Size((32, 64, 128, 128), (16, 32, 64, 64), (64, 2), 64, 4, 10, "fp32")
SIZE = LARGE if CUDA else SMALL
BATCHES = 2  # per turn
PIXEL_BATCH, PIXEL_STEPS = (512, 50) if CUDA else (32, 10)


def text_pipeline(size: Size) -> StableDiffusionPipeline:
    """Stable Diffusion 1.5's architecture at this size, with random weights and a tokenizer that
    knows letters.
    """
    torch.manual_seed(0)
    width, layers = size.text
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    tokenizer = CLIPTokenizer({word: i for i, word in enumerate(words)}, [], model_max_length=77)
    text = CLIPTextConfig(
        vocab_size=len(words),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    unet = UNet2DConditionModel(
        sample_size=size.side // 8,
        block_out_channels=size.unet,
        cross_attention_dim=width,
        attention_head_dim=8,
    )
    vae = AutoencoderKL(
        block_out_channels=size.vae,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        norm_num_groups=16,
        latent_channels=4,
        sample_size=size.side,
    )
    scheduler = DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        steps_offset=1,
    )
    return StableDiffusionPipeline(
        vae,
        CLIPTextModel(text),
        tokenizer,
        unet,
        scheduler,
        None,
        None,
        requires_safety_checker=False,
    )


def pixel_network() -> UNet2DModel:
    """About as large as the model that ships with the project: 28×28, one channel, ten classes."""
    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=28,
        in_channels=1,
        out_channels=1,
        block_out_channels=(32, 64, 64),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        norm_num_groups=8,
        num_class_embeds=10,
    )


def worker_of(api: Any) -> Any:
    """The one worker of an adapter's engine: its model and its thread."""
    (worker,) = api._engine._open()
    return worker


def generators(seeds: np.ndarray) -> list[torch.Generator]:
    return [torch.Generator("cpu").manual_seed(int(seed)) for seed in seeds]


def bare_text(
    api: TextToImage, size: Size, parents: np.ndarray
) -> tuple[Callable[[np.ndarray], Any], ...]:
    """The two pipelines, called batch by batch."""
    model: Any = worker_of(api).model
    draw, vary = model._text, model._vary.pipeline
    common = {"num_inference_steps": size.steps, "guidance_scale": 7.5, "output_type": "np"}

    def random(seeds: np.ndarray) -> None:
        for start in range(0, len(seeds), size.batch):
            each = generators(seeds[start : start + size.batch])
            draw(
                prompt=[PROMPT] * len(each),
                generator=each,
                height=size.side,
                width=size.side,
                **common,
            )

    def variation(seeds: np.ndarray) -> None:
        images = parents.astype(np.float32) / 255
        for start in range(0, len(seeds), size.batch):
            each = generators(seeds[start : start + size.batch])
            batch = images[start : start + size.batch]
            vary(
                prompt=[PROMPT] * len(each), image=batch, strength=DEGREE, generator=each, **common
            )

    return random, variation


def bare_pixels(api: PixelSpace, parents: np.ndarray) -> tuple[Callable[[np.ndarray], Any], ...]:
    """DDIM and SDEdit, written out."""
    model: Any = worker_of(api).model
    unet, scheduler = model._unet, DDIMScheduler()

    def denoise(x: torch.Tensor, timesteps: torch.Tensor) -> None:
        classes = torch.zeros(len(x), dtype=torch.long, device=DEVICE)
        for t in timesteps:
            x = scheduler.step(unet(x, t, class_labels=classes).sample, t, x).prev_sample
        ((x + 1) * 127.5).round().clamp(0, 255).byte().cpu().numpy()

    @torch.no_grad()
    def run(seeds: np.ndarray, steps: int, images: np.ndarray | None) -> None:
        scheduler.set_timesteps(PIXEL_STEPS)
        timesteps = scheduler.timesteps[-steps:]
        for start in range(0, len(seeds), PIXEL_BATCH):
            each = generators(seeds[start : start + PIXEL_BATCH])
            x = torch.stack([torch.randn(1, 28, 28, generator=one) for one in each]).to(DEVICE)
            if images is not None:
                batch = torch.from_numpy(images[start : start + PIXEL_BATCH]).to(DEVICE)
                x = scheduler.add_noise(
                    batch.permute(0, 3, 1, 2) / 127.5 - 1, x, timesteps[:1].expand(len(x))
                )
            denoise(x, timesteps)

    return (
        lambda seeds: run(seeds, PIXEL_STEPS, None),
        lambda seeds: run(seeds, int(PIXEL_STEPS * DEGREE), parents),
    )


def sides(
    api: Any, bare: tuple[Callable[[np.ndarray], Any], ...], parents: Answer
) -> dict[str, tuple[Any, Any]]:
    """For each call: the adapter and the bare loop, both from seeds."""
    labels = ("a",) * len(parents.samples)

    def vary(seeds: np.ndarray) -> Answer:
        return api.variation_api(
            VariationRequest(parents.samples, labels, parents.conditions, seeds, DEGREE)
        )

    def beside(run: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], Any]:
        return lambda seeds: worker_of(api).thread.submit(run, seeds).result()

    return {
        "RANDOM_API": (lambda seeds: api.random_api(RandomRequest(labels, seeds)), beside(bare[0])),
        "VARIATION_API": (vary, beside(bare[1])),
    }


def measured(name: str, count: int, both: dict[str, tuple[Any, Any]], rounds: int) -> list[str]:
    """A row for each call, from interleaved rounds."""
    rows = []
    rng = np.random.default_rng(1)
    for call, (adapter, bare) in both.items():
        clocks: dict[str, list[tuple[float, float]]] = {"adapter": [], "bare": []}
        for turn in range(rounds + 1):
            order = [("adapter", adapter), ("bare", bare)]
            for side, run in order if turn % 2 else order[::-1]:
                seeds = rng.integers(0, 2**64, count, dtype=np.uint64)
                wall, processor = time.perf_counter(), time.process_time()
                run(seeds)
                clocks[side].append((time.perf_counter() - wall, time.process_time() - processor))
        # the first round warms up
        wall_ratio, processor_ratio = (
            statistics.median(
                b[clock] / a[clock] for a, b in list(zip(*clocks.values(), strict=True))[1:]
            )
            for clock in (0, 1)
        )
        speeds = [
            count / statistics.median(wall for wall, _ in clocks[side][1:])
            for side in ("adapter", "bare")
        ]
        rows.append(
            f"| {name} | {call} | {speeds[0]:,.2f} | {speeds[1]:,.2f} | {wall_ratio:.3f} | "
            f"{processor_ratio:.3f} |"
        )
        print(rows[-1], flush=True)
    return rows


def text_rows(folder: Path, rounds: int) -> list[str]:
    pipeline = text_pipeline(SIZE)
    parameters = sum(p.numel() for p in pipeline.unet.parameters()) / 1e6
    pipeline.save_pretrained(folder)
    api = TextToImage(
        model=str(folder),
        prompts=PROMPT,
        steps=SIZE.steps,
        size=SIZE.side,
        precision=SIZE.precision,  # type: ignore[arg-type]
        device=DEVICE,
        batch_size=SIZE.batch,
    )
    count = BATCHES * SIZE.batch
    seeds = np.arange(count, dtype=np.uint64)
    parents = api.random_api(RandomRequest(("a",) * count, seeds))
    bare = bare_text(api, SIZE, parents.samples.array)
    how = f"{SIZE.side}×{SIZE.side}, {SIZE.steps} steps, {SIZE.precision}, batch {SIZE.batch}"
    name = f"text-to-image, UNet of {parameters:,.1f}M, {how}"
    return measured(name, count, sides(api, bare, parents), rounds)


def pixel_rows(folder: Path, rounds: int) -> list[str]:
    network = pixel_network()
    parameters = sum(p.numel() for p in network.parameters()) / 1e6
    DDIMPipeline(network, DDIMScheduler()).save_pretrained(folder)
    api = PixelSpace(model=str(folder), steps=PIXEL_STEPS, device=DEVICE, batch_size=PIXEL_BATCH)
    count = BATCHES * PIXEL_BATCH
    parents = api.random_api(RandomRequest(("a",) * count, np.arange(count, dtype=np.uint64)))
    bare = bare_pixels(api, parents.samples.array)
    name = (
        f"pixel space, UNet of {parameters:,.1f}M, 28×28, {PIXEL_STEPS} DDIM steps, fp32, batch "
        f"{PIXEL_BATCH}"
    )
    return measured(name, count, sides(api, bare, parents), rounds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        rows = text_rows(Path(folder) / "text", rounds) + pixel_rows(
            Path(folder) / "pixels", rounds
        )
    device = (
        torch.cuda.get_device_name(0)
        if CUDA
        else f"no GPU: the processor, {torch.get_num_threads()} thread"
    )
    keep(
        "diffusion.md",
        "## The diffusion adapters, compared with a bare loop over the same pipeline\n\n"
        f"{where()}, torch {torch.__version__}, diffusers {diffusers.__version__}. Device: "
        f"{device}. Randomly "
        f"initialised models; {BATCHES} batches a turn, both sides in turns, medians of {rounds} "
        f"rounds; degree "
        f"{DEGREE}. Target: a ratio of at least 0.97. `python benchmarks/diffusion.py`\n\n"
        "| model | call | adapter, images/s | bare loop, images/s | ratio, wall clock | ratio, "
        "processor time |\n"
        "|---|---|--:|--:|--:|--:|\n" + "\n".join(rows),
    )


if __name__ == "__main__":
    main()
