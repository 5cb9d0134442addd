"""The four ways to vary an image by a pipeline: noise, instruction, meaning and structure."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from PIL import Image

from adapters.diffusion.description import has_prior, inputs_of
from adapters.diffusion.items import Item, Job, steps_run, torch_rng
from adapters.prompts import Ladder
from pe.errors import APIError, ContractError, RecipeError
from pe.plugins.devices import import_library

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Sampler = Literal["own", "ddim", "euler", "euler_ancestral", "dpm_solver", "lcm"]
Control = Callable[[Image.Image], Image.Image]
"""A function from a parent to the image that the ControlNet is shown, RGB of the parent's size."""

_SCHEDULERS: dict[Sampler, str] = {
    "ddim": "DDIMScheduler",
    "euler": "EulerDiscreteScheduler",
    "euler_ancestral": "EulerAncestralDiscreteScheduler",
    "dpm_solver": "DPMSolverMultistepScheduler",
    "lcm": "LCMScheduler",
}
# prefix of the inputs that a combined pipeline hands to its prior
_PRIOR = "prior_"
# the seed of the prior's noise is an item's seed XOR this
_PRIORS_NOISE = 0x9E3779B97F4A7C15


@dataclass
class Vary(ABC):
    """A way to vary images by one pipeline.

    Attributes:
        pipeline: the pipeline that is called.
        alone: true: one parent per call, because the pipeline takes several as references for one
            image.
    """

    pipeline: Any
    alone: ClassVar[bool] = False

    @abstractmethod
    def arguments(
        self,
        job: Job,
        degree: float,
        items: Sequence[Item],
    ) -> Mapping[str, Any]:
        """Return the arguments that this way adds to a call.

        They hold the parents, how far to go from them, and changed prompts.

        Raises:
            APIError: the degree cannot be obeyed.
        """

    def arguments_of_new(self, count: int) -> Mapping[str, Any]:
        """Return more arguments for a call that draws `count` new images.

        Only a way that changed the drawing pipeline needs them.
        """
        return {}


def pictures_of(items: Sequence[Item]) -> list[Image.Image]:
    """Return the parents as PIL images, which every pipeline takes."""
    return [Image.fromarray(item.image) for item in items if item.image is not None]


class ByNoise(Vary):
    """Img2img noises the parent part of the way and denoises it again (SDEdit).

    The strength is the degree.
    """

    def arguments(
        self,
        job: Job,
        degree: float,
        items: Sequence[Item],
    ) -> Mapping[str, Any]:
        """Return the parents, and the strength at which ⌊steps·degree⌋ steps run.

        Raises:
            APIError: these are too few.
        """
        scheduler = self.pipeline.scheduler
        # Latent consistency models run all steps, on the last part of the schedule they were
        # distilled on.
        is_lcm = "original_inference_steps" in inputs_of(type(self.pipeline))
        steps = int(scheduler.config.original_inference_steps) if is_lcm else job.steps
        run = steps_run(steps, degree)
        if is_lcm and run < job.steps:
            raise APIError(
                f"Degree {degree:g} leaves {run} of the {steps} steps that this latent "
                f"consistency model was distilled on, fewer than the {job.steps} steps to run. "
                "Use a larger degree, or fewer steps."
            )
        # With run/steps a pipeline may run one step more or less: flow pipelines round down the
        # steps left out, ⌊steps − steps·strength⌋, all others the steps run, ⌊steps·strength⌋.
        margin = -1e-6 if is_flow(scheduler) else 1e-6
        return {"image": pictures_of(items), "strength": min(1.0, (run + margin) / steps)}


@dataclass
class Instruction(Vary):
    """An editing pipeline that is told the degree in words.

    `pe probe --ladder` measures how far the wordings lead.
    """

    ladder: Ladder
    alone: ClassVar[bool] = True

    def arguments(
        self,
        job: Job,
        degree: float,
        items: Sequence[Item],
    ) -> Mapping[str, Any]:
        """Return the parent and the degree's wording.

        If the job has a size, the pipeline must not resize the parent.
        """
        resizes = job.size is not None and "_auto_resize" in inputs_of(type(self.pipeline))
        return {
            "image": pictures_of(items)[0],
            "prompt": [self.ladder.word(degree, item.prompt, item.seed) for item in items],
            **({"_auto_resize": False} if resizes else {}),
        }


def vary_by_meaning(pipeline: Any, arguments: Mapping[str, Any]) -> Vary:
    """Return the way to draw from a parent's meaning.

    At degree v the parent's embedding weighs 1 − v and the prompt has the rest. The pipeline has an
    IP-Adapter or a prior, or takes an image in place of a prompt.
    """
    if has_prior(type(pipeline)):
        return Mixture(pipeline, arguments)
    return ImagePrompt(pipeline) if "prompt" in inputs_of(type(pipeline)) else ImageAlone(pipeline)


class ImagePrompt(Vary):
    """An IP-Adapter over a text-to-image pipeline, with the scale 1 − degree.

    Once the adapter is loaded, new images need an image prompt too: one of scale 0.
    """

    def __init__(self, pipeline: Any) -> None:
        super().__init__(pipeline)
        self._prepare = pipeline.prepare_ip_adapter_image_embeds
        pipeline.prepare_ip_adapter_image_embeds = self._embed

    def arguments(
        self,
        job: Job,
        degree: float,
        items: Sequence[Item],
    ) -> Mapping[str, Any]:
        """Return the parents as image prompts."""
        self.pipeline.set_ip_adapter_scale(1 - degree)
        return {"ip_adapter_image": pictures_of(items)}

    def arguments_of_new(self, count: int) -> Mapping[str, Any]:
        """Return image prompts that weigh nothing."""
        self.pipeline.set_ip_adapter_scale(0.0)
        return {"ip_adapter_image": [Image.new("RGB", (8, 8))] * count}

    def _embed(
        self,
        ip_adapter_image: list[Image.Image],
        _embeds: None,
        device: torch.device,
        _count: int,
        *_flags: bool,
    ) -> list[Tensor]:
        """Return one tensor (n, 1, …) with an embedding per item.

        With guidance it is (2·n, 1, …), and the first n stand for no image. The pipeline's own
        method, which this one replaces, would show every image to every item.
        """
        (embeddings,) = self._prepare([ip_adapter_image], None, device, 1, *_flags)
        return [embeddings.flatten(0, 1).unsqueeze(1)]


