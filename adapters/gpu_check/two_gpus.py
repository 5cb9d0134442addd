"""The check `two_gpus`: two GPUs share the work, and make what one makes."""

from __future__ import annotations

from adapters.gpu_check.memory import compared
from pe.plugins.devices import count_cards
from pe.plugins.gpu_checks import Found, GPUCheck, Size


def two_gpus(device: str, size: Size) -> Found:
    """The grey levels between images of one GPU and of two, in batches of one size; both must have worked.

    On a processor two copies of the model stand for the two.
    """
    import torch

    if device != "cpu" and count_cards() < 2:
        return Found("skipped", "this machine has one GPU")
    both = ["cpu", "cpu"] if device == "cpu" else ["cuda:0", "cuda:1"]
    found = compared(device, size, {"two GPUs": {"device": both}}, batch_size=2)
    if device == "cpu" or found.state == "fail" or torch.cuda.max_memory_allocated(both[1]):
        return found
    return Found("fail", f"{both[1]} was not used", found.figures)


CHECK = GPUCheck(two_gpus, seconds=120)
