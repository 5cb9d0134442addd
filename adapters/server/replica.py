"""The kinds of models that a server runs: what is known of one before it is loaded, and the model on a device."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import yaml
from pydantic import BaseModel, ConfigDict, Field

from adapters.diffusion.device import choose_devices
from adapters.diffusion.engine import Engine
from adapters.diffusion.improved import ImprovedFiles, check_steps, is_improved
from adapters.diffusion.items import Item, Job, Model, Outcome
from adapters.diffusion.pixel import PixelFiles, Sampler
from adapters.diffusion.text_files import INDEX
from adapters.diffusion.text_model import TextLoader, TextSettings
from adapters.diffusion.weights import cached_model, local_model, read_json
from adapters.server.batching import Batcher, EngineMetrics
from adapters.server.checks import Description, Settings
from adapters.server.formats import Wanted
from pe.errors import RecipeError, nearest_name
from pe.plugins.registry import settings_of
from pe.plugins.settings import read_settings

if TYPE_CHECKING:
    import torch


log = logging.getLogger("ray.serve")

SMALL = "small"
_SET = "--set"


class Family(Protocol):
    """A model of one kind.

    Attributes:
        most: images per forward pass beyond which it gets no faster.
        most_on_cpu: the same on a CPU.
    """

    most: int
    most_on_cpu: int

    def check(self) -> None:
        """Raise RecipeError if the model, as far as it is here, cannot do what the server is told; reads no weights."""
        ...

    def load(self, device: torch.device) -> Model:
        """The model on a device."""
        ...

    def describe(self, batch: int) -> Description:
        """What clients must know, after `load`."""
        ...


class PixelSettings(BaseModel):
    """Settings of `pixel_diffusion`, but for those that a request or another option names.

    Attributes:
        sampler: ddim or ddpm.
        eta: of ddim.
        revision: of a repository.
        offline: fetch nothing; of text-to-image models, too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sampler: Sampler = "ddim"
    eta: Annotated[float, Field(ge=0, le=1)] = 0.0
    revision: str | None = None
    offline: bool = False


class PixelFamily:
    """UNet2DModel in pixel space, with or without classes."""

    most, most_on_cpu = 256, 64

    def __init__(self, settings: Settings, place: Path | None = None) -> None:
        self._settings = settings
        self._given = read_settings(PixelSettings, settings.generator, _SET)
        self._files = PixelFiles.find(str(place or settings.model), self._given.revision, self._given.offline)
        self._count = self._files.class_count(guided=settings.guidance is not None)

    def check(self) -> None:
        """Raise RecipeError if there is a guidance, and none of the model's classes stands for none."""
        if self._settings.guidance is None:
            return
        if self._count is None:
            _refuse_guidance(self._settings, "has no classes")
        if len(self._files.classes) > (self._count or 0):
            _refuse_guidance(self._settings, "has a name for each of its classes, and none for no class")

    def load(self, device: torch.device) -> Model:
        """The network and a sampler on the model's own schedule."""
        given = self._given
        return self._files.load(
            device, self._settings.precision, sampler=given.sampler, eta=given.eta, classes=self._count
        )

    def describe(self, batch: int) -> Description:
        """One size, classes, no words; guidance where one of the classes stands for none."""
        channels, height, width = self._files.shape
        return Description(
            self._settings.model,
            batch,
            class_count=self._count,
            classes=self._files.classes,
            shape=(height, width, channels),
            guidance=self._count is not None and self._count < int(self._files.unet["num_class_embeds"]),
        )


class ImprovedFamily:
    """Checkpoints of improved diffusion."""

    most, most_on_cpu = 256, 64

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._files = ImprovedFiles(**_read(ImprovedFiles, settings))
        self._count: int | None = None

    def check(self) -> None:
        """Raise RecipeError if there is a guidance, which such networks have not, or steps that they cannot take."""
        check_steps(self._settings.steps, self._files.spacing)
        if self._settings.guidance is not None:
            _refuse_guidance(self._settings, "was not trained for it")

    def load(self, device: torch.device) -> Model:
        """The network and DDIM on the cosine schedule."""
        found = self._files.load(device, self._settings.precision)
        self._count = found.classes
        return found

    def describe(self, batch: int) -> Description:
        """One size, classes where the network has them, no words."""
        size = self._files.size
        return Description(self._settings.model, batch, class_count=self._count, shape=(size, size, 3))