class Mixture(Vary):
    """Mixes the parent's embedding with one that a prior makes from the text (Kandinsky 2.2)."""

    def __init__(self, pipeline: Any, arguments: Mapping[str, Any]) -> None:
        super().__init__(pipeline.decoder_pipe)
        self._prior = pipeline.prior_pipe
        self._more = {
            name.removeprefix(_PRIOR): each
            for name, each in arguments.items()
            if name.startswith(_PRIOR)
        }

    def arguments(
        self,
        job: Job,
        degree: float,
        items: Sequence[Item],
    ) -> Mapping[str, Any]:
        """Return embeddings (n, d): 1 − v times the parent's plus v times the prompt's."""
        prior = self._prior
        generators = [torch_rng(item.seed ^ _PRIORS_NOISE) for item in items]
        prompts = [item.prompt for item in items]
        prior_output = prior(
            prompts,
            generator=generators,
            output_type="pt",
            **self._more,
        )
        pixels = prior.image_processor(pictures_of(items), return_tensors="pt").pixel_values
        encoder = prior.image_encoder
        own = encoder(pixels.to(device=prior._execution_device, dtype=encoder.dtype)).image_embeds
        mixture = (1 - degree) * own + degree * prior_output.image_embeds
        return {
            "image_embeds": mixture,
            "negative_image_embeds": prior_output.negative_image_embeds,
        }


class ImageAlone(Vary):
    """An image in place of a prompt, whose embedding is multiplied by 1 − v at degree v.

    An embedding of 0 means no image.
    """

    def __init__(self, pipeline: Any) -> None:
        super().__init__(pipeline)
        self._weight = 1.0
        pipeline.image_encoder.register_forward_hook(self._shrink)

    def arguments(
        self,
        job: Job,
        degree: float,
        items: Sequence[Item],
    ) -> Mapping[str, Any]:
        """Return the parents."""
        self._weight = 1 - degree
        return {"image": pictures_of(items)}

    def _shrink(
        self,
        _module: nn.Module,
        _inputs: tuple[Tensor, ...],
        output: Any,
    ) -> Any:
        return type(output)(**dict(output) | {"image_embeds": output.image_embeds * self._weight})


@dataclass
class ByStructure(Vary):
    """A ControlNet keeps the parent's lines or layout, and weighs 1 − degree.

    The prompt decides the rest.
    """

    control: Control

    def arguments(
        self,
        job: Job,
        degree: float,
        items: Sequence[Item],
    ) -> Mapping[str, Any]:
        """Return what the ControlNet is shown of each parent, and the ControlNet's weight."""
        own = [self._show(parent) for parent in pictures_of(items)]
        name = "control_image" if "control_image" in inputs_of(type(self.pipeline)) else "image"
        return {name: own, "controlnet_conditioning_scale": 1 - degree}

    def _show(self, parent: Image.Image) -> Image.Image:
        image = self.control(parent)
        if not isinstance(image, Image.Image) or image.size != parent.size:
            raise ContractError(
                f"`control` made {image!r} of a parent of {parent.size}. It must return an "
                "image of that size."
            )
        return image.convert("RGB")


def control_of(setting: str) -> Control:
    """Return the function that `control` names: image, canny or module:function.

    Raises:
        RecipeError: there is no such function.
    """
    if setting == "image":
        return lambda parent: parent
    if setting == "canny":
        return _canny()
    wrong = f"`control` is '{setting}'. It must be image, canny or module:function"
    try:
        control = resolve_name(setting)
    except (ImportError, AttributeError, ValueError) as error:
        raise RecipeError(f"{wrong} ({error}).") from error
    if not callable(control):
        raise RecipeError(f"{wrong}.")
    return control  # type: ignore[no-any-return]


def _canny() -> Control:
    """Return a function that draws Canny's edges, white on black.

    The thresholds are those of published ControlNets.
    """
    cv2 = import_library("cv2", "control", "control: canny")
    return lambda parent: Image.fromarray(cv2.Canny(np.array(parent), 100, 200)).convert("RGB")


def set_sampler(pipeline: Any, sampler: Sampler) -> None:
    """Give a pipeline this scheduler, on the model's own noise schedule.

    Raises:
        RecipeError: the model is a flow.
    """
    import diffusers

    own = pipeline.scheduler
    if sampler == "own":
        return
    if is_flow(own):
        raise RecipeError(
            f"`sampler` is '{sampler}', but the model has a flow ({type(own).__name__}). Set "
            "`sampler: own`."
        )
    kind = getattr(diffusers, _SCHEDULERS[sampler])
    # only pixels lie in [−1, 1], and latents must not be cut to it
    latents = {"clip_sample": False} if "clip_sample" in inspect.signature(kind).parameters else {}
    pipeline.register_modules(scheduler=kind.from_config(own.config, **latents))


def is_flow(scheduler: Any) -> bool:
    """Return true if the scheduler follows a flow instead of a diffusion."""
    return "FlowMatch" in type(scheduler).__name__
