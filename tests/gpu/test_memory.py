"""What happens when a GPU has no memory left: smaller batches, the same images, and no error mistaken for another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_pre_hook

from adapters.diffusion.device import free_memory
from pe.plugins.devices import memory_refused
from tests.gpu.conftest import Tell
from tests.gpu.models import GPU, grey_levels, in_batches, new_images, stable_diffusion_xl

pytestmark = GPU
BATCH = 4
NEAR = 2
"""Grey levels by which an image may differ after the recovery: its kernels may be others, its batch is the same."""
ROOM = (0, 64, 512)
"""MiB that torch's own cache keeps for the operations' results, while the GPU has none left for the libraries."""


@pytest.mark.parametrize("refused", ["injected in decoding", "bounded memory"])
def test_a_refused_batch_is_halved_and_gives_the_same_images(refused: str, device: str, tiny: bool, tell: Tell) -> None:
    if tiny and refused == "bounded memory":
        pytest.skip("a processor's memory is not bounded")
    with stable_diffusion_xl(tiny, device) as build:
        api = build(precision="fp16", batch_size=BATCH)
        new_images(api, 1)
        peak(device)
        before, half = in_batches(api, BATCH, BATCH // 2), peak(device)
        _, whole = new_images(api, BATCH), peak(device)
        tell("memory of 2 and of 4 images, GiB", f"{half / 2**30:.2f}, {whole / 2**30:.2f}")
        api = build(precision="fp16", batch_size=BATCH)
        free_memory(torch.device(device))  # of the model before
        new_images(api, 1)  # loads this one
        refusing = refused_in_decoding() if refused != "bounded memory" else bounded(device, (half + whole) // 2)
        batches: list[int] = []
        with before_each("UNet2DConditionModel", lambda given: batches.append(len(given[0]))), refusing:
            during = new_images(api, BATCH)
        after = new_images(api, BATCH)
    tell("batches", list(dict.fromkeys(batches)))
    assert min(batches) < BATCH
    for when, images in {"during": during, "after": after}.items():
        apart = grey_levels(before, images)
        tell(f"grey levels apart, {when}", apart)
        assert apart <= NEAR


def test_what_libraries_raise_on_a_full_gpu_is_recognised_as_a_lack_of_memory(device: str, tell: Tell) -> None:
    """A new thread takes new handles of cuDNN and cuBLAS, which do not ask torch for their memory."""
    is_gpu = device != "cpu"
    works = operations(device)
    for room in ROOM if is_gpu else (0,):
        held = fill(device, room * 2**20) if is_gpu else []
        errors = {name: raised(work) for name, work in works.items()}
        held.clear()
        free_memory(torch.device(device))
        for name, error in errors.items():
            tell(f"{name}, {room} MiB in torch's cache", f"{type(error).__name__}: {str(error)[:120]}")
            assert error is None or memory_refused(error)
    assert not is_gpu or [raised(work) for work in works.values()] == [None, None]  # memory is free again


def operations(device: str) -> dict[str, Callable[[], object]]:
    """Operations whose inputs are there already; on a processor their results would take a petabyte."""
    if device == "cpu":
        images, kernels = torch.ones(1, 1, 8, 8).expand(2**45, 1, 8, 8), torch.ones(1, 1, 3, 3)
        rows, columns = torch.ones(1, 1).expand(2**24, 1), torch.ones(1, 1).expand(1, 2**24)
    else:
        images, kernels = torch.ones(4, 64, 64, 64, device=device), torch.ones(64, 64, 3, 3, device=device)
        rows, columns = (torch.ones(1024, 1024, device=device) for _ in range(2))
        torch.cuda.synchronize(device)
    return {
        "convolution": lambda: float(functional.conv2d(images, kernels, padding=1).sum()),
        "matrix product": lambda: float((rows @ columns).sum()),
    }


def fill(device: str, room: int) -> list[torch.Tensor]:
    """Take all memory that the GPU gives; then let torch's cache, not the GPU, have `room` bytes of it again."""
    held, size = [], 2**30
    spare = torch.empty(room, dtype=torch.uint8, device=device)
    while size >= 2**20:
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device=device))
        except torch.OutOfMemoryError:
            size //= 2
    del spare
    return held


def raised(work: Callable[[], object]) -> Exception | None:
    """What `work` raises in a thread of its own."""
    errors: list[Exception] = []

    def carry_out() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=carry_out)
    thread.start()
    thread.join()
    return errors[0] if errors else None


@contextmanager
def refused_in_decoding() -> Iterator[None]:
    """The first call of an autoencoder's decoder is refused, as torch refuses memory."""
    left = [torch.OutOfMemoryError("out of memory, injected by the test")]

    def refuse(_given: Any) -> None:
        if left:
            raise left.pop()

    with before_each("Decoder", refuse):
        yield


@contextmanager
def before_each(kind: str, act: Callable[[Any], None]) -> Iterator[None]:
    """`act` gets what each call of a module of this kind is given, before it."""
    handle = register_module_forward_pre_hook(lambda one, given: act(given) if type(one).__name__ == kind else None)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def bounded(device: str, most: int) -> Iterator[None]:
    """At most so many bytes of the GPU's memory for this process."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(most / torch.cuda.get_device_properties(device).total_memory, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def peak(device: str) -> int:
    """Most bytes that were taken since the last call; 0 on a processor."""
    if device == "cpu":
        return 0
    taken = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return taken
