"""A replica: one engine on its share of the GPUs, fed in batches; and the kinds of models that it runs."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from adapters.diffusion.engine import Engine
from adapters.diffusion.improved import ImprovedFiles, check_steps, is_improved
from adapters.diffusion.items import Item, Job, Model, Outcome
from adapters.diffusion.pixel import PixelFiles, Sampler
from adapters.diffusion.text_files import INDEX
from adapters.diffusion.text_model import TextLoader, TextSettings
from adapters.diffusion.weights import cached_model, local_model, read_json
from adapters.server.batching import Batcher, EngineMetrics
from adapters.server.checks import Description, Settings
from adapters.server.formats import BatchRequest
from pe.errors import RecipeError, nearest_name
from pe.plugins.devices import choose_devices
from pe.plugins.settings import read_settings
from pe.plugins.specs import settings_of

if TYPE_CHECKING:
    import torch

log = logging.getLogger("ray.serve")

SMALL = "small"
_SET = "--set"


class Family(ABC):
    """A model of one kind; making one raises RecipeError if the files here tell that it cannot obey the settings."""

    most, most_on_cpu = 256, 64  # images per forward pass beyond which it gets no faster

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @abstractmethod
    def load(self, device: torch.device) -> Model:
        """Return the model on a device."""

    @abstractmethod
    def describe(self, batch: int) -> Description:
        """Describe the model for clients, after `load`."""

    def _refuse_guidance(self, why: str) -> None:
        guidance, model = self._settings.guidance, self._settings.model
        raise RecipeError(f"--guidance is {guidance:g}, but the model '{model}' {why}: leave it out.")

    def _read(self, factory: Any) -> dict[str, Any]:
        """Return the server's settings as arguments for `factory`; RecipeError if one is wrong."""
        if "model" in self._settings.generator:
            raise RecipeError(f"{_SET}: model is the argument MODEL itself, so leave it out.")
        content = {"model": self._settings.model, **self._settings.generator}
        config = read_settings(settings_of(factory), content, _SET)
        return {name: getattr(config, name) for name in config.model_fields_set}


class PixelSettings(BaseModel):
    """Settings of `pixel_diffusion`, but for those that a request or another option names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sampler: Sampler = "ddim"
    eta: Annotated[float, Field(ge=0, le=1)] = 0.0
    revision: str | None = None
    offline: bool = False  # read for text-to-image models, too


class PixelFamily(Family):
    """UNet2DModel in pixel space, with or without classes."""

    def __init__(self, settings: Settings, place: Path | None = None) -> None:
        super().__init__(settings)
        self._config = read_settings(PixelSettings, settings.generator, _SET)
        self._files = PixelFiles.find(str(place or settings.model), self._config.revision, self._config.offline)
        self._count = self._files.class_count(with_guidance=settings.guidance is not None)
        if settings.guidance is not None and self._count is None:
            self._refuse_guidance("has no classes")
        if settings.guidance is not None and len(self._files.classes) > (self._count or 0):
            self._refuse_guidance("has a name for each of its classes, and none for no class")

    def load(self, device: torch.device) -> Model:
        """Return the network and a sampler on the model's own schedule."""
        sampler, eta = self._config.sampler, self._config.eta
        return self._files.load(device, self._settings.precision, sampler=sampler, eta=eta, classes=self._count)

    def describe(self, batch: int) -> Description:
        """Describe a model of one size, with classes, no prompts; guided if one class means "no class"."""
        channels, height, width = self._files.shape
        return Description(
            self._settings.model,
            batch,
            class_count=self._count,
            classes=self._files.classes,
            shape=(height, width, channels),
            guidance=self._count is not None and self._count < int(self._files.unet["num_class_embeds"]),
        )


class ImprovedFamily(Family):
    """Checkpoints of improved diffusion."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._files = ImprovedFiles(**self._read(ImprovedFiles))
        self._count: int | None = None
        check_steps(settings.steps, self._files.spacing)
        if settings.guidance is not None:
            self._refuse_guidance("was not trained for it")

    def load(self, device: torch.device) -> Model:
        """Return the network and DDIM on the cosine schedule."""
        model = self._files.load(device, self._settings.precision)
        self._count = model.classes
        return model

    def describe(self, batch: int) -> Description:
        """Describe a model of one size, with the network's classes, without prompts."""
        size = self._files.size
        return Description(self._settings.model, batch, class_count=self._count, shape=(size, size, 3))


class TextFamily(Family):
    """Text-to-image pipelines that can vary an image."""

    most, most_on_cpu = 64, 4

    def __init__(self, settings: Settings) -> None:
        own = {name: value for name, value in settings.generator.items() if name != "offline"}
        super().__init__(settings.model_copy(update={"generator": own}))
        config = TextSettings(**self._read(TextSettings))
        self._loader = TextLoader(config, settings.precision, _is_offline(settings.generator))
        self._loader.check()
        self._negative = False

    def load(self, device: torch.device) -> Model:
        """Return the pipelines that draw and vary."""
        model = self._loader.load(device)
        self._negative = model.heeds_negative_prompts
        return model

    def describe(self, batch: int) -> Description:
        """Describe a model of many sizes, with prompts, without classes."""
        return Description(
            self._settings.model,
            batch,
            prompts=True,
            negative_prompts=self._negative,
            guidance=True,
            vary=self._loader.way,
        )


