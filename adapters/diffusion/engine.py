"""An engine loads a model on each device, makes items in batches, and halves a batch that does not fit into memory.

This file also holds the engine of diffusion models, and the settings and answers that the diffusion adapters share.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args
from weakref import finalize

import numpy as np

from adapters.diffusion.items import Item, Job, Model, Outcome, Pixels, describe_steps, numbers_of, of_iteration
from pe.data.arrays import ImageShape
from pe.data.images import Images
from pe.data.samples import Conditions, Samples
from pe.errors import APIError, ContractError, RecipeError
from pe.plugins.devices import (
    Devices,
    Precision,
    check_arithmetic,
    choose_devices,
    describe_precision,
    free_memory,
    keep_memory,
    memory_refused,
    words_of,
)
from pe.plugins.protocols import Answer, Capabilities, Failed, Generator, PluginInfo, Refused, Usage
from pe.plugins.specs import plugin

if TYPE_CHECKING:
    import torch

M = TypeVar("M")

log = logging.getLogger(__name__)

_loading = threading.Lock()  # diffusers patches torch while it loads, for all threads


@dataclass(eq=False)
class Group(Generic[M]):
    """A queue of items of one kind, which all workers empty together."""

    places: deque[int]  # indices of the items that are left, in the order in which batches take them
    make: Callable[[M, Sequence[int]], Sequence[Any]]  # (model, places) → an outcome for each place
    noun: str  # the word for one item in messages
    single: str  # words for one item with its size, for the message that even one is too large, which advises `smaller`
    smaller: str = ""
    kind: Hashable = None  # groups of equal kind need the same memory for an item, so they share a batch size
    outcomes: dict[int, Any] = field(default_factory=dict)  # place → outcome
    share: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, size: int) -> list[int]:
        """Remove and return the next `size` places, or a worker's fair share when that is less."""
        with self.lock:
            return [self.places.popleft() for _ in range(min(size, self.share, len(self.places)))]

    def give_back(self, places: Sequence[int]) -> None:
        """Put places that were taken back to the front of the queue, in their order."""
        with self.lock:
            self.places.extendleft(reversed(places))

    def stop(self) -> None:
        """Empty the queue for all workers."""
        with self.lock:
            self.places.clear()


