"""The weights of a text-to-image model: found, looked at, and loaded as one pipeline."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapters.diffusion.description import Description, class_of, describe
from adapters.diffusion.weights import (
    SAFETENSORS,
    LoRA,
    brief,
    cached_model,
    local_model,
    model_folder,
    read_json,
    require,
)
from pe.errors import RecipeError

if TYPE_CHECKING:
    import torch

INDEX = "model_index.json"
GGUF = ".gguf"
Dtypes = dict[str, "torch.dtype"]


@dataclass(frozen=True)
class TextFiles:
    """What is to be loaded.

    Attributes:
        model: a folder in diffusers' format, or a repository of the hub.
        revision: of the repository.
        variant: of the weight files (`fp16`: NAME.fp16.safetensors); None: the plain ones.
        offline: fetch nothing.
        safety_checker: keep the model's safety checker, where it has one.
        pipeline: a class of one's own, module:Class, in place of the one that the model's index names.
        single_file: a checkpoint in one .safetensors file; the folder then holds the configurations alone.
        components: part → a folder, a repository, or a .safetensors or .gguf file that takes its place.
        lora: what is added to the weights.
        quantization: the arguments of diffusers' PipelineQuantizationConfig; None: weights as they are.
    """

    model: str
    revision: str | None = None
    variant: str | None = None
    offline: bool = False
    safety_checker: bool = True
    pipeline: str | None = None
    single_file: str | None = None
    components: Mapping[str, str] = field(default_factory=dict)
    lora: LoRA = field(default_factory=LoRA)
    quantization: Mapping[str, Any] | None = None

    def folder(self) -> Path:
        """The folder with the model, fetched if need be.

        Raises:
            RecipeError: it is not there and cannot be fetched, or holds no pipeline.
            MissingDependency: diffusers is not installed.
        """
        require("diffusers")
        return self._checked(model_folder(self.model, self.revision, self.offline, self._fetch))

    def description(self) -> Description | None:
        """What the model can do, by its index alone; None: it is not on this machine yet.

        Raises:
            RecipeError: diffusers has no such pipeline, or the class of one's own cannot be imported.
        """
        folder = local_model(self.model) or cached_model(self.model, self.revision)
        return None if folder is None else describe(self._kind(self._checked(folder)))

    def load(self, dtypes: Dtypes) -> Any:
        """The pipeline on the CPU, with all its parts.

        Args:
            dtypes: part → the tensors' type; `default` for the others.

        Raises:
            RecipeError: see `folder`; or a file is missing or damaged.
        """
        folder = self.folder()
        kind: Any = self._kind(folder)
        index = read_json(folder / INDEX)
        given: dict[str, Any] = {part: None for part, named in index.items() if named == [None, None]}
        if "safety_checker" in index and not self.safety_checker:
            given |= {"safety_checker": None, "requires_safety_checker": False}
        try:
            with quiet_loading():
                given |= {name: self._part(name, place, index, dtypes) for name, place in self.components.items()}
                found = self._pipeline(kind, folder, dtypes, given)
                self.lora.add_to(found, self.model, self.offline)
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            raise RecipeError(_not_loaded(self.model, folder, error)) from error
        return found

    def _pipeline(self, kind: Any, folder: Path, dtypes: Dtypes, given: dict[str, Any]) -> Any:
        from diffusers import PipelineQuantizationConfig
        from diffusers.loaders.single_file_utils import SingleFileComponentError

        if self.single_file is not None:
            file = _existing(self.single_file, "single_file", SAFETENSORS)
            try:
                return kind.from_single_file(
                    str(file), config=str(folder), dtype=dtypes, local_files_only=True, **given
                )
            except SingleFileComponentError as error:
                raise RecipeError(f"single_file: '{file}' lacks a part: name its place under components.") from error
        if self.quantization is not None:
            given = given | {"quantization_config": PipelineQuantizationConfig(**self.quantization)}
        return kind.from_pretrained(
            str(folder), dtype=dtypes, use_safetensors=True, variant=self.variant, local_files_only=True, **given
        )

    def _part(self, name: str, place: str, index: Mapping[str, Any], dtypes: Dtypes) -> Any:
        """A part from elsewhere."""
        import diffusers
        import transformers

        library, kind_name = index.get(name) or ("", "")
        kind = getattr({"diffusers": diffusers, "transformers": transformers}.get(str(library)), str(kind_name), None)
        if kind is None:
            raise RecipeError(f"components: '{self.model}' has no part {name} that could be replaced.")
        own = dtypes.get(name, dtypes["default"])
        more: dict[str, Any] = {"dtype": own, "local_files_only": self.offline}
        if Path(place).suffix not in (SAFETENSORS, GGUF):
            return kind.from_pretrained(place, use_safetensors=True, **more)
        if Path(place).suffix == GGUF:
            more["quantization_config"] = diffusers.GGUFQuantizationConfig(compute_dtype=own)
        file = _existing(place, f"components.{name}", SAFETENSORS, GGUF)
        return kind.from_single_file(str(file), config=str(self.folder()), subfolder=name, **more)

    def _kind(self, folder: Path) -> type:
        if self.pipeline is not None:
            return _imported(self.pipeline)
        return class_of(str(read_json(folder / INDEX).get("_class_name")), self.model)

    def _checked(self, folder: Path) -> Path:
        if (folder / INDEX).is_file():
            return folder
        where = "the file" if folder.is_file() else "the folder"
        hint = "; a checkpoint in one file goes under single_file, beside a model with its configurations"
        raise RecipeError(
            f"model: {where} '{self.model}' is no pipeline in diffusers' format (no {INDEX})"
            f"{hint if folder.is_file() else ''}."
        )

    def _fetch(self) -> str:
        from diffusers import DiffusionPipeline

        return str(
            DiffusionPipeline.download(self.model, revision=self.revision, variant=self.variant, use_safetensors=True)
        )


@contextmanager
def quiet_loading() -> Iterator[None]:
    """No progress bars over the files of a model, which would break the run's own; one thread at a time.

    What the safety checker finds is an outcome of its own, so its warnings stay away, too, and for good.
    """
    from diffusers.utils import logging as diffusers_bars
    from transformers.utils import logging as transformers_bars

    logging.getLogger("diffusers.models.modeling_utils").addFilter(_names_none)
    logging.getLogger("diffusers.pipelines.stable_diffusion.safety_checker").setLevel(logging.ERROR)
    bars = [library for library in (diffusers_bars, transformers_bars) if library.is_progress_bar_enabled()]
    for library in bars:
        library.disable_progress_bar()
    try:
        yield
    finally:
        for library in bars:
            library.enable_progress_bar()


def _names_none(record: logging.LogRecord) -> bool:
    """Drops the warning of modules to be kept in float32 where it names none; Stable Diffusion XL repeats it."""
    return "should be kept in float32: []" not in record.getMessage()


def _imported(path: str) -> type:
    """A class of the user's own.

    Raises:
        RecipeError: there is none.
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise RecipeError(f"pipeline: {module} cannot be imported ({error}): write module:Class.") from error
    if not isinstance(found, type) or not callable(getattr(found, "from_pretrained", None)):
        raise RecipeError(f"pipeline: '{path}' is no class of pipelines (with from_pretrained): write module:Class.")
    return found


def _existing(path: str, setting: str, *endings: str) -> Path:
    if Path(path).suffix not in endings:
        raise RecipeError(f"{setting} is '{path}': {' or '.join(endings)} is read, since other files may hold code.")
    if not Path(path).is_file():
        raise RecipeError(f"{setting}: there is no file '{path}'.")
    return Path(path)


def _not_loaded(model: str, folder: Path, error: Exception) -> str:
    remedy = (
        "fetch it anew with all its .safetensors files" if local_model(model) is None else "put the whole model there"
    )
    return f"The model {model} in {folder} cannot be loaded ({brief(error)}): {remedy}."
