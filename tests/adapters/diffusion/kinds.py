"""Kinds of pipelines that the adapter `diffusion` runs, tiny and random, with what their recipes say besides."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.adapters.diffusion import tiny, tiny_edit

SIDE = tiny.SIDE
QUIET = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # diffusers and numpy 2
    pytest.mark.filterwarnings("ignore:.callback_steps. is deprecated:FutureWarning"),  # Kandinsky's own call
    pytest.mark.filterwarnings("ignore:.*upcast_vae.*:FutureWarning"),  # Stable Diffusion XL's own call
]
COMMON = {"prompts": "a {label}", "steps": 4, "size": SIDE, "device": "cpu", "batch_size": 2, "offline": True}


@dataclass(frozen=True)
class Kind:
    """A pipeline, what its recipe says besides, and whether a larger degree leads further by construction."""

    build: Callable[[], Any]
    way: str
    settings: dict[str, Any] = field(default_factory=dict)
    beside: Callable[..., dict[str, Any]] = lambda folder, pipeline: {}
    grows: bool = True


def saved(pipeline, folder):
    """Save a pipeline, and return its folder."""
    pipeline.save_pretrained(folder)
    return str(folder)


def _edits(build):
    return lambda folder, _: {"variation_model": saved(build(), folder / "edits")}


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
    "Flux Kontext": Kind(tiny_edit.flux_kontext, "instruction", SHORT, grows=False),
    "InstructPix2Pix": Kind(
        tiny.stable_diffusion, "instruction", beside=_edits(tiny_edit.instruct_pix2pix), grows=False
    ),
    "Kandinsky 2.2": Kind(tiny_edit.kandinsky, "meaning", FEW),
    "IP-Adapter": Kind(tiny.stable_diffusion, "meaning", beside=_ip_adapter),
    "Image variation": Kind(tiny.stable_diffusion, "meaning", beside=_edits(tiny_edit.image_variation)),
    "ControlNet": Kind(tiny.stable_diffusion, "structure", beside=_controlnet),
}
_SLOW = ("Flux Kontext", "Image variation")
_ELSEWHERE = ("Stable Diffusion XL", "Latent Consistency")
EACH = [
    pytest.param(name, marks=[pytest.mark.slow] if name in _SLOW else []) for name in KINDS if name not in _ELSEWHERE
]
"""Those of `make test` stand for each way to vary, for U-Nets and for transformers."""
