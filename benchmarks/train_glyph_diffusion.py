"""Train the small diffusion model that comes with the package, on drawn characters.

    python benchmarks/train_glyph_diffusion.py --minutes 240 [--out FOLDER] [--from FOLDER]
                                               [--threads N]

The data are public, and nothing is downloaded. The model knows 62 classes (0–9, A–Z, a–z) of grey
images of 28×28. adapters/glyphs.py draws them anew for every step, in the fonts that matplotlib
installs, so no image comes twice. Half of them are digits, which the demo needs. Training:
v-prediction on a cosine schedule of 1,000 steps, AdamW, a learning rate that falls as a cosine of
the time used, an exponential moving average of the weights. Every few minutes the average is
written as unet/ and scheduler/ in diffusers' format, with classes.json. `--from` continues from
there.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import string
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import DDIMScheduler, UNet2DModel
from record import where

from adapters.glyphs import Glyphs
from pe.plugins.protocols import RandomRequest

CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
SIDE = 28
SMALL = Path(__file__).parent.parent / "adapters" / "diffusion" / "small"


@dataclass(frozen=True)
class Settings:
    """How to train."""

    minutes: float
    batch: int = 32
    rate: float = 1e-3
    ema: float = 0.999
    channels: tuple[int, ...] = (16, 32, 64)
    save_every: float = 3.0  # minutes
    seed: int = 0


def new_model(settings: Settings) -> UNet2DModel:
    """A class-conditional UNet with attention at 7×7."""
    deep = len(settings.channels) - 1
    return UNet2DModel(
        sample_size=SIDE,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=settings.channels,
        down_block_types=("DownBlock2D",) * deep + ("AttnDownBlock2D",),
        up_block_types=("AttnUpBlock2D",) + ("UpBlock2D",) * deep,
        norm_num_groups=8,
        num_class_embeds=len(CHARACTERS),
    )


def new_scheduler() -> DDIMScheduler:
    """Cosine schedule, v-prediction."""
    return DDIMScheduler(
        num_train_timesteps=1000,
        beta_schedule="squaredcos_cap_v2",
        prediction_type="v_prediction",
        clip_sample=True,
        timestep_spacing="trailing",
        rescale_betas_zero_snr=True,
    )


def drawn(
    glyphs: Glyphs, rng: np.random.Generator, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` drawn characters in [−1, 1], n×1×28×28, and their classes."""
    classes = np.where(
        rng.random(count) < 0.5,
        rng.integers(0, 10, count),
        rng.integers(10, len(CHARACTERS), count),
    )
    labels = tuple(CHARACTERS[c] for c in classes)
    seeds = rng.integers(0, 2**63, count).astype(np.uint64)
    pixels = glyphs.random_api(RandomRequest(labels, seeds)).samples.array
    images = torch.from_numpy(pixels.transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1)
    return images, torch.from_numpy(classes)


def loss_of(
    model: UNet2DModel, scheduler: DDIMScheduler, images: torch.Tensor, classes: torch.Tensor
) -> torch.Tensor:
    """Mean squared error of the predicted velocity at random timesteps."""
    noise = torch.randn_like(images)
    steps = torch.randint(0, scheduler.config.num_train_timesteps, (len(images),))
    noisy = scheduler.add_noise(images, noise, steps)
    wanted = scheduler.get_velocity(images, noise, steps)
    return torch.nn.functional.mse_loss(model(noisy, steps, classes).sample, wanted)


def train(settings: Settings, out: Path, begin: Path | None = None) -> list[float]:
    """Train for `settings.minutes`; the losses, one mean per save."""
    torch.manual_seed(settings.seed)
    rng = np.random.default_rng(settings.seed)
    model = (
        new_model(settings)
        if begin is None
        else UNet2DModel.from_pretrained(begin / "unet").float()
    )
    average = UNet2DModel.from_config(model.config)
    average.load_state_dict(model.state_dict())
    scheduler, glyphs = new_scheduler(), Glyphs(size=SIDE)
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.rate, weight_decay=1e-4)
    started, saved, step, losses, recent = time.monotonic(), 0.0, 0, [], []
    while (minutes := (time.monotonic() - started) / 60) < settings.minutes:
        for group in optimiser.param_groups:
            falling = 0.5 * (1 + math.cos(math.pi * minutes / settings.minutes))
            group["lr"] = settings.rate * min(1.0, (step + 1) / 200) * max(falling, 0.01)
        loss = loss_of(model, scheduler, *drawn(glyphs, rng, settings.batch))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        step += 1
        decay = min(settings.ema, step / (step + 10))
        with torch.no_grad():
            for mine, its in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(its, 1 - decay)
        recent.append(loss.item())
        if minutes - saved >= settings.save_every:
            losses.append(sum(recent) / len(recent))
            print(f"{minutes:6.1f} min, step {step:,}: loss {losses[-1]:.4f}", flush=True)
            save(average, scheduler, out, CHARACTERS)
            saved, recent = minutes, []
    save(average, scheduler, out, CHARACTERS)
    print(f"{step:,} steps of {settings.batch} in {settings.minutes:g} min; {where()}")
    return losses + ([sum(recent) / len(recent)] if recent else [])


def save(
    model: UNet2DModel, scheduler: DDIMScheduler, out: Path, classes: tuple[str, ...] = ()
) -> None:
    """The model in diffusers' format, in half precision, whole or not at all, and the names of its
    classes, if any.
    """
    temporary = out.with_name(out.name + ".part")
    out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)
    copy = UNet2DModel.from_config(model.config)
    copy.load_state_dict(model.state_dict())
    copy.half().save_pretrained(temporary / "unet", safe_serialization=True)
    scheduler.save_pretrained(temporary / "scheduler")
    if classes:
        (out / "classes.json").write_text(json.dumps({"classes": classes}) + "\n")
    for config in temporary.rglob("*.json"):  # where the weights came from is nobody's business
        content = {
            key: value
            for key, value in json.loads(config.read_text()).items()
            if key != "_name_or_path"
        }
        config.write_text(json.dumps(content, indent=2) + "\n")
    for part in ("unet", "scheduler"):
        shutil.rmtree(out / part, ignore_errors=True)
        (temporary / part).rename(out / part)
    shutil.rmtree(temporary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--out", type=Path, default=SMALL)
    parser.add_argument("--from", dest="begin", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    train(Settings(arguments.minutes), arguments.out, arguments.begin)


if __name__ == "__main__":
    main()
