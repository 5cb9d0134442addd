"""What happens when a GPU has no memory left: smaller batches, and the same images."""

from contextlib import contextmanager

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from adapters.diffusion.device import free_memory
from tests.gpu.models import GPU, grey_levels, in_batches, new_images, stable_diffusion

pytestmark = GPU
BATCH = 4
NEAR = 2
"""Grey levels by which an image may differ after the recovery: its kernels may be others, its batch is the same."""


def test_a_refused_batch_is_halved_and_gives_the_same_images(device, tiny, tell):
    """A GPU's memory is bounded; a processor's, which is not, refuses the first call of a decoder."""
    with stable_diffusion(tiny, device) as build:
        settings = {"precision": "fp16", "batch_size": BATCH, "steps": 4}
        api = build(**settings)
        new_images(api, 1)
        peak(device)
        before, half = in_batches(api, BATCH, BATCH // 2), peak(device)
        _, whole = new_images(api, BATCH), peak(device)
        tell("memory of 2 and of 4 images, GiB", f"{half / 2**30:.2f}, {whole / 2**30:.2f}")
        api = build(**settings)
        free_memory(torch.device(device))  # of the model before
        new_images(api, 1)  # loads this one
        refusing = refused_in_decoding() if tiny else bounded(device, (half + whole) // 2)
        batches = []
        with before_each("UNet2DConditionModel", lambda given: batches.append(len(given[0]))), refusing:
            during = new_images(api, BATCH)
        after = new_images(api, BATCH)
    tell("batches", list(dict.fromkeys(batches)))
    assert min(batches) < BATCH
    for when, images in {"during": during, "after": after}.items():
        apart = grey_levels(before, images)
        tell(f"grey levels apart, {when}", apart)
        assert apart <= NEAR


@contextmanager
def before_each(kind, act):
    """`act` gets what each call of a module of this kind is given, before it."""
    handle = register_module_forward_pre_hook(lambda one, given: act(given) if type(one).__name__ == kind else None)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def refused_in_decoding():
    """The first call of an autoencoder's decoder is refused, as torch refuses memory."""
    left = [torch.OutOfMemoryError("out of memory, injected by the test")]

    def refuse(_given):
        if left:
            raise left.pop()

    with before_each("Decoder", refuse):
        yield


@contextmanager
def bounded(device, most):
    """At most so many bytes of the GPU's memory for this process."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(most / torch.cuda.get_device_properties(device).total_memory, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def peak(device):
    """Most bytes that were taken since the last call; 0 on a processor."""
    if device == "cpu":
        return 0
    taken = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return taken
