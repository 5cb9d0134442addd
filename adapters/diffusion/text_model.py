"""A text-to-image model on one device: txt2img makes new images, img2img varies them; strength = degree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.diffusion.items import Item, Job, Outcome, Pixels, steps_run
from adapters.diffusion.noise import seeded
from adapters.diffusion.text_pipelines import Memory, is_flow, parameters_of
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import Failed, Refused

if TYPE_CHECKING:
    import torch

_LOST = Failed("the model's image holds values that are no numbers (precision fp32 or bf16 may heal it)")
_UNSAFE = Refused("the model's safety checker took the image for unsafe")


class TextModel:
    """Two pipelines over the same weights.

    Args:
        pipelines: txt2img and img2img, set up on the device.
        memory: how they share it.
        device: where they compute.
    """

    def __init__(self, pipelines: tuple[Any, Any], memory: Memory, device: torch.device) -> None:
        self._text, self._image = pipelines
        self._memory, self._device = memory, device
        self._engaged: Any = None

    def sample(self, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
        """New images, by txt2img."""
        return self._run(self._text, job, items, {})

    def vary(self, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
        """Variations, by img2img; at degree 1, where img2img would still start from the noised parent, new images."""
        assert job.degree is not None
        if job.degree == 1:
            return self.sample(job, items)
        strength = self._strength(job.steps, job.degree)
        images = np.stack([item.image for item in items if item.image is not None])
        return self._run(self._image, job, items, {"image": images.astype(np.float32) / 255, "strength": strength})

    def _run(self, pipeline: Any, job: Job, items: Sequence[Item], more: dict[str, Any]) -> Sequence[Outcome]:
        if self._engaged is not pipeline:
            self._memory.engage(pipeline, self._device)
            self._engaged = pipeline
        takes = parameters_of(pipeline)
        arguments = {
            "prompt": [item.prompt for item in items],
            "num_inference_steps": job.steps,
            "guidance_scale": job.guidance,
            "generator": [seeded(item.seed) for item in items],
            "output_type": "np",
            **more,
        }
        if any(item.negative_prompt for item in items):
            if "negative_prompt" not in takes or "true_cfg_scale" in takes:
                raise RecipeError(f"negative_prompt: {type(pipeline).__name__} has no use for one, so leave it out.")
            arguments["negative_prompt"] = [item.negative_prompt for item in items]
        if job.size is not None and "height" in takes:
            arguments |= {"height": job.size[0], "width": job.size[1]}
        return _outcomes(pipeline(**arguments))

    def _strength(self, steps: int, degree: float) -> float:
        """The strength with which img2img runs ⌊steps·degree⌋ steps.

        Latent consistency models run all steps, on the last part of the schedule they were distilled on.

        Raises:
            APIError: no step would run.
        """
        if "original_inference_steps" not in parameters_of(self._image):
            return exact_strength(steps_run(steps, degree), steps, is_flow(self._image.scheduler))
        whole = int(self._image.scheduler.config.original_inference_steps)
        if steps_run(whole, degree) < steps:
            raise APIError(
                f"Degree {degree:g} leaves {steps_run(whole, degree)} of the {whole} steps that this latent "
                f"consistency model was distilled on, fewer than its {steps}: take a larger degree, or fewer steps."
            )
        return exact_strength(steps_run(whole, degree), whole, flow=False)


def exact_strength(run: int, steps: int, flow: bool) -> float:
    """A strength with which a pipeline runs `run` of `steps` steps; run/steps may be a step off in floating point.

    Pipelines of flows round the steps left out, ⌊steps − steps·strength⌋, and all others those run, ⌊steps·strength⌋.
    """
    return min(1.0, (run + (-1e-6 if flow else 1e-6)) / steps)


def _outcomes(answer: Any) -> Sequence[Outcome]:
    """uint8 images; what the safety checker found is refused, what is not a number has failed."""
    images = np.asarray(answer.images)
    unsafe = getattr(answer, "nsfw_content_detected", None) or [False] * len(images)
    finite = np.isfinite(images).reshape(len(images), -1).all(axis=1)
    pixels: Pixels = (np.nan_to_num(images) * 255).round().clip(0, 255).astype(np.uint8)
    return [
        _UNSAFE if refused else image if good else _LOST
        for image, refused, good in zip(pixels, unsafe, finite, strict=True)
    ]
