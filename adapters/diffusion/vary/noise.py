"""Vary by noise: img2img noises the parent part of the way and denoises it again (SDEdit); strength = degree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adapters.diffusion.description import inputs_of
from adapters.diffusion.items import Item, Job, steps_run
from adapters.diffusion.samplers import is_flow
from adapters.diffusion.vary.way import pictures_of
from pe.errors import APIError


class Noise:
    """img2img with a strength.

    Args:
        pipeline: whose call takes `image` and `strength`.
    """

    alone = False

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline

    def arguments(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """The parents, and the strength at which ⌊steps·degree⌋ steps run.

        Raises:
            APIError: no step would run.
        """
        assert job.degree is not None
        return {"image": pictures_of(items), "strength": self._strength(job.steps, job.degree)}

    def arguments_of_new(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """Nothing."""
        return {}

    def _strength(self, steps: int, degree: float) -> float:
        """The strength with which img2img runs ⌊steps·degree⌋ steps.

        Latent consistency models run all steps, on the last part of the schedule they were distilled on.
        """
        scheduler = self.pipeline.scheduler
        if "original_inference_steps" not in inputs_of(type(self.pipeline)):
            return exact_strength(steps_run(steps, degree), steps, is_flow(scheduler))
        whole = int(scheduler.config.original_inference_steps)
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