class TextFamily:
    """Text-to-image pipelines that can vary an image."""

    most, most_on_cpu = 64, 4

    def __init__(self, settings: Settings) -> None:
        self._settings, own = settings, dict(settings.generator)
        offline = _is_offline(own)
        own.pop("offline", None)
        text_settings = _read(TextSettings, settings.model_copy(update={"generator": own}))
        self._loader = TextLoader(TextSettings(**text_settings), settings.precision, offline)
        self._negative = False

    def check(self) -> None:
        """Raise RecipeError if the model cannot draw from text, or not vary an image as it is told to."""
        self._loader.check()

    def load(self, device: torch.device) -> Model:
        """What draws from text, and what varies."""
        found = self._loader.load(device)
        self._negative = found.heeds_negative_prompts
        return found

    def describe(self, batch: int) -> Description:
        """Words, many sizes, no classes."""
        return Description(
            self._settings.model,
            batch,
            prompts=True,
            negative_prompts=self._negative,
            guidance=True,
            vary=self._loader.way,
        )


def family_of(settings: Settings) -> Family:
    """The family of the model; of a repository of the hub, its index is fetched.

    Raises:
        RecipeError: it is of none, or is not there; or its family has no such setting.
    """
    model = settings.model
    if model == SMALL:
        return PixelFamily(settings)
    if is_improved(model):
        return ImprovedFamily(settings)
    place = local_model(model)
    index = _fetched_index(settings) if place is None else place / INDEX
    return TextFamily(settings) if index is not None and _has_text(index) else PixelFamily(settings)


def check(settings: Settings) -> None:
    """What can be told of the settings before anything is started; nothing is fetched.

    Raises:
        RecipeError: a setting is unknown, or the model, where it is here, cannot do what it says.
    """
    model = settings.model
    if model == SMALL or is_improved(model):
        family_of(settings).check()
        return
    place = local_model(model) or cached_model(model, settings.generator.get("revision"))
    if place is not None:
        (TextFamily(settings) if _has_text(place / INDEX) else PixelFamily(settings, place)).check()
        return
    known = {*settings_of(TextSettings).model_fields, *PixelSettings.model_fields}
    for name in settings.generator.keys() - known:
        raise RecipeError(f"{_SET}: unknown key '{name}'; {nearest_name(name, known)}")


def _read(factory: Any, settings: Settings) -> dict[str, Any]:
    """What a family's constructor takes, checked."""
    if "model" in settings.generator:
        raise RecipeError(f"{_SET}: model is the argument MODEL itself, so leave it out.")
    given = read_settings(settings_of(factory), {"model": settings.model, **settings.generator}, _SET)
    return {name: getattr(given, name) for name in given.model_fields_set}


def _has_text(index: Path) -> bool:
    return index.is_file() and "text_encoder" in read_json(index)


def _is_offline(given: Mapping[str, Any]) -> bool:
    named = {"offline": given["offline"]} if "offline" in given else {}
    return read_settings(PixelSettings, named, _SET).offline


def _fetched_index(settings: Settings) -> Path | None:
    """The model_index.json of a repository as the generator reads it; None: it has none, or none can be fetched."""
    from huggingface_hub import hf_hub_download

    model, revision = settings.model, settings.generator.get("revision")
    cached = cached_model(model, revision)
    if not _is_offline(settings.generator):
        try:
            return Path(hf_hub_download(model, INDEX, revision=revision))
        except (OSError, ValueError, RuntimeError) as error:
            log.info("The index of %s is not fetched (%s): what the cache holds decides.", model, type(error).__name__)
    return None if cached is None else cached / INDEX


def _refuse_guidance(settings: Settings, why: str) -> None:
    raise RecipeError(f"--guidance is {settings.guidance:g}, but the model '{settings.model}' {why}: leave it out.")


# A replica: one engine on its share of the GPUs, fed in batches, and what the server must know of its model.


