"""What every way to vary offers to the model that calls it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from PIL import Image

from adapters.diffusion.description import Description, Way, has_prior, inputs_of, over
from adapters.diffusion.items import Item, Job, seeded, steps_run
from adapters.diffusion.text_files import Dtypes, quiet_loading
from adapters.diffusion.weights import SAFETENSORS
from adapters.prompts import Ladder
from pe.errors import APIError, ContractError, MissingDependency, RecipeError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class Vary(Protocol):
    """A way to vary images by one pipeline.

    Attributes:
        pipeline: what is called.
        alone: whether it takes one parent a call, since several would be references of one image.
    """

    pipeline: Any
    alone: bool

    def arguments(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """What the call takes besides what every call does: the parents, how far to go from them, other words.

        Raises:
            APIError: the degree cannot be obeyed.
        """
        ...

    def arguments_of_new(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """What new images need, where this way changed the pipeline that draws them."""
        ...


def pictures_of(items: Sequence[Item]) -> list[Image.Image]:
    """The parents, as every pipeline takes them."""
    return [Image.fromarray(item.image) for item in items if item.image is not None]


# Vary by instruction: an editing pipeline is told in words how far to go from the parent.


class Instruction:
    """Editing, one parent a call.

    A degree is put in words, so nobody knows beforehand how far it leads; `pe probe --ladder` measures it.

    Args:
        pipeline: whose call takes `image` and `prompt`.
        ladder: the words for each degree.
    """

    alone = True

    def __init__(self, pipeline: Any, ladder: Ladder) -> None:
        self.pipeline, self._ladder = pipeline, ladder
        self._inputs = inputs_of(type(pipeline))

    def arguments(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """The parent, the wording of the degree, and where it would be enlarged before it is seen, that it is not."""
        assert job.degree is not None
        own_size = {"_auto_resize": False} if job.size is not None and "_auto_resize" in self._inputs else {}
        return {
            "image": pictures_of(items)[0],
            "prompt": [self._ladder.word(job.degree, item.prompt, item.seed) for item in items],
            **own_size,
        }

    def arguments_of_new(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """Nothing."""
        return {}


# Vary by meaning: a new image is drawn from what the parent shows, not from its pixels.
#
# The degree takes from the parent's part: at degree v its embedding weighs 1 − v, and the text prompt has the rest.


_PRIOR = "prior_"
"""How a combined pipeline calls the inputs of its prior."""

_PRIORS_NOISE = 0x9E3779B97F4A7C15
"""Turns an item's seed into another, for the prior's noise."""


def vary_by_meaning(pipeline: Any, arguments: Mapping[str, Any]) -> Vary:
    """The kind that suits the pipeline.

    Args:
        pipeline: with an IP-Adapter, with a prior, or one that takes an image in place of a prompt.
        arguments: of its call, by their own names.
    """
    if has_prior(type(pipeline)):
        return Mixture(pipeline, arguments)
    return ImagePrompt(pipeline) if "prompt" in inputs_of(type(pipeline)) else ImageAlone(pipeline)


class ImagePrompt:
    """An IP-Adapter over a text-to-image pipeline; its scale is 1 − degree.

    Args:
        pipeline: with the adapter loaded, so that new images, too, need an image prompt: one of scale 0.
    """

    alone = False

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self._prepare = pipeline.prepare_ip_adapter_image_embeds
        pipeline.prepare_ip_adapter_image_embeds = self._embedded

    def arguments(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """What the parents show, and how much that weighs."""
        assert job.degree is not None
        self.pipeline.set_ip_adapter_scale(1 - job.degree)
        return {"ip_adapter_image": pictures_of(items)}

    def arguments_of_new(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """An image prompt that weighs nothing."""
        self.pipeline.set_ip_adapter_scale(0.0)
        return {"ip_adapter_image": [Image.new("RGB", (8, 8))] * len(items)}

    def _embedded(
        self, ip_adapter_image: list[Image.Image], _embeds: None, device: torch.device, _count: int, *guided: bool
    ) -> list[Tensor]:
        """(n or 2·n, 1, …): an embedding for each item, after as many of no image under classifier-free guidance.

        The pipeline's own way would show every image to every item.
        """
        (found,) = self._prepare([ip_adapter_image], None, device, 1, *guided)
        return [found.flatten(0, 1).unsqueeze(1)]


class Mixture:
    """A pipeline whose prior makes an image's embedding from the text: mixed with the parent's own embedding.

    Args:
        pipeline: whose parts `prior_pipe` and `decoder_pipe` are (Kandinsky 2.2).
        arguments: of its call; those of the prior begin with `prior_`.
    """

    alone = False

    def __init__(self, pipeline: Any, arguments: Mapping[str, Any]) -> None:
        self.pipeline, self._prior = pipeline.decoder_pipe, pipeline.prior_pipe
        self._more = {name.removeprefix(_PRIOR): each for name, each in arguments.items() if name.startswith(_PRIOR)}

    def arguments(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """(n, d): 1 − v of the parent's embedding and v of the prompt's."""
        assert job.degree is not None
        prior = self._prior
        generators = [seeded(item.seed ^ _PRIORS_NOISE) for item in items]
        prompts = [item.prompt for item in items]
        drawn = prior(prompts, generator=generators, output_type="pt", **self._more)
        pixels = prior.image_processor(pictures_of(items), return_tensors="pt").pixel_values
        encoder = prior.image_encoder
        shown = encoder(pixels.to(device=prior._execution_device, dtype=encoder.dtype)).image_embeds
        mixed = (1 - job.degree) * shown + job.degree * drawn.image_embeds
        return {"image_embeds": mixed, "negative_image_embeds": drawn.negative_image_embeds}

    def arguments_of_new(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """Nothing."""
        return {}


class ImageAlone:
    """A pipeline that takes an image in place of a prompt; at degree v the image's embedding is shrunk to 1 − v.

    Args:
        pipeline: whose part `image_encoder` embeds the image; no embedding, zero, stands for no image.
    """

    alone = False

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self._weight = 1.0
        pipeline.image_encoder.register_forward_hook(self._shrink)

    def arguments(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """The parents."""
        assert job.degree is not None
        self._weight = 1 - job.degree
        return {"image": pictures_of(items)}

    def arguments_of_new(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """Nothing: another pipeline draws new images."""
        return {}

    def _shrink(self, _module: nn.Module, _given: tuple[Tensor, ...], found: Any) -> Any:
        return type(found)(**dict(found) | {"image_embeds": found.image_embeds * self._weight})


# Schedulers that a model may be given in place of its own, and whether it follows a flow.


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


# Vary by noise: img2img noises the parent part of the way and denoises it again (SDEdit); strength = degree.


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


# Vary by structure: a ControlNet keeps the parent's lines or layout, and the rest is drawn anew from the prompt.
#
# The degree takes from its hold: at degree v the ControlNet weighs 1 − v.


Control = Callable[[Image.Image], Image.Image]
"""From a parent to what the ControlNet is shown, an RGB image of the same size."""


class Structure:
    """A text-to-image pipeline with a ControlNet.

    Args:
        pipeline: whose call takes `controlnet_conditioning_scale`.
        control: makes what the ControlNet is shown.
    """

    alone = False

    def __init__(self, pipeline: Any, control: Control) -> None:
        self.pipeline, self._control = pipeline, control
        self._name = "control_image" if "control_image" in inputs_of(type(pipeline)) else "image"

    def arguments(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """What the ControlNet is shown of each parent, and how much it weighs."""
        assert job.degree is not None
        shown = [self._shown(parent) for parent in pictures_of(items)]
        return {self._name: shown, "controlnet_conditioning_scale": 1 - job.degree}

    def arguments_of_new(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """Nothing: the pipeline without the ControlNet draws new images."""
        return {}

    def _shown(self, parent: Image.Image) -> Image.Image:
        found = self._control(parent)
        if not isinstance(found, Image.Image) or found.size != parent.size:
            raise ContractError(
                f"control made {found!r} of a parent of {parent.size}: an image of that size is wanted."
            )
        return found.convert("RGB")


def control_of(setting: str) -> Control:
    """From the recipe's `control`: `image`, `canny`, or a function of one's own as module:function.

    Raises:
        RecipeError: there is no such function.
        MissingDependency: OpenCV is not installed, and `canny` needs it.
    """
    if setting == "image":
        return lambda parent: parent
    if setting == "canny":
        return _canny()
    module, _, name = setting.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except (ImportError, ValueError) as error:
        raise RecipeError(f"control is '{setting}': it must be image, canny or module:function ({error}).") from error
    if not callable(found):
        raise RecipeError(f"control is '{setting}': it must be image, canny or module:function.")
    return found  # type: ignore[no-any-return]


def _canny() -> Control:
    """Canny's edges, white on black, with the thresholds that published ControlNets were trained on."""
    try:
        import cv2
    except ModuleNotFoundError as error:
        raise MissingDependency.of("cv2", "control", "control: canny") from error
    return lambda parent: Image.fromarray(cv2.Canny(np.array(parent), 100, 200)).convert("RGB")


