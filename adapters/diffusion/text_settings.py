"""What a recipe, or whoever serves a model, says of a text-to-image model: its weights, and how it varies images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from adapters.diffusion.description import Way
from adapters.diffusion.device import Precision
from adapters.diffusion.items import Job
from adapters.diffusion.lora import LoRA
from adapters.diffusion.memory import Memory, Offload
from adapters.diffusion.samplers import Sampler
from adapters.diffusion.text_files import TextFiles
from adapters.diffusion.text_loading import TextLoader
from adapters.diffusion.vary.choice import Choice
from adapters.prompts import Ladder, Texts
from pe.errors import RecipeError

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