class DeviceEngine(Generic[M]):
    """A model on one or several devices, each with its own copy and thread.

    Args:
        load: device → the model on it.
        remedy: the advice that messages give when memory does not suffice.
        device: see `choose_devices`.
        batch_size: items per batch; None: found by trying, on each device.
        most: largest batch that is tried. It is large because a network starts the same number of kernels for any
            batch, which takes longer than a GPU computes on a few small images.
        most_on_cpu: largest batch that is tried on a CPU and on MPS, which do not refuse memory until it is too late.
        extra: the extra of this package that installs torch; the message that torch is missing names it and `purpose`.
    """

    def __init__(
        self,
        load: Callable[[torch.device], M],
        remedy: str,
        *,
        device: Devices = "auto",
        batch_size: int | None = None,
        most: int = 1024,
        most_on_cpu: int = 64,
        extra: str = "diffusion",
        purpose: str = "A local diffusion model",
    ) -> None:
        self._load, self._remedy, self._batch_size = load, remedy, batch_size
        self._most, self._most_on_cpu = most, most_on_cpu
        self._place = device, extra, purpose
        self._workers: list[_Worker[M]] = []
        self._opening = threading.Lock()

    def load(self) -> None:
        """Load the model on every device now, not at the first item; see `make` for errors."""
        workers = self._open()
        if any(worker.model is None for worker in workers):
            _all([worker.thread.submit(worker.load) for worker in workers])

    def make(self, group: Group[M]) -> dict[int, Any]:
        """Return an outcome for each place of a group; several threads may call it.

        Raises:
            RecipeError: a device or the weights are not there, or the model cannot be set up as asked.
            APIError: a device has not enough memory for the model or for one item.
        """
        self.load()  # on all devices before any samples: a library that loads sets the default dtype of all threads
        workers = self._open()[: len(group.places)]
        group.share = -(-len(group.places) // max(1, len(workers)))
        _all([worker.thread.submit(worker.drain, group) for worker in workers])
        return group.outcomes

    def _open(self) -> list[_Worker[M]]:
        with self._opening:
            if not self._workers:
                for device in choose_devices(*self._place):
                    if device.type == "cpu":
                        keep_memory()
                    most = self._most if device.type == "cuda" else self._most_on_cpu
                    worker = _Worker(device, self._load, self._remedy, self._batch_size, most)
                    finalize(self, worker.thread.shutdown, wait=False)
                    self._workers.append(worker)
            return self._workers


class _Worker(Generic[M]):
    """One device, its model and its thread."""

    def __init__(
        self, device: torch.device, load: Callable[[torch.device], M], remedy: str, batch_size: int | None, most: int
    ) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"pe-{device}")
        self._device, self._load, self._remedy = device, load, remedy
        self._first, self._most = (1, most) if batch_size is None else (batch_size, batch_size)
        self.model: M | None = None
        self._sizes: dict[Hashable, _BatchSize] = {}

    def drain(self, group: Group[M]) -> None:
        """Make batches until the group is empty; an error empties it for all workers."""
        try:
            batch = self._sizes.setdefault(group.kind, _BatchSize(self._first, self._most))
            while places := group.take(batch.size):
                try:
                    outcomes = self._make(group, places)
                except Exception as error:
                    if not memory_refused(error):
                        raise
                    group.give_back(places)
                    clear_frames(error.__traceback__)  # which hold on to the tensors
                    free_memory(self._device)
                    if not batch.shrink(len(places)):
                        raise self._no_memory(group.single, group.smaller, error) from error
                    log.info(
                        "%s has no memory for %d %ss at once: %d from now on.",
                        self._device,
                        len(places),
                        group.noun,
                        batch.size,
                    )
                else:
                    group.outcomes.update(zip(places, outcomes, strict=True))
                    batch.went_well(len(places))
        except BaseException:
            group.stop()
            raise

    def _make(self, group: Group[M], places: Sequence[int]) -> Sequence[Any]:
        import torch

        with torch.no_grad():
            return group.make(self.load(), places)

    def load(self) -> M:
        """Return the model, loaded at the first call; to be called in the worker's thread only."""
        if self.model is None:
            try:
                with _loading:
                    self.model = self._load(self._device)
            except Exception as error:
                if not memory_refused(error):
                    raise
                raise self._no_memory("the model", "", error) from error
        return self.model

    def _no_memory(self, single: str, smaller: str, error: Exception) -> APIError:
        return APIError(
            f"{self._device} refused {single}, most likely for want of memory ({words_of(error)}): take "
            f"{smaller}{self._remedy}."
        )


