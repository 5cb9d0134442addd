"""A text-to-image model's settings and files, and how they are loaded as one pipeline."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal

from adapters.diffusion.description import Description, Way, describe_pipeline, pipeline_class
from adapters.diffusion.vary import Sampler
from adapters.diffusion.weights import (
    add_lora,
    model_folder,
    model_here,
    read_config,
    require_diffusers,
)
from adapters.prompts import Texts
from pe.errors import RecipeError
from pe.plugins.devices import Precision, words_of_error
from pe.plugins.specs import plugin
from pe.plugins.weights import SAFETENSORS, check_whole

if TYPE_CHECKING:
    import torch

INDEX = "model_index.json"
GGUF = ".gguf"
Offload = Literal["none", "model", "sequential", "group"]
MEMORY_SETTINGS = ("vae_slicing", "vae_tiling", "offload")
Dtypes = dict[str, "torch.dtype"]
"""Part of a pipeline → type of its tensors, with the key `default` for all other parts."""


@plugin
class TextSettings:
    """A text-to-image model of diffusers.

    Args:
        model: a folder in diffusers' format (relative to the current folder), or a repository of
            the Hugging Face hub (OWNER/NAME).
        arguments: more inputs of the pipeline's call, with diffusers' names, such as
            max_sequence_length, true_cfg_scale or image_guidance_scale.
        vary: noise (img2img, strength = degree), instruction (editing, told in words), meaning (an
            image prompt with the scale 1 − degree) or structure (a ControlNet with the scale 1 −
            degree). None: the way that `wordings`, `ip_adapter` or `controlnet` belongs to, else
            the first that the model can do.
        variation_model: another model for variations only: a folder or a repository.
        wordings: for `vary: instruction`: degree → text. A degree uses the text of the first entry
            at or above it, in which `{prompt}` becomes the sample's own prompt. None: the shipped
            texts.
        ip_adapter: for `vary: meaning`: the arguments of diffusers' load_ip_adapter:
            pretrained_model_name_or_path_or_dict, subfolder, weight_name, image_encoder_folder.
        controlnet: for `vary: structure`: a folder or a repository.
        control: what the ControlNet sees of a parent: image (the parent), canny (its edges), or
            module:function, which takes and returns a PIL image.
        sampler: own (the model's), ddim, euler, euler_ancestral, dpm_solver or lcm.
        safety_checker: keep the model's safety checker, if it has one. Images that it finds unsafe
            count as refused.
        pipeline: your own class of pipelines, as module:Class, in place of the one that the model
            names.
        single_file: a checkpoint in one .safetensors file. `model` then needs only the
            configurations.
        components: part → a folder, a repository, or a .safetensors or .gguf file in place of the
            model's part.
        lora: a .safetensors file, a folder, or a repository (OWNER/NAME or OWNER/NAME/FILE); a list
            of these; or each with its weight.
        quantization: the arguments of diffusers' PipelineQuantizationConfig: quant_backend,
            quant_kwargs and components_to_quantize.
        precision_of: part → the part's precision, if it is not `precision`.
        vae_slicing: decode images one at a time, which saves memory. None: only in batches of more
            than 4.
        vae_tiling: decode an image tile by tile, which saves memory.
        offload: what is on the GPU at the same time: everything (none), one part (model), a few
            blocks (group), or single layers (sequential).
        revision: commit, tag or branch of the repository `model`. None: the newest.
        variant: which variant of the weight files to read, such as fp16.
        offline: fetch nothing.

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
    vae_slicing: bool | None = None
    vae_tiling: bool = False
    offload: Offload = "none"
    revision: str | None = None
    variant: str | None = None
    offline: bool = False


@dataclass(frozen=True)
class PipelineFiles:
    """The files of a text-to-image model."""

    config: TextSettings

    def folder(self) -> Path:
        """Return the folder with the model, and fetch it if need be.

        Raises:
            RecipeError: it cannot be fetched, or it holds no pipeline.
        """
        require_diffusers("diffusers")
        return self._check(
            model_folder(self.config.model, self.config.revision, self.config.offline, self._fetch)
        )

    def description(self) -> Description | None:
        """Describe the model by its index alone, or return None if it is not here yet."""
        folder = model_here(self.config.model, self.config.revision)
        return None if folder is None else describe_pipeline(self._kind(self._check(folder)))

    def load(self, dtypes: Dtypes) -> Any:
        """Return the pipeline with all its parts on the CPU.

        Raises:
            RecipeError: a file is missing or damaged.
        """
        from safetensors import SafetensorError

        config = self.config
        folder = self.folder()
        components = config.components or {}
        kind: Any = self._kind(folder)
        index = read_config(folder / INDEX)
        # Diffusers would ask for parts that the model was published without.
        parts: dict[str, Any] = {
            name: None for name, classes in index.items() if classes == [None, None]
        }
        if "safety_checker" in index and not config.safety_checker:
            parts |= {"safety_checker": None, "requires_safety_checker": False}
        try:
            with quiet_loading():
                parts |= {
                    name: self._part(name, place, index, dtypes)
                    for name, place in components.items()
                }
                pipeline = self._pipeline(kind, folder, dtypes, parts)
                if config.lora:
                    add_lora(pipeline, config.lora, config.model, config.offline)
        except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
            for place in (*components.values(), config.single_file or folder):
                check_whole(place)
            raise RecipeError(
                f"The model {config.model} in {folder} cannot be loaded "
                f"({words_of_error(error)}). Put the whole model there, with all its "
                ".safetensors files."
            ) from error
        return pipeline

    def _pipeline(
        self,
        kind: Any,
        folder: Path,
        dtypes: Dtypes,
        parts: dict[str, Any],
    ) -> Any:
        from diffusers import PipelineQuantizationConfig
        from diffusers.loaders.single_file_utils import SingleFileComponentError

        common = {"dtype": dtypes, "local_files_only": True}
        if self.config.single_file is not None:
            file = _existing(self.config.single_file, "single_file", SAFETENSORS)
            try:
                return kind.from_single_file(
                    str(file),
                    config=str(folder),
                    **common,
                    **parts,
                )
            except SingleFileComponentError as error:
                raise RecipeError(
                    f"`single_file`: '{file}' lacks a part of the model. Name a place for that "
                    "part in `components`."
                ) from error
        if self.config.quantization is not None:
            parts = parts | {
                "quantization_config": PipelineQuantizationConfig(**self.config.quantization)
            }
        return kind.from_pretrained(
            str(folder), use_safetensors=True, variant=self.config.variant, **common, **parts
        )

    def _part(
        self,
        name: str,
        place: str,
        index: Mapping[str, Any],
        dtypes: Dtypes,
    ) -> Any:
        """Return the pipeline's part `name`, loaded from `place` instead of the model's folder."""
        import diffusers
        import transformers

        # The index tells the part's class. Names from a file are looked up in two libraries alone.
        library, kind_name = index.get(name) or ("", "")
        kind = getattr(
            {"diffusers": diffusers, "transformers": transformers}.get(str(library)),
            str(kind_name),
            None,
        )
        if kind is None:
            raise RecipeError(f"`components`: '{self.config.model}' has no part {name} to replace.")
        dtype = dtypes.get(name, dtypes["default"])
        options: dict[str, Any] = {"dtype": dtype, "local_files_only": self.config.offline}
        if Path(place).suffix not in (SAFETENSORS, GGUF):
            return kind.from_pretrained(place, use_safetensors=True, **options)
        if Path(place).suffix == GGUF:
            options["quantization_config"] = diffusers.GGUFQuantizationConfig(compute_dtype=dtype)
        file = _existing(place, f"components.{name}", SAFETENSORS, GGUF)
        return kind.from_single_file(
            str(file), config=str(self.folder()), subfolder=name, **options
        )

    def _kind(self, folder: Path) -> type:
        if self.config.pipeline is None:
            return pipeline_class(
                str(read_config(folder / INDEX).get("_class_name")), self.config.model
            )
        place = self.config.pipeline
        try:
            kind: type = resolve_name(place)
        except (ImportError, AttributeError, ValueError) as error:
            raise RecipeError(
                f"`pipeline`: '{place}' cannot be imported ({error}). Write module:Class."
            ) from error
        if not hasattr(kind, "from_pretrained"):
            raise RecipeError(
                f"`pipeline`: '{place}' is not a class of pipelines (with from_pretrained). "
                "Write module:Class."
            )
        return kind

    def _check(self, folder: Path) -> Path:
        if (folder / INDEX).is_file():
            return folder
        if folder.is_file():
            raise RecipeError(
                f"`model`: '{self.config.model}' is a file. Put it in `single_file`, and set "
                "`model` to a model that has its configurations."
            )
        raise RecipeError(
            f"`model`: the folder '{self.config.model}' has no {INDEX}, so it is not a pipeline "
            "in diffusers' format."
        )

    def _fetch(self) -> str:
        from diffusers import DiffusionPipeline

        config = self.config
        return str(
            DiffusionPipeline.download(
                config.model, revision=config.revision, variant=config.variant, use_safetensors=True
            )
        )


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Switch off the libraries' progress bars in a block, one thread at a time.

    The safety checker's warnings are switched off for good: an unsafe image is an outcome, which
    the run counts.
    """
    from diffusers.utils import logging as diffusers_bars
    from transformers.utils import logging as transformers_bars

    logging.getLogger("diffusers.models.modeling_utils").addFilter(_names_modules)
    logging.getLogger("diffusers.pipelines.stable_diffusion.safety_checker").setLevel(logging.ERROR)
    libraries = (diffusers_bars, transformers_bars)
    bars = [library for library in libraries if library.is_progress_bar_enabled()]
    for library in bars:
        library.disable_progress_bar()
    try:
        yield
    finally:
        for library in bars:
            library.enable_progress_bar()


def _names_modules(record: logging.LogRecord) -> bool:
    """Return false, which drops the record, for a warning of SDXL that names no modules."""
    return "should be kept in float32: []" not in record.getMessage()


def _existing(path: str, setting: str, *endings: str) -> Path:
    if Path(path).suffix not in endings:
        raise RecipeError(
            f"`{setting}` is '{path}'. Only {' and '.join(endings)} files are read, because "
            "others may contain code."
        )
    if not Path(path).is_file():
        raise RecipeError(f"`{setting}`: there is no file '{path}'.")
    return Path(path)
