"""A replica: one engine on its share of the cards, fed in batches, and what the server must know of its model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapters.diffusion.device import Precision, choose_devices, dtype_of
from adapters.diffusion.engine import Engine
from adapters.diffusion.items import Item, Job, Model, Outcome
from adapters.diffusion.pixel_files import PixelFiles
from adapters.diffusion.pixel_model import PixelModel
from adapters.diffusion.text_settings import TextSettings
from adapters.diffusion.weights import local_model, read_json
from adapters.server.batching import Batcher
from adapters.server.checks import Description
from adapters.server.formats import Wanted
from adapters.server.metrics import EngineMetrics
from adapters.server.settings import Settings
from pe.plugins.registry import settings_of
from pe.plugins.validation import read_settings

if TYPE_CHECKING:
    import torch

log = logging.getLogger("ray.serve")

_BROKEN = 10  # batches in a row that broke the engine: it will not recover


class Replica:
    """Loads the model when it is made, so that a replica that is there can answer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        given = Settings.model_validate(settings)
        _keep_prompts_out_of_logs()
        family = family_of(given.model, given.precision, given.text)
        devices = choose_devices("auto")
        most = given.max_batch or (family.most_on_cpu if devices[0].type == "cpu" else family.most)
        self._engine = Engine(family.load, device="auto", most=most, most_on_cpu=most)
        self._engine.load()
        most *= len(devices)
        self._description = family.describe(given.model, most)
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
            RuntimeError: the engine broke down over everything of late.
        """
        if self._batcher.failures >= _BROKEN:
            raise RuntimeError("the engine breaks down over every batch")


class PixelFamily:
    """UNet2DModel in pixel space, with or without classes."""

    most, most_on_cpu = 256, 64
    """Images per forward pass beyond which it gets no faster."""

    def __init__(self, model: str, precision: Precision) -> None:
        self._files, self._precision = PixelFiles.find(model, None, offline=False), precision

    def load(self, device: torch.device) -> Model:
        """The network and DDIM on the model's own schedule."""
        from torch import nn

        dtype = dtype_of(self._precision)
        network = self._files.network().eval().requires_grad_(False)
        nn.Module.to(network, device, dtype)
        sampler, count = self._files.sampler("ddim"), self._files.class_count()
        return PixelModel(network, sampler, self._files.shape, device, dtype, count)

    def describe(self, name: str, batch: int) -> Description:
        """What clients must know: one size, classes, no words."""
        channels, height, width = self._files.shape
        count, names = self._files.class_count(), self._files.classes
        return Description(name, batch, class_count=count, classes=names, shape=(height, width, channels))


class TextFamily:
    """Text-to-image pipelines that can vary an image."""

    most, most_on_cpu = 64, 4
    """As above."""

    def __init__(self, model: str, precision: Precision, text: Mapping[str, Any]) -> None:
        given = read_settings(settings_of(TextSettings), {"model": model, **text}, "--set")
        self._loader = TextSettings(**{name: getattr(given, name) for name in given.model_fields_set}).loader(precision)
        self._negative = False

    def load(self, device: torch.device) -> Model:
        """What draws from text, and what varies."""
        found = self._loader.load(device)
        self._negative = found.heeds_negative_prompts
        return found

    def describe(self, name: str, batch: int) -> Description:
        """What clients must know, after `load`: words, many sizes, no classes."""
        return Description(name, batch, prompts=True, negative_prompts=self._negative)


def family_of(model: str, precision: Precision, text: Mapping[str, Any]) -> PixelFamily | TextFamily:
    """The family of `small`, a folder, a file, or a repository of the hub.

    Raises:
        RecipeError: it is of none, or is not there.
    """
    if model == "small":
        return PixelFamily(model, precision)
    place = local_model(model)
    index = _index_of(model) if place is None else place / "model_index.json"
    has_text = index is not None and index.is_file() and "text_encoder" in read_json(index)
    return TextFamily(model, precision, text) if has_text else PixelFamily(model, precision)


def _index_of(repository: str) -> Path | None:
    """A repository's model_index.json; None: it has none, or nothing can be fetched."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repository, "model_index.json"))
    except (OSError, ValueError, RuntimeError):
        return None


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


def _keep_prompts_out_of_logs() -> None:
    """The libraries quote prompts that are too long for a model in their warnings."""
    from diffusers.utils import logging as diffusers_log
    from transformers.utils import logging as transformers_log

    diffusers_log.set_verbosity(logging.CRITICAL)
    transformers_log.set_verbosity(logging.CRITICAL)
