"""A text-to-image model put together on a device: what draws new images, and what varies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from adapters.diffusion.description import Way, describe, describe_weight, inputs_of, over
from adapters.diffusion.device import Precision, dtype_on
from adapters.diffusion.items import Item, Job
from adapters.diffusion.memory import Memory
from adapters.diffusion.on_device import prepare_on_device
from adapters.diffusion.samplers import Sampler, set_sampler
from adapters.diffusion.text_files import Dtypes, TextFiles
from adapters.diffusion.text_model import TextModel
from adapters.diffusion.vary.choice import Choice
from adapters.diffusion.vary.way import Vary
from adapters.diffusion.weights import require
from pe.errors import RecipeError

if TYPE_CHECKING:
    import torch

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
