"""What a recipe, or whoever serves a model, says of a text-to-image model: its weights, and how it varies images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from adapters.diffusion.description import Way, degree_of
from adapters.diffusion.device import Memory, Offload, Precision
from adapters.diffusion.engine import Engine, LocalDiffusion, answer_of, parents_of
from adapters.diffusion.items import Item, Job, Outcome, numbers_of, of_iteration
from adapters.diffusion.text_files import TextFiles
from adapters.diffusion.text_model import TextLoader
from adapters.diffusion.vary import Choice, Sampler
from adapters.diffusion.weights import LoRA
from adapters.prompts import PROMPT, Ladder, NegativePrompts, Prompts, TextByLabel, Texts, prompts_of
from pe.data.decoding import Resize, convert_pixels
from pe.data.samples import Conditions
from pe.errors import RecipeError
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, Seeds, VariationRequest

MEMORY_SETTINGS = ("attention_slicing", "vae_slicing", "vae_tiling", "offload")
CODE_SETTINGS = ("pipeline", "control")


@dataclass(kw_only=True, eq=False, repr=False)
class TextSettings:
    """A text-to-image model of diffusers.

    Args:
        model: a folder in diffusers' format (from the current folder, if relative), or a repository of the Hugging Face
            hub (OWNER/NAME).
        arguments: more of what the pipeline's call takes, by its own names, such as max_sequence_length,
            true_cfg_scale or image_guidance_scale.
        vary: noise (img2img; strength = degree), instruction (editing, told in words), meaning (an image prompt, whose
            scale is 1 − degree) or structure (a ControlNet, whose scale is 1 − degree); None: what the other settings
            speak of, else what the model can do first.
        variation_model: another model, which varies: a folder or a repository.
        wordings: for vary: instruction: degree → text; a degree is put in the text of the first entry at or above it,
            in which `{prompt}` becomes the sample's own prompt. None: those shipped.
        ip_adapter: for vary: meaning: what diffusers' load_ip_adapter takes, by its own names:
            pretrained_model_name_or_path_or_dict, subfolder, weight_name, image_encoder_folder.
        controlnet: for vary: structure: a folder or a repository.
        control: what the ControlNet is shown of a parent: image (itself), canny (its edges), or module:function, which
            takes and returns a PIL image.
        sampler: own (the model's), ddim, euler, euler_ancestral, dpm_solver or lcm.
        safety_checker: keep the model's, where it has one; what it finds counts as refused.
        pipeline: a class of pipelines of your own, as module:Class, in place of the one that the model names.
        single_file: a checkpoint in one .safetensors file; `model` then needs its configurations alone.
        components: part → a folder, a repository, or a .safetensors or .gguf file in place of the model's.
        lora: a .safetensors file, a folder, or a repository (OWNER/NAME or OWNER/NAME/FILE); several; or each with its
            weight.
        quantization: the arguments of diffusers' PipelineQuantizationConfig: quant_backend, quant_kwargs and
            components_to_quantize.
        precision_of: part → precision, where it is not `precision`.
        attention_slicing: on MPS, attention head by head, which saves memory; elsewhere attention is fused.
        vae_slicing: decode images one at a time, which saves memory. None: those of a batch above 4.
        vae_tiling: decode an image tile by tile, which saves memory.
        offload: keep on the card only what is at work: none, model, group or sequential.
        revision: of a repository.
        variant: of the weight files, such as fp16.

    Raises:
        RecipeError: a setting is out of range.
    """

    model: str
    arguments: dict[str, Any] | None = None
    vary: Way | None = None
    variation_model: str | None = None
    wordings: dict[float, Texts] | None = None
    ip_adapter: dict[str, Any] | None = None
    controlnet: str | None = None
    control: str = "image"
    sampler: Sampler = "own"
    safety_checker: bool = True
    pipeline: str | None = None
    single_file: str | None = None
    components: dict[str, str] | None = None
    lora: str | list[str] | dict[str, float] | None = None
    quantization: dict[str, Any] | None = None
    precision_of: dict[str, Precision] | None = None
    attention_slicing: bool = False
    vae_slicing: bool | None = None
    vae_tiling: bool = False
    offload: Offload = "none"
    revision: str | None = None
    variant: str | None = None

    def loader(self, precision: Precision, offline: bool = False, compile: Job | None = None) -> TextLoader:  # noqa: A002
        """What loads the model.

        Args:
            precision: of its arithmetic.
            offline: fetch nothing.
            compile: the networks are compiled by torch.compile, for images such as this; None: not.

        Raises:
            RecipeError: a setting is none of those that are known.
        """
        known = {"sampler": Sampler, "offload": Offload} | ({} if self.vary is None else {"vary": Way})
        known |= {f"precision_of.{part}": Precision for part in self.precision_of or {}}
        for name, names in known.items():
            section, _, part = name.partition(".")
            given = getattr(self, section)[part] if part else getattr(self, name)
            if given not in get_args(names):
                raise RecipeError(f"{name} is '{given}': it must be one of {', '.join(get_args(names))}.")
        another = None
        if self.variation_model is not None:
            another = TextFiles(self.variation_model, offline=offline, safety_checker=self.safety_checker)
        return TextLoader(
            files=self._files(offline),
            variation_files=another,
            choice=Choice(
                way=self.vary,
                ladder=Ladder.of(self.wordings),
                worded=self.wordings is not None,
                ip_adapter=self.ip_adapter,
                controlnet=self.controlnet,
                control=self.control,
                offline=offline,
            ),
            sampler=self.sampler,
            memory=Memory(**{name: getattr(self, name) for name in MEMORY_SETTINGS}),
            precision=self._precisions(precision),
            arguments=self.arguments or {},
            compile=compile,
        )

    def _files(self, offline: bool) -> TextFiles:
        return TextFiles(
            model=self.model,
            revision=self.revision,
            variant=self.variant,
            offline=offline,
            safety_checker=self.safety_checker,
            pipeline=self.pipeline,
            single_file=self.single_file,
            components=self.components or {},
            lora=LoRA.of(self.lora),
            quantization=self.quantization,
        )

    def _precisions(self, precision: Precision) -> Mapping[str, Precision]:
        return {"default": precision, **(self.precision_of or {})}


# Local text-to-image models as generators: RANDOM_API draws from a prompt, VARIATION_API varies in four ways.


_GRID = 8  # pixels that a latent stands for


@dataclass(kw_only=True, eq=False, repr=False)
class TextToImage(TextSettings, LocalDiffusion):
    """RANDOM_API and VARIATION_API by the pipelines of diffusers: Stable Diffusion, Flux, Qwen-Image and their like.

    What a pipeline takes and how it can vary an image is found by looking at it; docs/diffusion.md has a table. The
    model is loaded at the first request, once on each device. Degree 0 is the parent itself, degree 1 a new image of
    the parent's prompt.

    Conditions: `prompt`, drawn for each new sample and carried on.

    Args:
        prompts: a text, a list to draw from, or either for each label; `{label}` is replaced.
        negative_prompt: what images should not be like; or a text for each label.
        steps: of drawing a new image; a variation by noise of degree v runs the last ⌊v·steps⌋ of them. Or a list with
            one number for each iteration, of which new samples take the first.
        guidance: classifier-free guidance scale; or a list, as `steps`. None: the pipeline's own.
        size: height and width at which the model draws, or one number for both; None: the model's own.
        image_size: of the samples; what is drawn is resized to it. None: as drawn.
        resize: how an image gets to `image_size`.
        channels: 3, or 1 for grey samples.

    Raises:
        RecipeError: a setting is out of range.
    """

    info = PluginInfo(
        hosts=(),
        machine_settings=(*LocalDiffusion.info.machine_settings, *MEMORY_SETTINGS),
        code_settings=CODE_SETTINGS,
        schedules=("steps", "guidance"),
    )
    starter = """\
  model: stable-diffusion-v1-5/stable-diffusion-v1-5\t# OWNER/NAME of the hub, or a folder in diffusers' format
  prompts: {prompts}\t# public: a text, a list to draw from, or either for each label
  # negative_prompt: text, watermark
  # lora: style.safetensors\t# weights over the model's own; its images must be public
  size: 512\t# height and width that the model draws at
  image_size: {size}\t# what the samples are resized to
  channels: {channels}
  steps: 30
  # guidance: 7.5\t# the model's own unless given
  # vary: noise\t# or instruction, meaning, structure; what the model does by itself unless given (docs/diffusion.md)
"""

    prompts: Texts | dict[str, Texts]
    negative_prompt: TextByLabel = ""
    guidance: float | list[float] | None = None
    size: int | tuple[int, int] | None = None
    image_size: int | tuple[int, int] | None = None
    resize: Resize = "crop"
    channels: Literal[1, 3] = 3
    chunk: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        self._size, self._image_size = _pair(self.size), _pair(self.image_size)
        if self._size is not None and any(side < _GRID or side % _GRID for side in self._size):
            raise RecipeError(f"size is {self._size}: a model draws multiples of {_GRID} pixels; see image_size, too.")
        if self._image_size is not None and self._size is None:
            raise RecipeError("image_size is given, so give size, too: that at which the model draws.")
        low = [number for number in ([] if self.guidance is None else numbers_of(self.guidance)) if number <= 1]
        self._negative = NegativePrompts.of(self.negative_prompt)
        if self._negative and low and not self.arguments:
            raise RecipeError(f"negative_prompt has no effect at guidance {low[0]}: take one above 1, or leave it out.")
        self._prompts = Prompts.of(self.prompts)
        self.info = replace(self.info, by_label=self._prompts.by_label)
        self._loader = self.loader(self.precision, self.offline, self._job(None, 1) if self.compile else None)
        self._engine = Engine(self._loader.load, device=self.device, batch_size=self.batch_size, most=64, most_on_cpu=4)

    @property
    def capabilities(self) -> Capabilities:
        """As of all local models; a degree that is put in words is obeyed as well as they are understood."""
        return replace(super().capabilities, degree=degree_of(self._loader.way))

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means to the way in which images are varied.

        Raises:
            RecipeError: it leaves no step to run, or the model cannot vary images as asked.
        """
        described = self._loader.describe_degree(degree)
        return super().describe_degree(degree, iteration) if described is None else described

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if a label has no prompt."""
        self._prompts.check(labels)
        self._negative.of_labels(labels)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """The prompt of each new sample."""
        return self._prompts.draw(labels, seeds)

    def random_api(self, request: RandomRequest) -> Answer:
        """New images of the items' prompts.

        Raises:
            RecipeError: the weights or the device are not there, or the model cannot vary images as asked.
            APIError: the device has not enough memory for one image.
        """
        conditions = self._prompted(request.labels, request.conditions, request.seeds)
        job, negative = self._job(None, 1), self._negative.of_labels(request.labels)
        items = [
            Item(job, int(seed), prompt=prompt, negative_prompt=unlike)
            for seed, prompt, unlike in zip(request.seeds, _prompts(conditions), negative, strict=True)
        ]
        return self._answer(items, conditions)

    def variation_api(self, request: VariationRequest) -> Answer:
        """A variation of each parent under its own prompt.

        Raises:
            RecipeError: see `random_api`.
            APIError: the parents are no images, or the device has not enough memory for one.
        """
        conditions = self._prompted(request.labels, request.conditions, request.seeds)
        parents = parents_of(request.samples)
        if request.degree == 0:
            return answer_of(parents, request.samples.array.shape[1:], conditions)
        job, negative = self._job(request.degree, request.iteration), self._negative.of_labels(request.labels)
        items = [
            Item(job, int(seed), self._to_model(image), prompt, unlike)
            for seed, image, prompt, unlike in zip(request.seeds, parents, _prompts(conditions), negative, strict=True)
        ]
        return self._answer(items, conditions)

    def _job(self, degree: float | None, iteration: int) -> Job:
        steps = of_iteration("steps", self.steps, iteration)
        guidance = None if self.guidance is None else of_iteration("guidance", self.guidance, iteration)
        return Job(steps, degree, guidance, self._size)

    def _answer(self, items: Sequence[Item], conditions: Conditions) -> Answer:
        outcomes = [self._to_sample(outcome) for outcome in self._engine.run(items)]
        height, width = self._image_size or self._size or (1, 1)
        return answer_of(outcomes, (height, width, self.channels), conditions)

    def _prompted(self, labels: tuple[str, ...], conditions: Conditions, seeds: Seeds) -> Conditions:
        """The items' prompts; drawn for those that carry none."""
        return conditions if PROMPT in conditions else self.draw_conditions(labels, seeds)

    def _to_model(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """A sample as the model takes it: RGB, of the size at which it draws."""
        return convert_pixels(image, size=self._size, resize=self.resize if self._size else None, channels=3)

    def _to_sample(self, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, np.ndarray):
            return outcome
        size = self._image_size
        return convert_pixels(outcome, size=size, resize=self.resize if size else None, channels=self.channels)


def _prompts(conditions: Conditions) -> list[str]:
    return [str(prompt) for prompt in prompts_of(conditions, conditions.rows or 0)]


def _pair(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    return (size, size) if isinstance(size, int) else size
