"""The engine of diffusion models, and what the diffusion adapters share."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from adapters.device_engine import DeviceEngine, Group, Load
from adapters.diffusion.items import Item, Job, Model, Outcome, Pixels, describe_steps, of_iteration
from pe.data.arrays import ImageShape
from pe.data.images import Images
from pe.data.samples import Conditions, Samples
from pe.errors import APIError, ContractError
from pe.plugins.devices import Precision, describe_precision
from pe.plugins.protocols import Answer, Capabilities, Failed, Generator, PluginInfo, Usage
from pe.plugins.settings import Count, Devices
from pe.plugins.specs import plugin


class Engine(DeviceEngine):
    """The engine of diffusion models, built on `DeviceEngine`."""

    def __init__(self, load: Load, **options: Any) -> None:
        super().__init__(
            load,
            "`precision: bf16`, `offload` if the adapter has it, another device, or smaller images",
            **options,
        )

    def run(self, items: Sequence[Item]) -> list[Outcome]:
        """Return an image, a refusal or a failure for each item, in order.

        Items may differ in all their settings. For degree 0 the outcome is the item's own image. If
        the model cannot make an item (the degree leaves no step, the model lacks the class), only
        that item fails, and it is not tried again.

        Raises:
            RecipeError, APIError: see `make`.
            ContractError: an item has a degree but no image.
        """
        outcomes: dict[int, Outcome] = {}
        groups: dict[Hashable, deque[int]] = {}
        for place, item in enumerate(items):
            if item.job.degree == 0 and item.image is not None:
                outcomes[place] = item.image
            elif item.job.degree is not None and item.image is None:
                raise ContractError(
                    "An item with a degree has no image. Give its parent's image, or no degree."
                )
            else:
                # Some models do not treat an empty negative prompt as they treat none.
                kind = item.job, item.shape, bool(item.negative_prompt)
                groups.setdefault(kind, deque()).append(place)
        for places in groups.values():
            outcomes |= self.make(_group(items, places))
        return [outcomes[place] for place in range(len(items))]


def _group(items: Sequence[Item], places: deque[int]) -> Group:
    """Return a group of items of one job and shape."""
    job = items[places[0]].job
    shape = items[places[0]].shape
    sides = job.size or shape[:2]
    size = f" of {sides[0]}×{sides[1]} pixels" if sides else ""
    return Group(
        places,
        lambda model, batch: _outcomes(model, job, [items[place] for place in batch]),
        "image",
        size,
        kind=(job.degree is None, job.guidance is None or job.guidance > 1, job.size, shape),
    )


def _outcomes(model: Model, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
    """Return the outcomes of one batch, in which an item that cannot be made spoils no other."""
    try:
        return (model.sample if job.degree is None else model.vary)(job, items)
    except APIError as error:
        if len(items) == 1:
            return [Failed(str(error), retryable=False)]
    return [outcome for item in items for outcome in _outcomes(model, job, [item])]


@plugin
class LocalDiffusion(Generator):
    """A diffusion model on this machine.

    Args:
        steps: denoising steps from pure noise to an image, or a list with one number per iteration.
            New samples use the first number.
        device: auto (all GPUs, else mps, else cpu), cpu, mps, cuda, cuda:1, or a list of GPUs.
        precision: precision of the network's arithmetic: fp32, bf16 or fp16. auto: bf16 on a GPU
            that computes in it, else fp32. The plan and the run's log name the choice.
        batch_size: images per forward pass. None: as many as fit into memory, found by trying.
        chunk: most images in one request, and the most that a run loses when it is killed.
        compile: compile the network with torch.compile.
        offline: fetch nothing.
    """

    info = PluginInfo(
        hosts=(),
        machine_settings=("device", "batch_size", "compile", "offline"),
        schedules=("steps",),
    )

    steps: Count | list[Count] = 50
    device: Devices = "auto"
    precision: Precision = "auto"
    batch_size: Count | None = None
    chunk: Count = 1024
    compile: bool = False
    offline: bool = False

    @property
    def capabilities(self) -> Capabilities:
        """Up to `chunk` items of any kind per request, and two requests at once.

        The second request keeps a device busy when it has finished the first.
        """
        return Capabilities(self.chunk, 2)

    def describe_precision(self) -> str:
        """Describe the precision of the arithmetic on this machine.

        Raises:
            RecipeError: the machine lacks the device.
        """
        return describe_precision(self.device, self.precision)

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        return describe_steps(of_iteration("steps", self.steps, iteration), degree)


def answer_of_outcomes(
    outcomes: Sequence[Outcome], shape: ImageShape, conditions: Conditions
) -> Answer:
    """Return an answer from one outcome and one row of `conditions` per item.

    `shape` is the height, width and channels of a sample.
    """
    images = {i: outcome for i, outcome in enumerate(outcomes) if isinstance(outcome, np.ndarray)}
    missing = {
        i: outcome for i, outcome in enumerate(outcomes) if not isinstance(outcome, np.ndarray)
    }
    pixels = np.stack(list(images.values())) if images else np.empty((0, *shape), dtype=np.uint8)
    return Answer(
        Images(pixels),
        conditions.take(list(images)),
        missing,
        Usage(1, len(images)),
    )


def parents_of(samples: Samples) -> list[Pixels]:
    """Return the pixels of each parent.

    Raises:
        APIError: the samples are not images.
    """
    if not isinstance(samples, Images):
        raise APIError(f"A diffusion model varies images, not {samples.kind}.")
    return list(samples.pixels)
