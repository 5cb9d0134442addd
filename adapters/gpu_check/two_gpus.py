"""The check `two_gpus`: two GPUs share the work, and make what one makes."""

from __future__ import annotations

from adapters.gpu_check.models import REDUCED, grey_levels, new_images, stable_diffusion, text_to_image
from pe.plugins.devices import count_cards
from pe.plugins.gpu_checks import Figure, Found, GPUCheck, Size, judged

_COUNT = 8
_NEAR = 1
_STEPS: dict[Size, int] = {"tiny": 2, "small": 10, "real": 20}


def two_gpus(device: str, size: Size) -> Found:
    """The grey levels between the images of one GPU and of two, in batches of the same size; both must have worked.

    On a processor two copies of the model stand for the two.
    """
    if device != "cpu" and count_cards() < 2:
        return Found("skipped", "this machine has one GPU")
    both = ["cpu", "cpu"] if device == "cpu" else ["cuda:0", "cuda:1"]
    shape = REDUCED[size]
    with stable_diffusion(shape, device) as folder:
        more = {"steps": _STEPS[size], "batch_size": 2}
        one = new_images(text_to_image(folder, shape, both[0], "fp32", **more), _COUNT)
        two = new_images(text_to_image(folder, shape, both, "fp32", **more), _COUNT)
    figures: dict[str, Figure] = {"grey levels apart": (apart := grey_levels(one, two))}
    faults = [f"two GPUs make images that differ by {apart} grey levels"] if apart > _NEAR else []
    if device != "cpu":
        import torch

        figures |= {f"{name}: GiB": torch.cuda.max_memory_allocated(name) / 2**30 for name in both}
        faults += [f"{name} was not used" for name in both if not torch.cuda.max_memory_allocated(name)]
    return judged(figures, faults)


CHECK = GPUCheck(two_gpus, seconds=120)
