"""What an image depends on: not on its batch, what saves memory or time, or the number of GPUs."""

import time
from contextlib import nullcontext

import pytest
import torch

from adapters.diffusion.pixel import PixelSpace
from pe.plugins.devices import free_memory
from tests.gpu.models import (
    GPU,
    STEPS,
    full_float32,
    grey_levels,
    in_batches,
    new_images,
    stable_diffusion,
)

pytestmark = GPU
FULL = "fp32 without TF32"
NEAR = 2
"""Grey levels, without TF32, between an image with a setting and without."""


@pytest.mark.parametrize("precision", [FULL, "fp32", "bf16", "fp16"])
def test_in_full_float32_an_image_depends_on_its_batch_by_one_grey_level(
    precision, device, tiny, tell
):
    """docs/diffusion.md; as torch has it, fp32 is TF32 in convolutions: of that, bf16 and fp16
    nothing is claimed.
    """
    sizes = (2,) if tiny else (4, 16)
    settings = {"precision": precision[:4], "batch_size": max(sizes), "steps": STEPS[tiny]}
    with (
        stable_diffusion(tiny, device) as build,
        full_float32() if precision == FULL else nullcontext(),
    ):
        pixels = PixelSpace(model="small", device=device, **settings)
        for name, api in {"text": build(**settings), "28×28": pixels}.items():
            alone = in_batches(api, max(sizes), 1)
            for size in sizes:
                apart = grey_levels(alone, in_batches(api, max(sizes), size))
                tell(f"{name}, {precision}, batch 1 against {size}: grey levels", apart)
                assert apart <= 1 or precision != FULL


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {"vae_slicing": True},
            {"offload": "model"},
            {"offload": "sequential"},
            {"offload": "group"},
        ),
        *({"compile": True}, {"device": ["cuda:0", "cuda:1"]}),
    ],
    ids=str,
)
def test_neither_what_saves_memory_or_time_nor_a_second_gpu_moves_an_image(
    changes, device, tiny, tell
):
    if (tiny and "offload" in changes) or ("device" in changes and torch.cuda.device_count() < 2):
        pytest.skip("a processor offloads nothing, and this machine has not two GPUs")
    stance, made = torch.compiler.set_stance("force_eager" if tiny else "default"), {}
    with stable_diffusion(tiny, device) as build, full_float32(), stance:
        for name, settings in {"without": {}, str(changes): changes}.items():
            free_memory(torch.device(device))
            api = build(precision="fp32", batch_size=2, **settings)
            new_images(api, 4)
            if not tiny:
                torch.cuda.reset_peak_memory_stats()
            begun = time.perf_counter()
            made[name] = new_images(api, 4)
            tell(f"{name}: images/s", 4 / (time.perf_counter() - begun))
            tell(f"{name}: GiB", 0 if tiny else torch.cuda.max_memory_allocated() / 2**30)
    apart = grey_levels(*made.values())
    tell(f"{changes}: grey levels apart", apart)
    assert apart <= NEAR
