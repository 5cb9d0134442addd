"""Kinds of pipelines that the adapter `diffusion` runs, tiny and random, with what their recipes
say besides.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.adapters.diffusion import tiny, tiny_edit

SIDE = tiny.SIDE
QUIET = [
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation:DeprecationWarning"
    ),  # diffusers and numpy 2
    pytest.mark.filterwarnings(
        "ignore:.callback_steps. is deprecated:FutureWarning"
    ),  # Kandinsky's own call
    pytest.mark.filterwarnings(
        "ignore:.*upcast_vae.*:FutureWarning"
    ),  # Stable Diffusion XL's own call
]
COMMON = {
    "prompts": "a {label}",
    "steps": 4,
    "size": SIDE,
    "device": "cpu",
    "batch_size": 2,
    "offline": True,
}


@dataclass(frozen=True)
class Kind:
    """A pipeline, what its recipe says besides, and whether a larger degree leads further by
    construction.
    """

    build: Callable[[], Any]
    way: str
    settings: dict[str, Any] = field(default_factory=dict)
    beside: Callable[..., dict[str, Any]] = lambda folder, pipeline: {}
    grows: bool = True


def saved(pipeline, folder):
    """Save a pipeline, and return its folder."""
    pipeline.save_pretrained(folder)
    return str(folder)


def _edits(folder, _):
    return {"variation_model": saved(tiny_edit.instruct_pix2pix(), folder / "edits")}


def _ip_adapter(folder, pipeline):
    return {"ip_adapter": tiny_edit.ip_adapter(folder / "adapter", pipeline.unet)}


def _controlnet(folder, pipeline):
    return {"controlnet": saved(tiny_edit.control_net(pipeline.unet), folder / "net")}


FEW = {"arguments": {"prior_num_inference_steps": 2}}
SHORT = {"arguments": {"max_sequence_length": 16}}
KINDS = {
    "Stable Diffusion 1.5": Kind(tiny.stable_diffusion, "noise"),
    "Stable Diffusion XL": Kind(tiny.stable_diffusion_xl, "noise"),
    "Latent Consistency": Kind(tiny.latent_consistency, "noise"),
    "Flux": Kind(tiny.flux, "noise", SHORT),
    "InstructPix2Pix": Kind(tiny.stable_diffusion, "instruction", beside=_edits, grows=False),
    "Kandinsky 2.2": Kind(tiny_edit.kandinsky, "meaning", FEW),
    "IP-Adapter": Kind(tiny.stable_diffusion, "meaning", beside=_ip_adapter),
    "ControlNet": Kind(tiny.stable_diffusion, "structure", beside=_controlnet),
}
EACH = [name for name in KINDS if name not in ("Stable Diffusion XL", "Latent Consistency")]
"""They stand for each way to vary, for U-Nets and for transformers."""