def family_of(settings: Settings) -> Family:
    """Return the family of the model, told by its index, fetched if need be; RecipeError if a setting does not fit."""
    place = _local(settings.model)
    return _of_index(settings, _fetched_index(settings) if place is None else place / INDEX)


def check(settings: Settings) -> None:
    """Check the settings before anything is started or fetched; RecipeError if the model cannot obey them."""
    place = _local(settings.model) or cached_model(settings.model, settings.generator.get("revision"))
    if place is not None:
        _of_index(settings, place / INDEX, place)
        return
    names = {*settings_of(TextSettings).model_fields, *PixelSettings.model_fields}
    for name in settings.generator.keys() - names:
        raise RecipeError(f"{_SET}: unknown key '{name}'; {nearest_name(name, names)}")


def _local(model: str) -> Path | None:
    """Return the place of a model that is here, or that is known by its name; None: it is a repository."""
    return Path(model) if model == SMALL or is_improved(model) else local_model(model)


def _of_index(settings: Settings, index: Path | None, place: Path | None = None) -> Family:
    if is_improved(settings.model):
        return ImprovedFamily(settings)
    has_text = index is not None and index.is_file() and "text_encoder" in read_json(index)
    return TextFamily(settings) if has_text else PixelFamily(settings, place)


def _is_offline(generator: Mapping[str, Any]) -> bool:
    settings = {name: value for name, value in generator.items() if name == "offline"}
    return read_settings(PixelSettings, settings, _SET).offline


def _fetched_index(settings: Settings) -> Path | None:
    """Return the path of a repository's model_index.json, fetched, or else from the cache; None: there is none."""
    from huggingface_hub import hf_hub_download

    model, revision = settings.model, settings.generator.get("revision")
    folder = cached_model(model, revision)
    if not _is_offline(settings.generator):
        try:
            return Path(hf_hub_download(model, INDEX, revision=revision))
        except (OSError, ValueError, RuntimeError) as error:
            log.info("The index of %s is not fetched (%s): what the cache holds decides.", model, type(error).__name__)
    return None if folder is None else folder / INDEX


class Replica:
    """A loaded model and its engine: once the replica is constructed it can answer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        config = Settings.model_validate(settings)
        _keep_prompts_out_of_logs()
        family = family_of(config)
        device = "cpu" if config.gpus_per_replica == 0 else "auto"  # Ray then hides no GPU
        devices = choose_devices(device)
        _bound_memory(devices, config.gpus_per_replica)
        most = config.max_batch or (family.most_on_cpu if devices[0].type == "cpu" else family.most)
        self._engine = Engine(family.load, device=device, most=most, most_on_cpu=most)
        self._engine.load()
        most *= len(devices)
        self._description = family.describe(most)
        self._seconds = config.limits.seconds
        self._batcher = Batcher(self._engine.run, most, EngineMetrics().note)
        log.info("ready", extra={"devices": [str(device) for device in devices], "batch": most})

    async def describe(self) -> Description:
        """Describe the model."""
        return self._description

    async def make(self, request: BatchRequest, caller: str) -> list[Outcome]:
        """Return the outcomes of a request in which the ingress has filled in the steps."""
        assert request.steps is not None
        job = Job(request.steps, request.degree, request.guidance, request.size)
        items = [
            Item(
                job=job,
                seed=seed,
                image=None if request.images is None else request.images[i],
                prompt="" if request.prompts is None else request.prompts[i],
                negative_prompt="" if request.negative_prompts is None else request.negative_prompts[i],
                api_class=None if request.classes is None else int(request.classes[i]),
            )
            for i, seed in enumerate(request.seeds.tolist())
        ]
        return await self._batcher.make(items, caller)

    def check_health(self) -> None:
        """Raise RuntimeError if the engine is broken (see `Batcher.check_health`): Ray then replaces the replica."""
        self._batcher.check_health(self._seconds)


def _bound_memory(devices: Sequence[torch.device], share: float | None) -> None:
    """Limit this replica to its share of a GPU's memory, which it would fill in search of a batch size."""
    if share is None or share >= 1 or devices[0].type != "cuda":
        return
    import torch

    for device in devices:
        torch.cuda.set_per_process_memory_fraction(share, device)


def _keep_prompts_out_of_logs() -> None:
    """Silence the libraries' warnings, which quote prompts that are too long for a model."""
    from diffusers.utils import logging as diffusers_log
    from transformers.utils import logging as transformers_log

    diffusers_log.set_verbosity(logging.CRITICAL)
    transformers_log.set_verbosity(logging.CRITICAL)
