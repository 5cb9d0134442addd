"""How strongly a pipeline is led by its prompt: the one setting `guidance`, put into the input that means it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.diffusion.description import Way, describe, describe_weight, inputs_of, over
from adapters.diffusion.device import Memory, Precision, dtype_on, prepare_on_device
from adapters.diffusion.items import Item, Job, Outcome, Pixels, seeded
from adapters.diffusion.text_files import Dtypes, TextFiles
from adapters.diffusion.vary import Choice, Sampler, Vary, set_sampler
from adapters.diffusion.weights import require
from pe.errors import RecipeError
from pe.plugins.protocols import Failed, Refused

if TYPE_CHECKING:
    import torch


TRUE = "true_cfg_scale"
"""Classifier-free guidance of a model whose `guidance_scale` is distilled into its network, or has none."""

_PLAIN = "guidance_scale"
_NEGATIVE = "negative_prompt"
_NOTHING = " "
"""A negative prompt that says nothing; without any, true guidance stays off."""


def guidance_input(inputs: Mapping[str, inspect.Parameter]) -> str | None:
    """The input that leads: `true_cfg_scale` where the pipeline turns it on by itself, else `guidance_scale`.

    None: the pipeline has neither.
    """
    true = inputs.get(TRUE)
    if true is not None and isinstance(true.default, int | float) and true.default > 1:
        return TRUE
    return _PLAIN if _PLAIN in inputs else None


def guidance_of(
    inputs: Mapping[str, inspect.Parameter],
    guidance: float | None,
    negative: Sequence[str],
    arguments: Mapping[str, Any],
) -> dict[str, Any]:
    """The arguments of a call that say how it is led, and away from what.

    Args:
        inputs: what the call takes.
        guidance: None: the pipeline's own.
        negative: a negative prompt for each item, or an empty text.
        arguments: what the call is given besides, by the inputs' own names.
    """
    name = guidance_input(inputs)
    found: dict[str, Any] = {} if guidance is None or name is None else {name: guidance}
    is_true = TRUE in inputs and {**arguments, **found}.get(TRUE, inputs[TRUE].default) > 1
    if _NEGATIVE in inputs and (is_true or any(negative)):
        found[_NEGATIVE] = [text or (_NOTHING if is_true else "") for text in negative]
    return found


def heeds_negative_prompts(inputs: Mapping[str, inspect.Parameter], arguments: Mapping[str, Any]) -> bool:
    """Whether a negative prompt has an effect; a pipeline with a prior takes none beside a seed for each item."""
    if _NEGATIVE not in inputs or "prior_guidance_scale" in inputs:
        return False
    return TRUE not in inputs or arguments.get(TRUE, inputs[TRUE].default) > 1


# A text-to-image model on one device: one pipeline makes new images, the same or another one varies them.


_LOST = Failed("the model's image holds values that are no numbers (precision fp32 or bf16 may heal it)")
_UNSAFE = Refused("the model's safety checker took the image for unsafe")


class TextModel:
    """Two pipelines, mostly over the same weights.

    Args:
        text: draws new images.
        vary: varies images, by a pipeline of its own or by the same one.
        memory: how the pipelines share the device.
        device: where they compute.
        arguments: of every call that takes them, by their own names.
    """

    def __init__(
        self, text: Any, vary: Vary, memory: Memory, device: torch.device, arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._text, self._vary = text, vary
        self._memory, self._device, self._more = memory, device, dict(arguments or {})
        self._engaged: Any = None
        parts = (getattr(pipeline, "vae", None) for pipeline in (text, vary.pipeline))
        self._autoencoders = [(part, _dtypes(part)) for part in parts if part is not None]

    @property
    def heeds_negative_prompts(self) -> bool:
        """Whether a negative prompt has an effect, on new images and on variations."""
        kinds = (type(self._text), type(self._vary.pipeline))
        return all(heeds_negative_prompts(inputs_of(kind), self._more) for kind in kinds)

    def sample(self, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
        """New images of the items' prompts."""
        return self._run(self._text, job, items, self._vary.arguments_of_new(job, items))

    def vary(self, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
        """Variations; at degree 1, where the parent would still leave a trace, new images."""
        if job.degree == 1:
            return self.sample(job, items)
        parts = [[item] for item in items] if self._vary.alone else [items]
        varied = (self._run(self._vary.pipeline, job, part, self._vary.arguments(job, part)) for part in parts)
        return [outcome for outcomes in varied for outcome in outcomes]

    def _run(self, pipeline: Any, job: Job, items: Sequence[Item], more: Mapping[str, Any]) -> Sequence[Outcome]:
        if self._engaged is not pipeline:
            self._memory.engage(pipeline, self._device)
            self._engaged = pipeline
        self._memory.slice(pipeline, len(items))
        self._restore()
        inputs, negative = inputs_of(type(pipeline)), [item.negative_prompt for item in items]
        if any(negative) and not heeds_negative_prompts(inputs, self._more):
            raise RecipeError(f"negative_prompt: {type(pipeline).__name__} has no use for one, so leave it out.")
        wanted = {
            "prompt": [item.prompt for item in items],
            "num_inference_steps": job.steps,
            "generator": [seeded(item.seed) for item in items],
            "output_type": "pt" if hasattr(pipeline, "image_processor") else "np",
            **guidance_of(inputs, job.guidance, negative, self._more),
        }
        if job.size is not None:
            height, width = job.size
            wanted |= {"height": height, "width": width, "max_area": height * width}
        wanted |= self._more
        known = {name: value for name, value in wanted.items() if name in inputs}
        return _outcomes(pipeline(**known | dict(more)))

    def _restore(self) -> None:
        """Cast back the autoencoders that a failed call left in another dtype.

        Pipelines of Stable Diffusion XL decode in float32 what is kept in float16, and cast back after success alone.
        """
        for autoencoder, dtypes in self._autoencoders:
            if _dtypes(autoencoder) != dtypes:
                for tensor, dtype in zip(_tensors(autoencoder), dtypes, strict=True):
                    tensor.data = tensor.data.to(dtype)


def _tensors(network: Any) -> Sequence[torch.Tensor]:
    return [*network.parameters(), *network.buffers()]


def _dtypes(network: Any) -> Sequence[torch.dtype]:
    return [tensor.dtype for tensor in _tensors(network)]


def _outcomes(answer: Any) -> Sequence[Outcome]:
    """uint8 images; what the safety checker found is refused, what is not a number has failed.

    They are made on the device where the pipeline gives tensors, n×c×h×w, so that a byte a value leaves it.
    """
    import torch

    given = answer.images
    images = given.float().permute(0, 2, 3, 1) if torch.is_tensor(given) else torch.from_numpy(np.asarray(given))
    unsafe = getattr(answer, "nsfw_content_detected", None) or [False] * len(images)
    finite = images.isfinite().flatten(1).all(dim=1).tolist()
    levels = (images.nan_to_num() * 255).round().clamp(0, 255).byte()
    pixels: Pixels = levels.contiguous().cpu().numpy()
    return [
        _UNSAFE if refused else image if good else _LOST
        for image, refused, good in zip(pixels, unsafe, finite, strict=True)
    ]


# A text-to-image model put together on a device: what draws new images, and what varies them.


_OURS = {"prompt", "negative_prompt", "num_inference_steps", "generator", "output_type", "height", "width", "image"}
"""Inputs of a call that other settings are for."""


@dataclass(frozen=True)
class TextLoader:
    """What is loaded, and how it is set up.

    Attributes:
        files: of the model.
        variation_files: of another model, which varies; None: the same.
        choice: how images are varied.
        sampler: in place of the models' own.
        memory: how memory is saved.
        precision: part → precision of its arithmetic; `default` for the others.
        arguments: of every call that takes them, by their own names.
        compile: the networks are compiled by torch.compile, for images such as this; None: not.
    """

    files: TextFiles
    variation_files: TextFiles | None = None
    choice: Choice = field(default_factory=Choice)
    sampler: Sampler = "own"
    memory: Memory = field(default_factory=Memory)
    precision: Mapping[str, Precision] = field(default_factory=lambda: {"default": "fp32"})
    arguments: Mapping[str, Any] = field(default_factory=dict)
    compile: Job | None = None

    @property
    def way(self) -> Way:
        """How images are varied, by the recipe and the model's index; by noise, while that is not here to be read.

        Raises:
            RecipeError: the model cannot.
        """
        files = self.variation_files or self.files
        description = files.description()
        return self.choice.named or "noise" if description is None else self.choice.settle(description, files.model)

    def describe_degree(self, degree: float) -> str | None:
        """What a degree means to that way; None: steps of denoising, the parent itself, or a new image."""
        way = self.way
        if way == "noise" or degree in (0, 1):
            return None
        if way == "instruction":
            return self.choice.ladder.describe(degree)
        return describe_weight(way, degree)

    def load(self, device: torch.device) -> TextModel:
        """The model on a device.

        Raises:
            RecipeError: a file is missing or damaged, or the model cannot do what is asked.
            MissingDependency: diffusers is not installed.
        """
        require("diffusers")
        self.check()
        assumed = self.way
        self.files.folder(), (self.variation_files or self.files).folder()
        self.check()  # again, of what was fetched
        if self.way != assumed:
            raise RecipeError(
                f"model: '{(self.variation_files or self.files).model}' varies by {self.way}, as its index tells now "
                f"that it was fetched, and the plan was made for {assumed}: start again, or write vary: {self.way}."
            )
        dtypes = {part: dtype_on(device, each) for part, each in self.precision.items()}
        base = self._loaded(self.files, dtypes)
        kind = describe(type(base)).text
        assert kind is not None
        varies = base if self.variation_files is None else self._loaded(self.variation_files, dtypes)
        vary = self._vary(varies, dtypes)
        text = vary.pipeline if type(vary.pipeline) is kind and varies is base else over(kind, base)
        pipelines: list[Any] = list({id(each): each for each in (base, varies, text, vary.pipeline)}.values())
        for pipeline in pipelines:
            pipeline.set_progress_bar_config(disable=True)
            prepare_on_device(pipeline)
        self.memory.place(pipelines, device)
        model = TextModel(text, vary, self.memory, device, self.arguments)
        if self.compile is not None:
            _compile(pipelines, model, self.compile)
        return model

    def check(self) -> None:
        """Raise RecipeError if the models cannot do what is asked; of those that are here, the indices are read."""
        files, others = self.files, self.variation_files or self.files
        drawing, varying = files.description(), others.description()
        if drawing is not None and drawing.text is None:
            raise RecipeError(
                f"model: '{files.model}' ({drawing.kind.__name__}) makes no images from text: name one that does, and "
                "this one under variation_model if it is to vary them."
            )
        way = None if varying is None else self.choice.settle(varying, others.model)
        if drawing is not None and drawing.text is not None and varying is not None and way is not None:
            self._check_arguments([drawing.text, varying.of(way)])

    def _loaded(self, files: TextFiles, dtypes: Dtypes) -> Any:
        pipeline = files.load(dtypes)
        set_sampler(pipeline, self.sampler)
        return pipeline

    def _vary(self, pipeline: Any, dtypes: Dtypes) -> Vary:
        files = self.variation_files or self.files
        description = describe(type(pipeline))
        way = self.choice.settle(description, files.model)
        try:
            return self.choice.over(pipeline, description.of(way), way, self.arguments, dtypes)
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            why = " ".join(str(error).split())[:200].rstrip(".")
            raise RecipeError(f"vary: {way} cannot be set up for '{files.model}' ({why}).") from error

    def _check_arguments(self, kinds: Sequence[type]) -> None:
        known = {name for kind in kinds for name in inputs_of(kind)}
        for name in self.arguments:
            if name in _OURS:
                raise RecipeError(f"arguments: {name} is set by the adapter itself, so leave it out.")
            if name not in known:
                named = " or ".join(dict.fromkeys(kind.__name__ for kind in kinds))
                raise RecipeError(f"arguments: {named} takes no {name}; it takes {', '.join(sorted(known - _OURS))}.")


def _compile(pipelines: Sequence[Any], model: TextModel, job: Job) -> None:
    """The networks of all pipelines, tried before the first request, so that none waits for the compiler.

    They are tried on one image and on two, since the compiler allows for any number once it has seen a second one.
    """
    networks = [getattr(pipeline, "unet", None) or getattr(pipeline, "transformer", None) for pipeline in pipelines]
    for network in {id(each): each for each in networks if each is not None}.values():
        network.compile()
    brief = replace(job, steps=2)
    for count in (1, 2):
        model.sample(brief, [Item(brief, seed) for seed in range(count)])
