"""A checkpoint as a user would bring it: 8×8 images of four letters, random weights, eighty
thousand parameters.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

LETTERS = ("L", "O", "X", "M")
LORA = {"rank": 2, "targets": ["to_q", "to_k", "to_v", "to_out.0", "conv1"]}


def write_checkpoint(
    folder: Path, *, classes: tuple[str, ...] = LETTERS, seed: int = 0, **changes: Any
) -> Path:
    """In diffusers' format; `changes` are of the scheduler, which predicts noise unless told
    otherwise.
    """
    import json

    from diffusers import DDPMScheduler

    from tests.adapters.diffusion.tiny import unet

    # dropout as a checkpoint may have it; nothing is dropped while it is fitted
    unet(len(classes) or None, seed=seed, dropout=0.1).save_pretrained(folder / "unet")
    DDPMScheduler(**changes).save_pretrained(folder / "scheduler")
    if classes:
        (folder / "classes.json").write_text(json.dumps({"classes": classes}))
    return folder


@cache
def checkpoint() -> str:
    """One for all tests that leave it as it is."""
    return str(write_checkpoint(Path(mkdtemp())))
