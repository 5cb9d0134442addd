"""The items that a diffusion model makes, their jobs, seeds and numbers of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from pe.data.arrays import UInt8Array, UInt64Array
from pe.data.decoding import Size
from pe.errors import APIError, PluginError, RecipeError
from pe.plugins.protocols import Failed, Refused

if TYPE_CHECKING:
    import torch

Pixels = UInt8Array
Outcome = Pixels | Refused | Failed
Number = TypeVar("Number", int, float)

GRID = 8  # pixels per side that a latent of a text-to-image model stands for

# bytes before the words in the state of torch's Mersenne Twister: seed, left, seeded, next
_HEADER = 24
_WORDS = 624
_LOST = Failed(
    "the model's image has values that are not numbers (`precision: fp32` or `bf16` may help)"
)


@dataclass(frozen=True)
class Job:
    """Settings that all items of one forward pass share."""

    steps: int  # denoising steps from pure noise to an image, ≥ 1
    degree: float | None = None  # variation in [0, 1] of each item's image; None: a new image
    # scale of classifier-free guidance; None: the model's own; families without guidance ignore it
    guidance: float | None = 1.0
    size: Size | None = None  # height and width, pixels; None: the model's own


@dataclass(frozen=True, eq=False)
class Item:
    """One image to make.

    Attributes:
        seed: uint64.
        image: the parent to vary, uint8 h×w×c; None: draw a new image.
        api_class: the model's class, for a model with classes.
    """

    job: Job
    seed: int
    image: Pixels | None = None
    prompt: str = ""
    negative_prompt: str = ""
    api_class: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Height, width and channels of the parent, or nothing without a parent."""
        return () if self.image is None else self.image.shape


def tensors(images: Pixels, device: torch.device) -> torch.Tensor:
    """Return images, uint8 n×h×w×c, as float32 n×c×h×w in [−1, 1]."""
    import torch

    return torch.from_numpy(images).to(device).permute(0, 3, 1, 2).float() / 127.5 - 1.0


def outcomes_of(images: torch.Tensor) -> list[Outcome]:
    """Return the pixels of images, n×h×w×c in [0, 1].

    An image that holds NaN or infinity becomes Failed.
    """
    finite = images.isfinite().flatten(1).all(dim=1).tolist()
    # to bytes before they leave the GPU, so that less is copied
    levels = (images.nan_to_num() * 255).round().clamp(0, 255).byte()
    pixels: Pixels = levels.contiguous().cpu().numpy()
    return [image if good else _LOST for image, good in zip(pixels, finite, strict=True)]


class Model(Protocol):
    """A diffusion model on one device, called from one thread with batches of one job."""

    def sample(self, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
        """Draw new images from pure noise, one outcome per item."""
        ...

    def vary(self, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
        """Noise the items' images to `job.degree`, in (0, 1], and denoise them.

        Return one outcome per item.
        """
        ...


def of_iteration(name: str, setting: Number | list[Number], iteration: int) -> Number:
    """Return a setting's value in an iteration, counted from 1.

    Raises:
        RecipeError: the list has no entry for the iteration.
    """
    if not isinstance(setting, list):
        return setting
    if not 1 <= iteration <= len(setting):
        raise RecipeError(
            f"`{name}` has {len(setting)} entries, but iteration {iteration} needs one more. "
            f"Give `{name}` one number, or one per iteration."
        )
    return setting[iteration - 1]


def numbers_of(setting: Number | list[Number]) -> list[Number]:
    """Return a setting's numbers over all iterations."""
    return setting if isinstance(setting, list) else [setting]


def steps_run(steps: int, degree: float) -> int:
    """Return ⌊steps·degree⌋, the denoising steps of a degree in (0, 1].

    Raises:
        APIError: no step is left.
    """
    run = math.floor(steps * degree + 1e-9)  # 100·0.58 is 57.99… in floating point
    if run < 1:
        raise APIError(
            f"Degree {degree:g} of {steps} steps leaves no denoising step to run. Take a degree "
            f"of at least {1 / steps:.3g}, or more steps."
        )
    return run


def describe_steps(steps: int, degree: float) -> str:
    """Describe a degree in [0, 1] for `pe plan`.

    Raises:
        RecipeError: the degree leaves no step to run.
    """
    if degree == 0:
        return "the parent itself"
    if degree == 1:
        return f"a new sample of the parent's condition, all {steps} steps"
    try:
        run = steps_run(steps, degree)
    except APIError as error:
        raise RecipeError(f"`evolution.degree`: {error}") from error
    return f"noised and denoised, the last {run} of {steps} steps"


def torch_rng(seed: int) -> torch.Generator:
    """Return a generator on the CPU for a seed of 64 bits, whatever the model's device.

    torch's `manual_seed` uses only the lower 32 bits, so one or two of 100,000 items would share
    the noise of another. Here all 64 bits fill the state.

    Raises:
        PluginError: this version of torch keeps its state in another form.
    """
    _check_form()
    return _fill(np.random.Philox(key=seed).random_raw(_WORDS) >> np.uint64(32))


def normals(shape: Sequence[int], generators: Sequence[torch.Generator]) -> torch.Tensor:
    """Draw standard normals, float32 n×shape on the CPU, row i from generator i."""
    import torch

    return torch.stack(
        [torch.randn(tuple(shape), generator=each, dtype=torch.float32) for each in generators]
    )


def _fill(words: UInt64Array) -> torch.Generator:
    """Return a generator whose Mersenne Twister begins with these 624 words of 32 bits."""
    import torch

    generator = torch.Generator("cpu").manual_seed(0)
    state = generator.get_state().numpy()
    state[_HEADER : _HEADER + 8 * _WORDS] = words.view(np.uint8)
    generator.set_state(torch.from_numpy(state))
    return generator


@cache
def _check_form() -> None:
    """Raise PluginError unless torch draws from the state of `_fill` as NumPy does."""
    import torch

    words = np.arange(1, _WORDS + 1, dtype=np.uint64)
    twister = np.random.MT19937()
    twister.state = {
        "bit_generator": "MT19937",
        "state": {"key": words.astype(np.uint32), "pos": _WORDS},
    }
    bound = 2**24  # so that torch takes 32 bits a draw
    draws = torch.empty(_WORDS, dtype=torch.int64).random_(0, bound, generator=_fill(words)).numpy()
    if not np.array_equal(draws, twister.random_raw(_WORDS) % bound):
        raise PluginError(
            f"torch {torch.__version__} keeps the state of its random numbers in an unknown "
            "form, so seeds would have no effect. Install the version of torch that "
            "constraints.txt names."
        )
