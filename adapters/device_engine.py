"""An engine that loads a model on each device and makes items in batches.

A batch that does not fit into memory is halved.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from traceback import clear_frames
from typing import TYPE_CHECKING, Any
from weakref import finalize

from pe.errors import APIError
from pe.plugins.devices import choose_devices, free_memory, memory_refused, words_of_error
from pe.plugins.settings import Devices

if TYPE_CHECKING:
    import torch

Load = Callable[["torch.device"], Any]
"""Returns the model on a device."""

log = logging.getLogger(__name__)

_loading = threading.Lock()  # diffusers patches torch while it loads, for all threads


@dataclass(eq=False)
class Group:
    """A queue of items of one kind, which all workers empty together."""

    # indices of the items that are left, in the order in which batches take them
    places: deque[int]
    # (model, places) → an outcome for each place
    make: Callable[[Any, Sequence[int]], Sequence[Any]]
    noun: str  # the word for one item in messages
    size: str = ""  # words for the size of an item, for the message that even one is too large
    # groups of equal kind need the same memory for an item, so they share a batch size
    kind: Hashable = None
    outcomes: dict[int, Any] = field(default_factory=dict)  # place → outcome
    share: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, size: int) -> list[int]:
        """Remove and return the next `size` places, or a worker's fair share if that is less."""
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


class DeviceEngine:
    """A model on one or several devices, each with its own copy and thread.

    Args:
        load: device → the model on it.
        remedy: advice in messages when there is too little memory.
        device: see `choose_devices`.
        batch_size: items per batch. None: found by trying, on each device.
        most: largest batch that is tried. It is large because a network starts the same number of
            kernels for any batch, which takes longer than a GPU computes on a few small images.
        most_on_cpu: largest batch that is tried on a CPU and on MPS, which do not refuse memory
            until it is too late.
        extra: the extra of this package that installs torch, for the message that torch is missing.
        purpose: the subject of that message.
    """

    def __init__(
        self,
        load: Load,
        remedy: str,
        *,
        device: Devices = "auto",
        batch_size: int | None = None,
        most: int = 1024,
        most_on_cpu: int = 64,
        extra: str = "diffusion",
        purpose: str = "A local diffusion model",
    ) -> None:
        self._load = load
        self._remedy = remedy
        self._batch_size = batch_size
        self._most = most
        self._most_on_cpu = most_on_cpu
        self._place = device, extra, purpose
        self._workers: list[_Worker] = []
        self._opening = threading.Lock()

    def load(self) -> list[Any]:
        """Return the model on every device, loaded now instead of at the first item.

        `make` lists the errors.
        """
        workers = self._open()
        if any(worker.model is None for worker in workers):
            _all([worker.thread.submit(worker.load) for worker in workers])
        return [worker.model for worker in workers]

    def make(self, group: Group) -> dict[int, Any]:
        """Return an outcome for each place of a group.

        Several threads may call it.

        Raises:
            RecipeError: a device or the weights are not there, or the model cannot be set up as
                asked.
            APIError: a device has not enough memory for the model or for one item.
        """
        # on all devices before any samples: a library that loads sets the default dtype of all
        # threads
        self.load()
        workers = self._open()[: len(group.places)]
        group.share = -(-len(group.places) // max(1, len(workers)))
        _all([worker.thread.submit(worker.drain, group) for worker in workers])
        return group.outcomes

    def _open(self) -> list[_Worker]:
        with self._opening:
            if not self._workers:
                for device in choose_devices(*self._place):
                    most = self._most if device.type == "cuda" else self._most_on_cpu
                    worker = _Worker(
                        device,
                        self._load,
                        self._remedy,
                        self._batch_size,
                        most,
                    )
                    finalize(self, worker.thread.shutdown, wait=False)
                    self._workers.append(worker)
            return self._workers


class _Worker:
    """One device, its model and its thread."""

    def __init__(
        self, device: torch.device, load: Load, remedy: str, batch_size: int | None, most: int
    ) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"pe-{device}")
        self.model: Any = None
        self._device = device
        self._load = load
        self._remedy = remedy
        self._first = (1, most) if batch_size is None else (batch_size, batch_size)
        # kind → size of the next batch, and the largest to try
        self._sizes: dict[Hashable, tuple[int, int]] = {}

    def drain(self, group: Group) -> None:
        """Make batches until the group is empty.

        An error empties it for all workers. The size of a batch doubles after each full one, and is
        halved for good when memory does not suffice.
        """
        import torch

        try:
            size, most = self._sizes.get(group.kind, self._first)
            while places := group.take(size):
                count = len(places)
                try:
                    with torch.no_grad():
                        outcomes = group.make(self.load(), places)
                except Exception as error:
                    if not memory_refused(error):
                        raise
                    group.give_back(places)
                    clear_frames(error.__traceback__)  # which hold on to the tensors
                    free_memory(self._device)
                    size = most = max(1, count // 2)
                    self._sizes[group.kind] = size, most
                    if count == 1:
                        raise self._no_memory(
                            f"a single {group.noun}{group.size}", error
                        ) from error
                    words = "%s has no memory for %d %ss at once: %d from now on."
                    log.info(words, self._device, count, group.noun, size)
                else:
                    group.outcomes.update(zip(places, outcomes, strict=True))
                    if count >= size:
                        size = min(2 * size, most)
                    self._sizes[group.kind] = size, most
        except BaseException:
            group.stop()
            raise

    def load(self) -> Any:
        """Return the model, which the first call loads.

        Only the worker's own thread may call it.
        """
        if self.model is None:
            try:
                with _loading:
                    self.model = self._load(self._device)
            except Exception as error:
                if not memory_refused(error):
                    raise
                raise self._no_memory("the model", error) from error
        return self.model

    def _no_memory(self, what: str, error: Exception) -> APIError:
        return APIError(
            f"{self._device} refused {what}, most likely for lack of memory "
            f"({words_of_error(error)}). Use {self._remedy}."
        )


def _all(futures: Sequence[Future[Any]]) -> None:
    """Wait for all futures, then raise the first error."""
    wait(futures)
    for future in futures:
        future.result()