# Which way to vary a recipe means, whether the model can, and that way over the loaded pipeline.


@dataclass(frozen=True)
class Choice:
    """How images are to be varied.

    Attributes:
        way: None: what the other settings speak of, else what the model can do first.
        ladder: for `instruction`: the words for each degree.
        worded: whether the recipe gave those words.
        ip_adapter: for `meaning`: the arguments of diffusers' load_ip_adapter.
        controlnet: for `structure`: a folder or a repository.
        control: for `structure`: see `control_of`.
        offline: fetch none of them.
    """

    way: Way | None = None
    ladder: Ladder = field(default_factory=lambda: Ladder.of(None))
    worded: bool = False
    ip_adapter: Mapping[str, Any] | None = None
    controlnet: str | None = None
    control: str = "image"
    offline: bool = False

    @property
    def named(self) -> Way | None:
        """The way that the recipe speaks of, by name or by what only that way needs.

        Raises:
            RecipeError: it speaks of two.
        """
        spoken: dict[str, tuple[Way, bool]] = {
            "wordings": ("instruction", self.worded),
            "ip_adapter": ("meaning", self.ip_adapter is not None),
            "controlnet": ("structure", self.controlnet is not None),
        }
        given = [(setting, way) for setting, (way, is_given) in spoken.items() if is_given]
        for setting, way in given:
            if way != (self.way or given[0][1]):
                raise RecipeError(f"{setting} is for vary: {way}, and vary is '{self.way or given[0][1]}': drop one.")
        return self.way or (given[0][1] if given else None)

    def settle(self, description: Description, model: str) -> Way:
        """The way, and whether this model can.

        Raises:
            RecipeError: it cannot, or something is missing.
        """
        able = description.ways
        self._check_file()
        way = self.named or next((each for each in able if not self._lack(each, description)), None)
        name = description.kind.__name__
        if way is None or way not in able:
            cannot = "cannot answer VARIATION_API" if way is None else f"cannot vary by {way}"
            can = f"vary by {' or '.join(able)}" if able else "only draw"
            raise RecipeError(
                f"model: '{model}' ({name}) {cannot}: in diffusers it can {can}, so name another model under "
                "variation_model, or another way under vary."
            )
        if lack := self._lack(way, description):
            raise RecipeError(f"vary: {way} with '{model}' ({name}) needs {lack}.")
        if way == "structure":
            control_of(self.control)
        return way

    def over(self, pipeline: Any, kind: type, way: Way, arguments: Mapping[str, Any], dtypes: Dtypes) -> Vary:
        """The way over a loaded pipeline, with what it needs besides.

        Args:
            pipeline: with all parts of the model.
            kind: of the pipeline that varies.
            way: which `kind` can.
            arguments: of its call, by their own names.
            dtypes: part → type.

        Raises:
            OSError: a file is missing.
            ValueError: a file is none of its kind.
        """
        if way == "structure":
            net = self._controlnet(dtypes["default"])
            return Structure(over(kind, pipeline, controlnet=net), control_of(self.control))
        found = over(kind, pipeline)
        if way == "noise":
            return Noise(found)
        if way == "instruction":
            return Instruction(found, self.ladder)
        if self.ip_adapter is not None:
            with quiet_loading():
                found.load_ip_adapter(**{"local_files_only": self.offline, **self.ip_adapter})
        return vary_by_meaning(found, arguments)

    def _check_file(self) -> None:
        """Raise RecipeError if the IP-Adapter's file may hold code."""
        name = (self.ip_adapter or {}).get("weight_name", SAFETENSORS)
        if not str(name).endswith(SAFETENSORS):
            raise RecipeError(
                f"ip_adapter.weight_name is '{name}': only {SAFETENSORS} files are read, since others may hold code."
            )

    def _lack(self, way: Way, description: Description) -> str | None:
        """What the recipe must name for this way; None: nothing."""
        if way == "structure" and self.controlnet is None:
            return "a ControlNet: name one under controlnet"
        if way == "meaning" and self.ip_adapter is None and description.meaning is description.prompted_by_images:
            return "an IP-Adapter: name one under ip_adapter"
        return None

    def _controlnet(self, dtype: Any) -> Any:
        from diffusers import AutoModel

        with quiet_loading():
            return AutoModel.from_pretrained(
                self.controlnet, dtype=dtype, use_safetensors=True, local_files_only=self.offline
            )
