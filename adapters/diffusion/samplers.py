"""Schedulers that a model may be given in place of its own, and whether it follows a flow."""

from __future__ import annotations

import inspect
from typing import Any, Literal

from pe.errors import RecipeError

Sampler = Literal["own", "ddim", "euler", "euler_ancestral", "dpm_solver", "lcm"]

_SCHEDULERS: dict[Sampler, str] = {
    "ddim": "DDIMScheduler",
    "euler": "EulerDiscreteScheduler",
    "euler_ancestral": "EulerAncestralDiscreteScheduler",
    "dpm_solver": "DPMSolverMultistepScheduler",
    "lcm": "LCMScheduler",
}


def set_sampler(pipeline: Any, sampler: Sampler) -> None:
    """Give a pipeline this scheduler, on the model's own noise schedule.

    Raises:
        RecipeError: the model is a flow, which none of these schedulers steps through.
    """
    import diffusers

    own = pipeline.scheduler
    if sampler == "own":
        return
    if is_flow(own):
        raise RecipeError(f"sampler is '{sampler}', but the model has a flow ({type(own).__name__}): leave it as own.")
    kind = getattr(diffusers, _SCHEDULERS[sampler])
    latents = {"clip_sample": False} if "clip_sample" in inspect.signature(kind).parameters else {}
    pipeline.register_modules(scheduler=kind.from_config(own.config, **latents))  # only pixels lie in [-1, 1]


def is_flow(scheduler: Any) -> bool:
    """Whether the scheduler follows a flow instead of a diffusion."""
    return "FlowMatch" in type(scheduler).__name__
