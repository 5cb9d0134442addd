"""A replica: one engine on its share of the GPUs, fed in batches, and what the server must know of its model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adapters.diffusion.device import choose_devices
from adapters.diffusion.engine import Engine
from adapters.diffusion.items import Item, Job, Outcome
from adapters.server.batching import Batcher
from adapters.server.checks import Description
from adapters.server.families import family_of
from adapters.server.formats import Wanted
from adapters.server.metrics import EngineMetrics
from adapters.server.settings import Settings

if TYPE_CHECKING:
    import torch

log = logging.getLogger("ray.serve")


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