class Replica:
    """Loads the model when it is made, so that a replica that is there can answer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        given = Settings.model_validate(settings)
        _keep_prompts_out_of_logs()
        family = family_of(given)
        family.check()
        device = "cpu" if given.gpus_per_replica == 0 else "auto"  # Ray then hides no GPU
        devices = choose_devices(device)
        _bound_memory(devices, given.gpus_per_replica)
        most = given.max_batch or (family.most_on_cpu if devices[0].type == "cpu" else family.most)
        self._engine = Engine(family.load, device=device, most=most, most_on_cpu=most)
        self._engine.load()
        most *= len(devices)
        self._description = family.describe(most)
        self._seconds = given.limits.seconds
        self._batcher = Batcher(self._engine.run, most, given.wait_ms / 1000, EngineMetrics().note)
        log.info("ready", extra={"devices": [str(device) for device in devices], "batch": most})

    async def describe(self) -> Description:
        """What is served."""
        return self._description

    async def make(self, wanted: Wanted, caller: str) -> list[Outcome]:
        """The images that an ingress wants for `caller`."""
        return await self._batcher.make(_items(wanted), caller)

    def check_health(self) -> None:
        """Asked by Ray, which replaces a replica that raises.

        Raises:
            RuntimeError: see `Batcher.check_health`.
        """
        self._batcher.check_health(self._seconds)


def _items(wanted: Wanted) -> Sequence[Item]:
    """The engine's items; the ingress has filled in the steps."""
    assert wanted.steps is not None
    job = Job(wanted.steps, wanted.degree, wanted.guidance, wanted.size)
    return [
        Item(
            job=job,
            seed=seed,
            image=None if wanted.images is None else wanted.images[i],
            prompt="" if wanted.prompts is None else wanted.prompts[i],
            negative_prompt="" if wanted.negative_prompts is None else wanted.negative_prompts[i],
            api_class=None if wanted.classes is None else int(wanted.classes[i]),
        )
        for i, seed in enumerate(wanted.seeds.tolist())
    ]


def _bound_memory(devices: Sequence[torch.device], share: float | None) -> None:
    """Leave the others their share of a GPU: else replicas would find their batch sizes by filling it in turn."""
    if share is None or share >= 1 or devices[0].type != "cuda":
        return
    import torch

    for device in devices:
        torch.cuda.set_per_process_memory_fraction(share, device)


def _keep_prompts_out_of_logs() -> None:
    """The libraries quote prompts that are too long for a model in their warnings."""
    from diffusers.utils import logging as diffusers_log
    from transformers.utils import logging as transformers_log

    diffusers_log.set_verbosity(logging.CRITICAL)
    transformers_log.set_verbosity(logging.CRITICAL)


# What `pe serve` is told of its model on the command line, with whole paths, since replicas run elsewhere.


_IP_ADAPTER = "pretrained_model_name_or_path_or_dict"


def located(model: str) -> str:
    """The model, a folder or a file by its whole path.

    Raises:
        RecipeError: it can only be a path, and nothing is there.
    """
    if model != SMALL and not is_improved(model):
        local_model(model)
    return model if model == SMALL else _whole(model)


def generator_settings(lora: Sequence[str], changes: Sequence[str]) -> dict[str, Any]:
    """The settings of the generator that `--lora PLACE[=WEIGHT]` and `--set NAME=VALUE` name.

    Raises:
        RecipeError: one is written otherwise, or named twice.
    """
    found: dict[str, Any] = {}
    for text in changes:
        name, equals, value = text.partition("=")
        if not equals:
            raise RecipeError(f"--set {text}: write NAME=VALUE, as vary=meaning.")
        if name in found:
            raise RecipeError(f"--set {name} is given twice: drop one.")
        try:
            found[name] = _located(name, yaml.safe_load(value))
        except (yaml.YAMLError, RecursionError) as error:
            raise RecipeError(f"--set {name}: '{value}' is no YAML; put texts with : or # in quotes.") from error
    if lora and "lora" in found:
        raise RecipeError("--lora and --set lora are given: drop one.")
    return found | ({"lora": _located("lora", dict(map(_weighted, lora)))} if lora else {})


def _weighted(text: str) -> tuple[str, float]:
    """A place and its weight."""
    place, equals, weight = text.rpartition("=")
    if not equals or Path(text).exists():
        return text, 1.0
    try:
        number = float(weight)
    except ValueError:
        number = math.nan
    if not place or not math.isfinite(number):
        raise RecipeError(f"--lora {text}: write PLACE or PLACE=WEIGHT, as style.safetensors=0.8.")
    return place, number


def _located(name: str, value: Any) -> Any:
    """A setting's value, in which places that are on this machine have their whole paths."""
    if name in ("variation_model", "controlnet", "single_file"):
        return _whole(value)
    if name == "components" and isinstance(value, dict):
        return {part: _whole(place) for part, place in value.items()}
    if name == "ip_adapter" and isinstance(value, dict):
        return {key: _whole(place) if key == _IP_ADAPTER else place for key, place in value.items()}
    if name == "lora" and isinstance(value, dict):
        return {_whole(place): weight for place, weight in value.items()}
    if name == "lora":
        return [_whole(place) for place in value] if isinstance(value, list) else _whole(value)
    return value


def _whole(place: Any) -> Any:
    """The whole path of a file or folder that is there; anything else as it is."""
    path = Path(place).expanduser() if isinstance(place, str) else None
    return str(path.resolve()) if path is not None and path.exists() else place
