"""Trains a small diffusion model of colour pictures, on the public half of the demo's picture set alone.

    python benchmarks/train_picture_diffusion.py --minutes 50 --out FOLDER [--side 32|64] [--pictures FOLDER]

Unconditional, in colour. It learns from `public/` of the set that `pe demo --data pictures` makes, without classes, and
mirrored half of the time; never from `private/` or `test/`. As benchmarks/train_glyph_diffusion.py otherwise, in
bfloat16 where that saves time; `--from FOLDER` goes on. Writes the weights' moving average as unet/ and scheduler/
every few minutes, and samples.png at the end. For one of the makers no licence is stated: do not publish the model.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import UNet2DModel
from PIL import Image
from record import where
from train_glyph_diffusion import new_scheduler, save

from adapters.diffusion.pixel import PixelSpace
from adapters.public_files import read_folder
from pe.engine.demo.picture_set import make_picture_set
from pe.plugins.protocols import RandomRequest
from pe.progress import Progress


@dataclass(frozen=True)
class Settings:
    """How to train."""

    minutes: float
    batch: int = 16
    rate: float = 1e-3
    ema: float = 0.999
    side: int = 32
    channels: tuple[int, ...] = (32, 64, 128)
    save_every: float = 3.0  # minutes
    seed: int = 0


def new_model(settings: Settings) -> UNet2DModel:
    """A UNet without classes, with attention at 8×8."""
    deep = len(settings.channels) - 1
    return UNet2DModel(
        sample_size=settings.side,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=settings.channels,
        down_block_types=("DownBlock2D",) * deep + ("AttnDownBlock2D",),
        up_block_types=("AttnUpBlock2D",) + ("UpBlock2D",) * deep,
        norm_num_groups=8,
        attention_head_dim=32,
    )


def batch_of(pixels: np.ndarray, rng: np.random.Generator, count: int) -> torch.Tensor:
    """`count` pictures in [−1, 1], n×3×h×w, each mirrored or not."""
    chosen = pixels[rng.integers(0, len(pixels), count)]
    mirrored = rng.random(count) < 0.5
    chosen[mirrored] = chosen[mirrored, :, ::-1]
    return torch.from_numpy(chosen.transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1)


def train(settings: Settings, pixels: np.ndarray, out: Path, begin: Path | None = None) -> None:
    """Train for `settings.minutes` on uint8 images, m×h×w×3."""
    torch.manual_seed(settings.seed)
    rng, scheduler = np.random.default_rng(settings.seed), new_scheduler()
    model = new_model(settings) if begin is None else UNet2DModel.from_pretrained(begin / "unet").float()
    average = UNet2DModel.from_config(model.config)
    average.load_state_dict(model.state_dict())
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.rate, weight_decay=1e-4)
    started, saved, step, recent = time.monotonic(), 0.0, 0, []
    while (minutes := (time.monotonic() - started) / 60) < settings.minutes:
        for group in optimiser.param_groups:
            falling = 0.5 * (1 + math.cos(math.pi * minutes / settings.minutes))
            group["lr"] = settings.rate * min(1.0, (step + 1) / 200) * max(falling, 0.01)
        images = batch_of(pixels, rng, settings.batch)
        noise = torch.randn_like(images)
        steps = torch.randint(0, scheduler.config.num_train_timesteps, (len(images),))
        noisy, wanted = scheduler.add_noise(images, noise, steps), scheduler.get_velocity(images, noise, steps)
        with torch.autocast("cpu", torch.bfloat16):
            predicted = model(noisy, steps).sample
        loss = torch.nn.functional.mse_loss(predicted.float(), wanted)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        step += 1
        with torch.no_grad():
            for mine, its in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(its, 1 - min(settings.ema, step / (step + 10)))
        recent.append(loss.item())
        if minutes - saved >= settings.save_every:
            print(f"{minutes:6.1f} min, step {step:,}: loss {sum(recent) / len(recent):.4f}", flush=True)
            save(average, scheduler, out)
            saved, recent = minutes, []
    save(average, scheduler, out)
    print(f"{step:,} steps of {settings.batch} in {settings.minutes:g} min; {where()}")


def show(model: Path, file: Path, count: int = 96, steps: int = 30) -> None:
    """A picture of `count` new samples, twelve in a row."""
    api = PixelSpace(model=str(model), steps=steps, device="cpu")
    seeds = np.arange(count, dtype=np.uint64)
    pixels = api.random_api(RandomRequest(("",) * count, seeds)).samples.array
    _, side, _, channels = pixels.shape
    rows = pixels.reshape(-1, 12, side, side, channels).transpose(0, 2, 1, 3, 4)
    Image.fromarray(rows.reshape(-1, 12 * side, channels)).save(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--side", type=int, choices=(32, 64), default=32)
    parser.add_argument("--pictures", type=Path, default=Path("pictures"), help="the set; fetched if it is not there")
    parser.add_argument("--from", dest="begin", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    public = arguments.pictures / "public"  # of whichever makers that set has
    if not public.is_dir():
        make_picture_set(arguments.pictures, progress=Progress())
    pixels, _ = read_folder(public, (arguments.side, arguments.side), "stretch", 3)
    channels = (32, 64, 128) if arguments.side == 32 else (16, 32, 64, 128)
    settings = Settings(arguments.minutes, side=arguments.side, channels=channels)
    train(settings, pixels, arguments.out, arguments.begin)
    show(arguments.out, arguments.out / "samples.png")


if __name__ == "__main__":
    main()
