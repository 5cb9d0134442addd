"""The kinds of models that are served: how each is found, checked, loaded and described."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from adapters.diffusion.engine import Engine
from adapters.diffusion.improved import ImprovedFiles, check_steps, is_improved
from adapters.diffusion.items import Model
from adapters.diffusion.pixel import PixelFiles, PixelSettings
from adapters.diffusion.text_files import INDEX, TextSettings
from adapters.diffusion.text_model import TextLoader, TextModel
from adapters.diffusion.weights import model_folder, model_here, read_config
from adapters.server.checks import ModelDescription, ServeSettings
from pe.errors import RecipeError
from pe.plugins.devices import choose_devices
from pe.plugins.settings import read_settings

if TYPE_CHECKING:
    import torch

Config = TypeVar("Config")

log = logging.getLogger("ray.serve")

SMALL = "small"
_SET = "--set"


@dataclass(frozen=True)
class ServedModel:
    """A model that is found and checked, but not loaded."""

    load: Callable[[torch.device], Model]
    describe: Callable[[Any], ModelDescription]  # takes the loaded model
    most: int = 256  # images per forward pass beyond which a GPU gets no faster
    most_on_cpu: int = 64


def load_served_model(settings: ServeSettings) -> tuple[Engine, ModelDescription]:
    """Load the model on its devices, and describe it.

    Raises:
        RecipeError: the model cannot obey the settings.
    """
    model = find_model(settings)
    device = "cpu" if settings.gpus_per_replica == 0 else "auto"  # Ray then hides no GPU
    devices = choose_devices(device)
    _limit_memory(devices, settings.gpus_per_replica)
    most = settings.max_batch or (model.most_on_cpu if devices[0].type == "cpu" else model.most)
    engine = Engine(model.load, device=device, most=most, most_on_cpu=most)
    loaded = engine.load()
    description = replace(model.describe(loaded[0]), batch=most * len(devices))
    log.info(
        "ready", extra={"devices": [str(device) for device in devices], "batch": description.batch}
    )
    return engine, description


def find_model(settings: ServeSettings) -> ServedModel:
    """Find the model, fetched if need be, and its kind by its index.

    Raises:
        RecipeError: a setting is wrong.
    """
    from huggingface_hub import snapshot_download

    model = settings.model
    if is_improved(model):
        return _improved(settings)
    if model == SMALL:
        return _pixel(settings)
    revision = settings.generator.get("revision")
    offline = bool(settings.generator.get("offline"))
    folder = model_folder(
        model,
        revision,
        offline,
        lambda: snapshot_download(model, revision=revision, allow_patterns=[INDEX]),
    )
    index = folder / INDEX
    if index.is_file() and "text_encoder" in read_config(index):
        return _text_to_image(settings)
    return _pixel(settings)


def check_model(settings: ServeSettings) -> None:
    """Check the settings of a model that is on this machine, before anything is started.

    Raises:
        RecipeError: there is no such model, or it cannot obey the settings.
    """
    model = settings.model
    revision = settings.generator.get("revision")
    if model == SMALL or is_improved(model) or model_here(model, revision) is not None:
        find_model(
            settings.model_copy(update={"generator": settings.generator | {"offline": True}})
        )


def _pixel(settings: ServeSettings) -> ServedModel:
    """Return a UNet2DModel in pixel space, with or without classes."""
    config = _settings(PixelSettings, settings)
    files = PixelFiles.find(config.model, config.revision, config.offline)
    is_guided = settings.guidance is not None
    count = files.class_count(with_guidance=is_guided)
    if is_guided and count is None:
        raise _no_guidance(settings, "has no classes")
    # The last class must mean "no class", so it has no name.
    if is_guided and len(files.classes) > (count or 0):
        raise _no_guidance(
            settings, 'has a name for every class, so that no class means "no class"'
        )
    channels, height, width = files.shape
    description = ModelDescription(
        settings.model,
        class_count=count,
        classes=files.classes,
        shape=(height, width, channels),
        guidance=count is not None and count < int(files.unet["num_class_embeds"]),
    )

    return ServedModel(
        lambda device: files.load(device, settings.precision, config, count),
        lambda _: description,
    )


def _improved(settings: ServeSettings) -> ServedModel:
    """Return a checkpoint of improved diffusion."""
    files = _settings(ImprovedFiles, settings)
    check_steps(settings.steps, files.spacing)
    if settings.guidance is not None:
        raise _no_guidance(settings, "was not trained for it")
    return ServedModel(
        lambda device: files.load(device, settings.precision),
        lambda model: ModelDescription(
            settings.model, class_count=model.classes, shape=(files.size, files.size, 3)
        ),
    )


def _text_to_image(settings: ServeSettings) -> ServedModel:
    """Return a text-to-image pipeline that can vary an image."""
    config = _settings(TextSettings, settings)
    loader = TextLoader(config, settings.precision)
    loader.check()

    def describe(model: TextModel) -> ModelDescription:
        negative = model.heeds_negative_prompts
        return ModelDescription(
            settings.model, prompts=True, negative_prompts=negative, guidance=True, vary=loader.way
        )

    return ServedModel(loader.load, describe, most=64, most_on_cpu=4)


def _settings(model: type[Config], settings: ServeSettings) -> Config:
    """Return the settings of `--set`.

    Raises:
        RecipeError: one is wrong.
    """
    if "model" in settings.generator:
        raise RecipeError(f"{_SET}: `model` is the argument MODEL. Remove it from {_SET}.")
    return read_settings(model, {"model": settings.model, **settings.generator}, _SET)


def _no_guidance(settings: ServeSettings, why: str) -> RecipeError:
    return RecipeError(
        f"--guidance is {settings.guidance:g}, but the model '{settings.model}' {why}. "
        "Leave it out."
    )


def _limit_memory(devices: Sequence[torch.device], share: float | None) -> None:
    """Limit this replica to its share of a GPU's memory.

    Without a limit it would fill all of it in search of a batch size.
    """
    if share is None or share >= 1 or devices[0].type != "cuda":
        return
    import torch

    for device in devices:
        torch.cuda.set_per_process_memory_fraction(share, device)