@dataclass
class _BatchSize:
    """The batch size for items of one kind on one device: doubled after each full batch, up to `most`."""

    size: int
    most: int

    def went_well(self, count: int) -> None:
        """Grow after a batch of `count` items, if it was full."""
        if count >= self.size:
            self.size = min(2 * self.size, self.most)

    def shrink(self, count: int) -> bool:
        """Limit all later batches to half of the `count` items that were too many; return false if `count` is 1."""
        self.size = self.most = max(1, count // 2)
        return count > 1


def _all(futures: Sequence[Future[Any]]) -> None:
    """Wait for all futures, then raise the first error."""
    wait(futures)
    for future in futures:
        future.result()


class Engine(DeviceEngine[Model]):
    """The engine of diffusion models; see `DeviceEngine`."""

    def __init__(self, load: Callable[[torch.device], Model], **options: Any) -> None:
        super().__init__(load, "precision: bf16, offloading where the adapter has it, or another device", **options)

    def run(self, items: Sequence[Item]) -> list[Outcome]:
        """Return an image, a refusal or a failure for each item, in order; items may differ in all their settings.

        Degree 0 is the item's image itself. An item that the model cannot make (a degree that leaves no step, a class
        that the model lacks) is a failure of that item alone, not to be tried again.

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
                raise ContractError("An item with a degree holds no image: give the parent's, or no degree.")
            else:  # some models take an empty negative prompt for another thing than none
                kind = item.job, None if item.image is None else item.image.shape, bool(item.negative_prompt)
                groups.setdefault(kind, deque()).append(place)
        for places in groups.values():
            outcomes |= self.make(_group(items, places))
        return [outcomes[place] for place in range(len(items))]


def _group(items: Sequence[Item], places: deque[int]) -> Group[Model]:
    """Return a group of items of one job and shape."""
    job, image = items[places[0]].job, items[places[0]].image
    shape = None if image is None else image.shape
    sides = job.size or (shape and shape[:2])
    size = "" if sides is None else f" of {sides[0]}×{sides[1]} pixels"
    return Group(
        places,
        lambda model, batch: _outcomes(model, job, [items[place] for place in batch]),
        "image",
        f"a single image{size}",
        "a smaller size, ",
        kind=(job.degree is None, job.guidance is None or job.guidance > 1, job.size, shape),
    )


def _outcomes(model: Model, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
    """Return the outcomes of one batch; an item that cannot be made spoils no other."""
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
        steps: denoising steps from pure noise to an image; or a list with one number for each iteration, of which new
            samples take the first.
        device: auto (all cards, else mps, else cpu), cpu, mps, cuda, cuda:1, or a list of cards.
        precision: of the network's arithmetic: fp32, bf16 or fp16; auto: bf16 on a GPU that computes in it, else
            fp32. The plan and the run's log name the choice.
        batch_size: images per forward pass; None: as many as memory takes, found by trying.
        chunk: most images in one request, and so the most that a run loses when it is killed.
        compile: compile the network with torch.compile.
        offline: fetch nothing.
    """

    info = PluginInfo(hosts=(), machine_settings=("device", "batch_size", "compile", "offline"), schedules=("steps",))

    steps: int | list[int] = 50
    device: Devices = "auto"
    precision: Precision = "auto"
    batch_size: int | None = None
    chunk: int = 1024
    compile: bool = False
    offline: bool = False

    def __post_init__(self) -> None:
        steps = (("steps", number) for number in numbers_of(self.steps))
        for name, value in (*steps, ("batch_size", self.batch_size), ("chunk", self.chunk)):
            if value is not None and value < 1:
                raise RecipeError(f"{name} is {value}: it must be at least 1.")
        check_arithmetic(self.device, self.precision)

    @property
    def capabilities(self) -> Capabilities:
        """Requests of up to `chunk` items of any kind, two at once, so that the next is ready when a device is free."""
        return Capabilities(self.chunk, 2)

    def describe_precision(self) -> str:
        """Describe the precision of the arithmetic on this machine; RecipeError if it lacks a device."""
        return describe_precision(self.device, self.precision)

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        return describe_steps(of_iteration("steps", self.steps, iteration), degree)


def check_choice(name: str, value: object, choices: Any) -> None:
    """Raise RecipeError if a setting's value is not among the `choices`, a type `Literal[…]`."""
    if value not in get_args(choices):
        raise RecipeError(f"{name} is '{value}': it must be one of {', '.join(get_args(choices))}.")


def answer_of(outcomes: Sequence[Outcome], shape: ImageShape, conditions: Conditions) -> Answer:
    """Return the answer made of an outcome and a row of `conditions` for each item; `shape` is a sample's h, w, c."""
    images = {i: outcome for i, outcome in enumerate(outcomes) if isinstance(outcome, np.ndarray)}
    missing = {i: outcome for i, outcome in enumerate(outcomes) if isinstance(outcome, Refused | Failed)}
    pixels = np.stack(list(images.values())) if images else np.empty((0, *shape), dtype=np.uint8)
    return Answer(Images(pixels), conditions.take(list(images)), missing, Usage(1, len(images)))


def parents_of(samples: Samples) -> list[Pixels]:
    """Return the pixels of each parent; APIError if the samples are no images."""
    if not isinstance(samples, Images):
        raise APIError(f"A diffusion model varies images, not {samples.kind}.")
    return list(samples.pixels)
