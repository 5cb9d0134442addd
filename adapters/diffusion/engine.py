"""The one engine for all diffusion models: items in, images or refusals out.

It puts together what can share a forward pass, finds how many memory takes, and keeps each device busy with a
thread of its own (schedulers are not thread-safe).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from traceback import clear_frames
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np

from adapters.diffusion.device import (
    Devices,
    Precision,
    check_arithmetic,
    choose_devices,
    describe_precision,
    free_memory,
)
from adapters.diffusion.items import Item, Job, Model, Outcome, Pixels, describe_steps, numbers_of, of_iteration
from pe.data.decoding import convert_pixels
from pe.data.images import Images
from pe.data.samples import DRAWN, Conditions, Samples
from pe.errors import APIError, ContractError, RecipeError
from pe.plugins.devices import keep_memory, memory_refused, words_of
from pe.plugins.protocols import Answer, Capabilities, Failed, PluginInfo, Refused, Usage, VariationRequest

if TYPE_CHECKING:
    import torch


log = logging.getLogger(__name__)

Loader = Callable[["torch.device"], Model]
_Kind = tuple[Job, tuple[int, ...] | None, bool]
"""The job, the shape of the image to be varied, and whether there is a negative prompt: some models take an empty one
for another thing than none."""
_REMEDIES = "precision: bf16, offloading where the adapter has it, or another device"
_loading = threading.Lock()  # diffusers patches torch while it loads, for all threads


class Engine:
    """Diffusion models of one kind on one or several devices.

    At the first item the model is loaded on all devices. `run` may be called from several threads.

    Args:
        load: the model on a device.
        device: see `choose_devices`; each gets its own copy of the model and its own thread.
        batch_size: images per forward pass; None: found by trying, on each device.
        most: largest batch that is tried. A network has the same number of kernels for any batch, and starting them
            takes longer than a GPU takes over few small images.
        most_on_cpu: the same on a CPU and on MPS, which do not refuse memory until it is too late.
    """

    def __init__(
        self,
        load: Loader,
        *,
        device: Devices = "auto",
        batch_size: int | None = None,
        most: int = 1024,
        most_on_cpu: int = 64,
    ) -> None:
        self._load, self._device, self._batch_size = load, device, batch_size
        self._most, self._most_on_cpu = most, most_on_cpu
        self._workers: list[_Worker] = []
        self._opening = threading.Lock()

    def load(self) -> None:
        """Load the model on every device now, not at the first item.

        Raises:
            RecipeError: see `run`.
            APIError: see `run`.
        """
        workers = self._open()
        if any(worker.model is None for worker in workers):
            _all([worker.thread.submit(worker.load) for worker in workers])

    def run(self, items: Sequence[Item]) -> list[Outcome]:
        """An image, a refusal or a failure for each item, in order; items of one call may differ in everything.

        Degree 0 is the item's image itself. What the model cannot do with an item (a degree that leaves no step, a
        class that it has not) is a failure of that item alone, not to be tried again.

        Raises:
            RecipeError: the device or the weights are not there, or the model cannot be set up as asked.
            APIError: a device has not enough memory for the model or for one image.
        """
        outcomes: list[Outcome | None] = [None] * len(items)
        groups: dict[_Kind, deque[int]] = {}
        for place, item in enumerate(items):
            if item.job.degree is not None and item.image is None:
                raise ContractError("An item with a degree holds no image: give the parent's, or no degree.")
            if item.job.degree == 0:
                outcomes[place] = item.image
            else:
                groups.setdefault(_kind(item), deque()).append(place)
        if groups:
            self.load()  # all before any samples: a library that loads sets the default dtype of all threads
        for kind, places in groups.items():
            self._spread(_Group(kind, items, places, outcomes))
        assert all(outcome is not None for outcome in outcomes)
        return outcomes  # type: ignore[return-value]

    def _spread(self, group: _Group) -> None:
        """Let the workers empty a group, each taking a batch at a time."""
        workers = self._open()[: len(group.places)]
        group.share = -(-len(group.places) // len(workers))
        _all([worker.thread.submit(worker.drain, group) for worker in workers])

    def _open(self) -> list[_Worker]:
        with self._opening:
            if not self._workers:
                for device in choose_devices(self._device):
                    if device.type == "cpu":
                        keep_memory()
                    most = self._most if device.type == "cuda" else self._most_on_cpu
                    self._workers.append(_Worker(device, self._load, self._batch_size, most))
                finalize(self, _close, [worker.thread for worker in self._workers])
            return self._workers


class _Group:
    """Items of one kind that are still to be made, shared by the workers."""

    def __init__(self, kind: _Kind, items: Sequence[Item], places: deque[int], outcomes: list[Outcome | None]) -> None:
        self.kind, self.places, self.share = kind, places, len(places)
        self._items, self._outcomes = items, outcomes
        self._lock = threading.Lock()

    def take(self, size: int) -> list[int]:
        """The next `size` places, or a worker's fair share when that is less."""
        with self._lock:
            return [self.places.popleft() for _ in range(min(size, self.share, len(self.places)))]

    def give_back(self, places: Sequence[int]) -> None:
        with self._lock:
            self.places.extendleft(reversed(places))

    def stop(self) -> None:
        with self._lock:
            self.places.clear()

    def items(self, places: Sequence[int]) -> list[Item]:
        return [self._items[place] for place in places]

    def enter(self, places: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        for place, outcome in zip(places, outcomes, strict=True):
            self._outcomes[place] = outcome


@dataclass
class BatchSize:
    """The batch size for one kind of job on one device.

    Attributes:
        size: images per batch now, ≥ 1.
        most: never more than this.
        growing: whether a batch that went well is followed by one twice as large.
    """

    size: int
    most: int
    growing: bool

    @classmethod
    def of(cls, given: int | None, most: int) -> BatchSize:
        """As given; without a number, found by growing from 1 to `most`."""
        return cls(1, most, growing=True) if given is None else cls(given, given, growing=False)

    def went_well(self, count: int) -> None:
        """After a batch of `count` images: the next may be larger, if this one was full."""
        if self.growing and count >= self.size:
            self.size = min(2 * self.size, self.most)
            self.growing = self.size < self.most

    def refused(self, count: int) -> bool:
        """After memory refused a batch of `count` images: half of it from now on.

        Growing by doubling, half is the size that went well before.

        Returns:
            Whether there is something smaller to try.
        """
        self.growing = False
        self.size = max(1, count // 2)
        return count > 1


class _Worker:
    """One device, its model and its thread."""

    def __init__(self, device: torch.device, load: Loader, batch_size: int | None, most: int) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"pe-{device}")
        self._device, self._load, self._batch_size, self._most = device, load, batch_size, most
        self.model: Model | None = None
        self._sizes: dict[tuple[object, ...], BatchSize] = {}

    def drain(self, group: _Group) -> None:
        """Make batches until the group is empty; an error empties it for all."""
        try:
            batch = self._sizes.setdefault(_footprint(group.kind), BatchSize.of(self._batch_size, self._most))
            while places := group.take(batch.size):
                try:
                    outcomes = self._made(group.kind[0], group.items(places))
                except Exception as error:
                    if not memory_refused(error):
                        raise
                    group.give_back(places)
                    clear_frames(error.__traceback__)  # which hold on to the tensors
                    free_memory(self._device)
                    if not batch.refused(len(places)):
                        raise APIError(_too_small(self._device, group.kind, error)) from error
                    log.info(
                        "%s has no memory for %d images at once: %d from now on.", self._device, len(places), batch.size
                    )
                else:
                    group.enter(places, outcomes)
                    batch.went_well(len(places))
        except BaseException:
            group.stop()
            raise

    def _made(self, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
        """The outcomes of one batch."""
        import torch

        model = self.load()
        try:
            with torch.no_grad():
                return (model.sample if job.degree is None else model.vary)(job, items)
        except APIError as error:
            if len(items) == 1:
                return [Failed(str(error), retryable=False)]
        # One that cannot be made spoils no other.
        return [outcome for item in items for outcome in self._made(job, [item])]

    def load(self) -> Model:
        """The model, loaded at the first call; in the worker's own thread."""
        if self.model is None:
            try:
                with _loading:
                    self.model = self._load(self._device)
            except Exception as error:
                if not memory_refused(error):
                    raise
                raise APIError(
                    f"{self._device} refused the model, most likely for want of memory ({words_of(error)}): take "
                    f"{_REMEDIES}."
                ) from error
        return self.model


def _kind(item: Item) -> _Kind:
    """Items of one kind can share a forward pass."""
    return item.job, None if item.image is None else item.image.shape, bool(item.negative_prompt)


def _footprint(kind: _Kind) -> tuple[object, ...]:
    """What decides how much memory an image takes."""
    job, shape, _ = kind
    return job.degree is None, job.guidance is None or job.guidance > 1, job.size, shape


def _too_small(device: torch.device, kind: _Kind, error: Exception) -> str:
    job, shape, _ = kind
    sides = job.size or (shape and shape[:2])
    size = "" if sides is None else f" of {sides[0]}×{sides[1]} pixels"
    return (
        f"{device} refused a single image{size}, most likely for want of memory ({words_of(error)}): take a "
        f"smaller size, {_REMEDIES}."
    )


def _all(futures: Sequence[Future[Any]]) -> None:
    """Wait for all, and raise the first error."""
    wait(futures)
    for future in futures:
        future.result()


def _close(threads: Sequence[ThreadPoolExecutor]) -> None:
    for thread in threads:
        thread.shutdown(wait=False)


# What the adapters on the engine share: settings, and the way from the engine's outcomes to an answer.


@dataclass(kw_only=True, eq=False, repr=False)
class LocalDiffusion:
    """A diffusion model on this machine.

    Args:
        steps: of sampling an image from pure noise; or a list with one number for each iteration, of which new samples
            take the first.
        device: auto (all cards, else mps, else cpu), cpu, mps, cuda, cuda:1, or a list of cards.
        precision: of all arithmetic of the network: fp32, bf16 or fp16; auto: bf16 on a GPU that computes in it, else
            fp32. The plan and the run's log name the choice.
        batch_size: images per forward pass; None: as many as memory takes, found by trying.
        chunk: most images of one request; what a run loses at most when it is killed.
        compile: the network by torch.compile.
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
        """Any items in a request; a second request waits while one is made, so that no device does."""
        return Capabilities(self.chunk, 2, "nothing", "exact")

    def describe_precision(self) -> str:
        """The precision of the arithmetic on this machine.

        Raises:
            RecipeError: this machine lacks a device.
        """
        return describe_precision(self.device, self.precision)

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        return describe_steps(of_iteration("steps", self.steps, iteration), degree)


def answer_of(outcomes: Sequence[Outcome], shape: tuple[int, int, int], conditions: Conditions) -> Answer:
    """The answer that these outcomes are.

    Args:
        outcomes: one per item of the request.
        shape: h, w, c of a sample.
        conditions: one row per item of the request; those of items without an image are left out.
    """
    images = {i: outcome for i, outcome in enumerate(outcomes) if isinstance(outcome, np.ndarray)}
    missing = {i: outcome for i, outcome in enumerate(outcomes) if isinstance(outcome, Refused | Failed)}
    pixels = np.stack(list(images.values())) if images else np.empty((0, *shape), dtype=np.uint8)
    return Answer(Images(pixels), conditions.take(list(images)), missing, Usage(1, len(images)))


def parents_of(samples: Samples) -> list[Pixels]:
    """The pixels of each parent.

    Raises:
        APIError: they are no images.
    """
    if not isinstance(samples, Images):
        raise APIError(f"A diffusion model varies images, not {samples.kind}.")
    return list(samples.pixels)


def reduced(answer: Answer, size: int) -> Answer:
    """The answer with its images resized to size×size; as they were drawn they are kept beside (condition `drawn`)."""
    drawn = answer.samples.array
    small = np.empty((len(drawn), size, size, drawn.shape[3]), dtype=np.uint8)
    for place, pixels in enumerate(drawn):
        small[place] = convert_pixels(pixels, size=(size, size), resize="stretch", channels=3, name="The image")
    return replace(answer, samples=Images(small), conditions=Conditions({**answer.conditions, DRAWN: drawn}))


def as_drawn(request: VariationRequest) -> Samples:
    """The parents as they were drawn, where that was kept."""
    drawn = request.conditions.get(DRAWN)
    return request.samples if drawn is None else Images(drawn)
