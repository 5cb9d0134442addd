"""A checkpoint as a user would bring it: 8×8 images of four letters, random weights, eighty thousand parameters."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

LETTERS = ("L", "O", "X", "M")
LORA = {"rank": 2, "targets": ["to_q", "to_k", "to_v", "to_out.0", "conv1"]}


def write_checkpoint(folder: Path, *, classes: tuple[str, ...] = LETTERS, seed: int = 0, **changes: Any) -> Path:
    """In diffusers' format; `changes` are of the scheduler, which predicts noise unless told otherwise."""
    import json

    import torch
    from diffusers import DDPMScheduler, UNet2DModel

    torch.manual_seed(seed)
    network = UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=8,
        dropout=0.1,  # as a checkpoint may have it; nothing is dropped while it is fitted
        num_class_embeds=len(classes) or None,
    )
    network.save_pretrained(folder / "unet")
    DDPMScheduler(**changes).save_pretrained(folder / "scheduler")
    if classes:
        (folder / "classes.json").write_text(json.dumps({"classes": classes}))
    return folder


@cache
def checkpoint() -> str:
    """One for all tests that leave it as it is."""
    return str(write_checkpoint(Path(mkdtemp())))
