"""Every kind of pipeline that the adapter `diffusion` runs, tiny and random, with what its recipe says besides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline

from adapters.diffusion.text_to_image import TextToImage
from tests.adapters.diffusion import tiny, tiny_edit, tiny_qwen

SIDE = 64


@dataclass(frozen=True)
class Kind:
    """A pipeline, what its recipe says besides, and whether a larger degree leads further by construction."""

    build: Callable[[], DiffusionPipeline]
    way: str
    settings: dict[str, object] = field(default_factory=dict)
    beside: Callable[[Path, DiffusionPipeline], dict[str, object]] = lambda folder, pipeline: {}
    grows: bool = True


def saved(pipeline: DiffusionPipeline, folder: Path) -> str:
    """Save a pipeline, and return its folder."""
    pipeline.save_pretrained(folder)
    return str(folder)


def _edits(build: Callable[[], DiffusionPipeline]) -> Callable[[Path, DiffusionPipeline], dict[str, object]]:
    return lambda folder, _: {"variation_model": saved(build(), folder / "edits")}


def _ip_adapter(folder: Path, pipeline: DiffusionPipeline) -> dict[str, object]:
    return {"ip_adapter": tiny_edit.ip_adapter(folder / "adapter", pipeline.unet)}


def _controlnet(folder: Path, pipeline: DiffusionPipeline) -> dict[str, object]:
    tiny_edit.control_net(pipeline.unet).save_pretrained(folder / "net")
    return {"controlnet": str(folder / "net")}


COMMON: dict[str, Any] = {
    "prompts": "a {label}",
    "steps": 4,
    "size": SIDE,
    "device": "cpu",
    "batch_size": 3,
    "offline": True,
}
FEW: dict[str, object] = {"arguments": {"prior_num_inference_steps": 2}}
SHORT: dict[str, object] = {"arguments": {"max_sequence_length": 16}}
KINDS = {
    "Stable Diffusion 1.5": Kind(tiny.stable_diffusion, "noise"),
    "Stable Diffusion 2": Kind(tiny.stable_diffusion_2, "noise"),
    "Stable Diffusion XL": Kind(tiny.stable_diffusion_xl, "noise"),
    "SDXL Turbo": Kind(lambda: tiny.stable_diffusion_xl(turbo=True), "noise", {"guidance": 0.0}),
    "Stable Diffusion 3": Kind(tiny.stable_diffusion_3, "noise"),
    "Latent Consistency": Kind(tiny.latent_consistency, "noise"),
    "Flux": Kind(tiny.flux, "noise", SHORT),
    "Qwen-Image": Kind(tiny_qwen.qwen_image, "noise"),
    "Z-Image": Kind(tiny_qwen.z_image, "noise", {"arguments": {"max_sequence_length": 64}}),
    "Kandinsky 2.2, noise": Kind(tiny_edit.kandinsky, "noise", {"vary": "noise"} | FEW, grows=False),
    "Flux Kontext": Kind(tiny_edit.flux_kontext, "instruction", SHORT, grows=False),
    "FLUX.2 klein": Kind(tiny_edit.flux_2, "instruction", {"arguments": {"max_sequence_length": 32}}, grows=False),
    "Qwen-Image-Edit": Kind(tiny_qwen.qwen_image_edit, "instruction", {"steps": 2}, grows=False),
    "InstructPix2Pix": Kind(
        tiny.stable_diffusion, "instruction", beside=_edits(tiny_edit.instruct_pix2pix), grows=False
    ),
    "Kandinsky 2.2, meaning": Kind(tiny_edit.kandinsky, "meaning", FEW),
    "IP-Adapter": Kind(tiny.stable_diffusion, "meaning", beside=_ip_adapter),
    "Image variation": Kind(tiny.stable_diffusion, "meaning", beside=_edits(tiny_edit.image_variation)),
    "ControlNet": Kind(tiny.stable_diffusion, "structure", beside=_controlnet),
}
_QUICK = ("Stable Diffusion 1.5", "Flux", "InstructPix2Pix", "IP-Adapter", "ControlNet")
EACH = [pytest.param(name, marks=[] if name in _QUICK else [pytest.mark.slow]) for name in KINDS]
"""The names of all kinds, for tests of each: one of each way to vary, and a transformer, in `make test`."""


def maker(new_folder: Callable[[], Path]) -> Callable[..., TextToImage]:
    """What makes the adapter over a kind, which is saved once, with changed settings."""
    made: dict[str, dict[str, object]] = {}

    def api(name: str, **changes: object) -> TextToImage:
        kind = KINDS[name]
        if name not in made:
            torch.manual_seed(0)
            folder = new_folder()
            pipeline = kind.build()
            made[name] = {"model": saved(pipeline, folder / "model")} | kind.beside(folder, pipeline)
        return TextToImage(**(COMMON | kind.settings | made[name] | changes))  # type: ignore[arg-type]

    return api
