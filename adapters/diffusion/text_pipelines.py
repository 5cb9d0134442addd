"""A text-to-image model's pipelines, txt2img and img2img over the same weights, and how they are set up."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adapters.diffusion.device import Precision, dtype_of
from adapters.diffusion.weights import local_model, model_folder, read_json, require
from pe.errors import RecipeError

if TYPE_CHECKING:
    import torch

Sampler = Literal["own", "ddim", "euler", "euler_ancestral", "dpm_solver", "lcm"]
Offload = Literal["none", "model", "sequential"]

_SCHEDULERS: dict[Sampler, str] = {
    "ddim": "DDIMScheduler",
    "euler": "EulerDiscreteScheduler",
    "euler_ancestral": "EulerAncestralDiscreteScheduler",
    "dpm_solver": "DPMSolverMultistepScheduler",
    "lcm": "LCMScheduler",
}


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


@dataclass(frozen=True)
class TextFiles:
    """What is to be loaded.

    Attributes:
        model: a folder in diffusers' format, or a repository of the hub.
        revision: of the repository.
        variant: of the weight files (`fp16`: NAME.fp16.safetensors); None: the plain ones.
        offline: fetch nothing.
        safety_checker: keep the model's safety checker, where it has one.
    """

    model: str
    revision: str | None
    variant: str | None
    offline: bool
    safety_checker: bool

    def folder(self) -> Path:
        """The folder with the model, fetched if need be.

        Raises:
            RecipeError: it is not there and cannot be fetched, or holds no pipeline.
            MissingDependency: diffusers is not installed.
        """
        require("diffusers")
        folder = model_folder(self.model, self.revision, self.offline, self._fetch)
        if not (folder / "model_index.json").is_file():
            where = "the file" if folder.is_file() else "the folder"
            raise RecipeError(
                f"model: {where} '{self.model}' is no pipeline in diffusers' format (no model_index.json)."
            )
        return folder

    def pipelines(self, precision: Precision) -> tuple[Any, Any]:
        """txt2img and img2img on the CPU, sharing all weights.

        Raises:
            RecipeError: see `folder`; or a file is missing or damaged, or the model lacks one of the two.
        """
        from diffusers import AutoPipelineForImage2Image, AutoPipelineForText2Image

        folder = self.folder()
        index = read_json(folder / "model_index.json")
        name = str(index.get("_class_name"))
        without: dict[str, Any] = {part: None for part, kind in index.items() if kind == [None, None]}
        if "safety_checker" in index and not self.safety_checker:
            without |= {"safety_checker": None, "requires_safety_checker": False}
        _check_class(AutoPipelineForText2Image, name, self.model, "makes no images from text")
        _check_class(AutoPipelineForImage2Image, name, self.model, _NO_IMG2IMG)
        try:
            with quiet_loading():
                text = AutoPipelineForText2Image.from_pretrained(
                    str(folder),
                    dtype=dtype_of(precision),
                    use_safetensors=True,
                    variant=self.variant,
                    local_files_only=True,
                    **without,
                )
        except (OSError, ValueError, RuntimeError) as error:
            raise RecipeError(_not_loaded(self.model, folder, error)) from error
        image = AutoPipelineForImage2Image.from_pipe(text)
        if "strength" not in inspect.signature(image.__call__).parameters:
            raise RecipeError(f"model: '{self.model}' ({name}) {_NO_IMG2IMG}.")
        for pipeline in (text, image):
            pipeline.set_progress_bar_config(disable=True)
        return text, image

    def _fetch(self) -> str:
        from diffusers import DiffusionPipeline

        return str(
            DiffusionPipeline.download(self.model, revision=self.revision, variant=self.variant, use_safetensors=True)
        )


_NO_IMG2IMG = (
    "has no img2img with a strength in diffusers, so it cannot answer VARIATION_API: take Stable Diffusion 1.x, 2.x, "
    "XL, 3, Flux, or a Turbo or LCM model of these"
)


def _check_class(auto: Any, name: str, model: str, lack: str) -> None:
    """Raise RecipeError if the Auto class does not know the pipeline."""
    from diffusers.pipelines import auto_pipeline

    mapping = auto_pipeline.AUTO_IMAGE2IMAGE_PIPELINES_MAPPING
    if auto.__name__ == "AutoPipelineForText2Image":
        mapping = auto_pipeline.AUTO_TEXT2IMAGE_PIPELINES_MAPPING
    try:
        auto_pipeline._get_task_class(mapping, name)
    except ValueError as error:
        raise RecipeError(f"model: '{model}' ({name}) {lack}.") from error


def _not_loaded(model: str, folder: Path, error: Exception) -> str:
    why = " ".join(str(error).split())[:200].rstrip(".")
    remedy = (
        "fetch it anew with all its .safetensors files" if local_model(model) is None else "put the whole model there"
    )
    return f"The model {model} in {folder} cannot be loaded ({why}): {remedy}."


def set_sampler(pipelines: tuple[Any, Any], sampler: Sampler) -> None:
    """Give both pipelines this scheduler, on the model's own noise schedule.

    Raises:
        RecipeError: the model is a flow, which none of these schedulers steps through.
    """
    import diffusers

    own = pipelines[0].scheduler
    if sampler == "own":
        return
    if is_flow(own):
        raise RecipeError(f"sampler is '{sampler}', but the model has a flow ({type(own).__name__}): leave it as own.")
    scheduler = getattr(diffusers, _SCHEDULERS[sampler]).from_config(own.config)
    for pipeline in pipelines:
        pipeline.register_modules(scheduler=scheduler)


@dataclass(frozen=True)
class Memory:
    """How memory is saved at the cost of time.

    Attributes:
        attention_slicing: attention head by head.
        vae_slicing: decode latents one at a time.
        offload: keep in the accelerator's memory only the part that is at work: none, model, or sequential (layers).
    """

    attention_slicing: bool = False
    vae_slicing: bool = False
    offload: Offload = "none"

    def place(self, pipelines: tuple[Any, Any], device: torch.device) -> None:
        """Put the weights where they belong.

        Raises:
            RecipeError: offloading from a CPU.
        """
        if self.attention_slicing:
            for pipeline in pipelines:
                pipeline.enable_attention_slicing()
        if self.vae_slicing:
            pipelines[0].vae.enable_slicing()
        if self.offload == "none":
            for pipeline in pipelines:
                pipeline.to(device)
        elif device.type == "cpu":
            raise RecipeError(f"offload is '{self.offload}', but the model runs on the CPU already: leave it as none.")

    def engage(self, pipeline: Any, device: torch.device) -> None:
        """Hand the shared weights over to this of the two pipelines."""
        if self.offload == "model":
            pipeline.enable_model_cpu_offload(device=device)
        elif self.offload == "sequential":
            pipeline.enable_sequential_cpu_offload(device=device)


def parameters_of(pipeline: Any) -> Mapping[str, inspect.Parameter]:
    """What the pipeline may be called with."""
    return inspect.signature(pipeline.__call__).parameters


def is_flow(scheduler: Any) -> bool:
    """Whether the scheduler follows a flow instead of a diffusion."""
    return "FlowMatch" in type(scheduler).__name__
