"""The weights of a text-to-image model: found, described by their index, and loaded as one pipeline."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapters.diffusion.description import Description, class_of, describe
from adapters.diffusion.weights import add_lora, cached_model, local_model, model_folder, read_json, require
from pe.errors import RecipeError
from pe.plugins.devices import words_of
from pe.plugins.weights import SAFETENSORS, check_whole

if TYPE_CHECKING:
    import torch

INDEX = "model_index.json"
GGUF = ".gguf"
Dtypes = dict[str, "torch.dtype"]
"""Part of a pipeline → type of its tensors; the key `default` is for all parts that are not named."""


@dataclass(frozen=True)
class TextFiles:
    """The files of a text-to-image model; the fields are settings of `TextSettings`."""

    model: str
    revision: str | None = None
    variant: str | None = None
    offline: bool = False
    safety_checker: bool = True
    pipeline: str | None = None
    single_file: str | None = None
    components: Mapping[str, str] = field(default_factory=dict)
    lora: Mapping[str, float] = field(default_factory=dict)
    quantization: Mapping[str, Any] | None = None

    def folder(self) -> Path:
        """Return the folder with the model, fetched if need be; RecipeError if that fails, or it holds no pipeline."""
        require("diffusers")
        return self._check(model_folder(self.model, self.revision, self.offline, self._fetch))

    def description(self) -> Description | None:
        """Describe the model by its index alone; None: it is not on this machine yet."""
        folder = local_model(self.model) or cached_model(self.model, self.revision)
        return None if folder is None else describe(self._kind(self._check(folder)))

    def load(self, dtypes: Dtypes) -> Any:
        """Return the pipeline on the CPU, with all its parts; RecipeError if a file is missing or damaged."""
        from safetensors import SafetensorError

        folder = self.folder()
        kind: Any = self._kind(folder)
        index = read_json(folder / INDEX)
        parts: dict[str, Any] = {name: None for name, classes in index.items() if classes == [None, None]}
        if "safety_checker" in index and not self.safety_checker:
            parts |= {"safety_checker": None, "requires_safety_checker": False}
        try:
            with quiet_loading():
                parts |= {name: self._part(name, place, index, dtypes) for name, place in self.components.items()}
                pipeline = self._pipeline(kind, folder, dtypes, parts)
                add_lora(pipeline, self.lora, self.model, self.offline)
        except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
            for place in (*self.components.values(), self.single_file or folder):
                check_whole(place)
            is_fetched = local_model(self.model) is None
            remedy = "fetch it anew with all its .safetensors files" if is_fetched else "put the whole model there"
            raise RecipeError(
                f"The model {self.model} in {folder} cannot be loaded ({words_of(error)}): {remedy}."
            ) from error
        return pipeline

    def _pipeline(self, kind: Any, folder: Path, dtypes: Dtypes, parts: dict[str, Any]) -> Any:
        from diffusers import PipelineQuantizationConfig
        from diffusers.loaders.single_file_utils import SingleFileComponentError

        common = {"dtype": dtypes, "local_files_only": True}
        if self.single_file is not None:
            file = _existing(self.single_file, "single_file", SAFETENSORS)
            try:
                return kind.from_single_file(str(file), config=str(folder), **common, **parts)
            except SingleFileComponentError as error:
                raise RecipeError(f"single_file: '{file}' lacks a part: name its place under components.") from error
        if self.quantization is not None:
            parts = parts | {"quantization_config": PipelineQuantizationConfig(**self.quantization)}
        return kind.from_pretrained(str(folder), use_safetensors=True, variant=self.variant, **common, **parts)

    def _part(self, name: str, place: str, index: Mapping[str, Any], dtypes: Dtypes) -> Any:
        """Return the pipeline's part `name`, loaded from `place` instead of the model's folder."""
        import diffusers
        import transformers

        library, kind_name = index.get(name) or ("", "")
        kind = getattr({"diffusers": diffusers, "transformers": transformers}.get(str(library)), str(kind_name), None)
        if kind is None:
            raise RecipeError(f"components: '{self.model}' has no part {name} that could be replaced.")
        dtype = dtypes.get(name, dtypes["default"])
        options: dict[str, Any] = {"dtype": dtype, "local_files_only": self.offline}
        if Path(place).suffix not in (SAFETENSORS, GGUF):
            return kind.from_pretrained(place, use_safetensors=True, **options)
        if Path(place).suffix == GGUF:
            options["quantization_config"] = diffusers.GGUFQuantizationConfig(compute_dtype=dtype)
        file = _existing(place, f"components.{name}", SAFETENSORS, GGUF)
        return kind.from_single_file(str(file), config=str(self.folder()), subfolder=name, **options)

    def _kind(self, folder: Path) -> type:
        if self.pipeline is None:
            return class_of(str(read_json(folder / INDEX).get("_class_name")), self.model)
        module, _, name = self.pipeline.partition(":")
        try:
            kind = getattr(importlib.import_module(module), name, None)
        except ImportError as error:
            raise RecipeError(f"pipeline: {module} cannot be imported ({error}): write module:Class.") from error
        if not isinstance(kind, type) or not callable(getattr(kind, "from_pretrained", None)):
            raise RecipeError(
                f"pipeline: '{self.pipeline}' is no class of pipelines (with from_pretrained): write module:Class."
            )
        return kind

    def _check(self, folder: Path) -> Path:
        if (folder / INDEX).is_file():
            return folder
        hint = "; a checkpoint in one file goes under single_file, beside a model with its configurations"
        where, hint = ("file", hint) if folder.is_file() else ("folder", "")
        raise RecipeError(f"model: the {where} '{self.model}' is no pipeline in diffusers' format (no {INDEX}){hint}.")

    def _fetch(self) -> str:
        from diffusers import DiffusionPipeline

        return str(
            DiffusionPipeline.download(self.model, revision=self.revision, variant=self.variant, use_safetensors=True)
        )


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Switch off the libraries' progress bars, which would garble the run's output, in a block; one thread at a time.

    The safety checker's warnings are switched off for good: an unsafe image is an outcome, which the run counts.
    """
    from diffusers.utils import logging as diffusers_bars
    from transformers.utils import logging as transformers_bars

    logging.getLogger("diffusers.models.modeling_utils").addFilter(_names_modules)
    logging.getLogger("diffusers.pipelines.stable_diffusion.safety_checker").setLevel(logging.ERROR)
    bars = [library for library in (diffusers_bars, transformers_bars) if library.is_progress_bar_enabled()]
    for library in bars:
        library.disable_progress_bar()
    try:
        yield
    finally:
        for library in bars:
            library.enable_progress_bar()


def _names_modules(record: logging.LogRecord) -> bool:
    """Return false, which drops the record, for SDXL's repeated warning about float32 modules that names no module."""
    return "should be kept in float32: []" not in record.getMessage()


def _existing(path: str, setting: str, *endings: str) -> Path:
    if Path(path).suffix not in endings:
        raise RecipeError(f"{setting} is '{path}': {' or '.join(endings)} is read, since other files may hold code.")
    if not Path(path).is_file():
        raise RecipeError(f"{setting}: there is no file '{path}'.")
    return Path(path)
