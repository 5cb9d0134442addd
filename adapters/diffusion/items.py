"""What the engine is asked for, item by item, and what a family of models must be able to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from pe.errors import APIError, PluginError, RecipeError
from pe.plugins.protocols import Failed, Refused

if TYPE_CHECKING:
    import torch


Pixels = npt.NDArray[np.uint8]
Outcome = Pixels | Refused | Failed
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Job:
    """What the items of one forward pass have in common.

    Attributes:
        steps: of sampling an image from pure noise, ≥ 1.
        degree: variation in [0, 1] of each item's image; None: a new image.
        guidance: classifier-free guidance scale; None: the model's own; a family without it ignores it.
        size: height and width, pixels; None: the model's own.
    """

    steps: int
    degree: float | None = None
    guidance: float | None = 1.0
    size: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class Item:
    """One image that is wanted.

    Attributes:
        job: what it may share a forward pass with.
        seed: uint64; all its randomness comes from it.
        image: the image to be varied, uint8 h×w×c; None for a new one.
        prompt: for models that take one.
        negative_prompt: what the image should not be like.
        api_class: the model's own class, for models that have them.
    """

    job: Job
    seed: int
    image: Pixels | None = None
    prompt: str = ""
    negative_prompt: str = ""
    api_class: int | None = None


class Model(Protocol):
    """A diffusion model on one device; called from one thread, with batches of one job."""

    def sample(self, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
        """New images from pure noise, one outcome per item."""
        ...

    def vary(self, job: Job, items: Sequence[Item]) -> Sequence[Outcome]:
        """The items' images, noised `job.degree` of the way, in (0, 1], and denoised again; one outcome per item."""
        ...


def of_iteration(name: str, setting: Number | list[Number], iteration: int) -> Number:
    """What a setting is in this iteration, from 1 on: one number, or a list with one for each.

    Raises:
        RecipeError: the list has no such entry.
    """
    if not isinstance(setting, list):
        return setting
    if not 1 <= iteration <= len(setting):
        raise RecipeError(
            f"{name} has {len(setting)} entries, and none for iteration {iteration}: give {name} one number, or one "
            "for each iteration."
        )
    return setting[iteration - 1]


def numbers_of(setting: Number | list[Number]) -> list[Number]:
    """All numbers that a setting has over the iterations."""
    return setting if isinstance(setting, list) else [setting]


def steps_run(steps: int, degree: float) -> int:
    """How many of `steps` denoising steps a variation of this degree, in (0, 1], runs: ⌊steps·degree⌋.

    Raises:
        APIError: none.
    """
    run = math.floor(steps * degree + 1e-9)  # 100·0.58 is 57.99… in floating point
    if run < 1:
        raise APIError(
            f"Degree {degree:g} of {steps} steps leaves no denoising step to run: "
            f"take a degree of at least {1 / steps:.3g}, or more steps."
        )
    return run


def describe_steps(steps: int, degree: float) -> str:
    """What `pe plan` says of a degree.

    Raises:
        RecipeError: it leaves no step to run.
    """
    if degree == 0:
        return "the parent itself"
    if degree == 1:
        return f"a new sample of the parent's condition, all {steps} steps"
    run = math.floor(steps * degree + 1e-9)
    if not run:
        raise RecipeError(
            f"evolution.degree is {degree:g}, and of {steps} steps that leaves none to run: take a degree of at least "
            f"{1 / steps:.3g}, or more steps."
        )
    return f"noised and denoised, the last {run} of {steps} steps"


# Every item's own random numbers: an image depends on its seed, not on the batch it was made in.


_HEADER = 24  # bytes before the words in the state of torch's Mersenne Twister: seed, left, seeded, next
_WORDS = 624


def seeded(seed: int) -> torch.Generator:
    """A generator on the CPU, whatever the model's device, for a seed of 64 bits.

    torch's `manual_seed` heeds the lower 32 bits alone, so that among 100,000 items one or two would be made
    from the noise of another; the state is filled from all 64 instead.

    Raises:
        PluginError: this version of torch keeps the state in another form.
    """
    _check_form()
    return _filled(np.random.Philox(key=seed).random_raw(_WORDS) >> np.uint64(32))


def normals(shape: Sequence[int], generators: Sequence[torch.Generator]) -> torch.Tensor:
    """Standard normal float32, n×shape, on the CPU: row i from generator i."""
    import torch

    return torch.stack([torch.randn(tuple(shape), generator=each, dtype=torch.float32) for each in generators])


def _filled(words: npt.NDArray[np.uint64]) -> torch.Generator:
    """A generator whose Mersenne Twister begins with these 624 words of 32 bits."""
    import torch

    generator = torch.Generator("cpu").manual_seed(0)
    state = generator.get_state().numpy()
    state[_HEADER : _HEADER + 8 * _WORDS] = words.view(np.uint8)
    generator.set_state(torch.from_numpy(state))
    return generator


@cache
def _check_form() -> None:
    """Compare torch's draws from such a state with NumPy's Mersenne Twister."""
    import torch

    words = np.arange(1, _WORDS + 1, dtype=np.uint64)
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words.astype(np.uint32), "pos": _WORDS}}
    bound = 2**24  # so that torch takes 32 bits a draw
    drawn = torch.empty(_WORDS, dtype=torch.int64).random_(0, bound, generator=_filled(words)).numpy()
    if not np.array_equal(drawn, twister.random_raw(_WORDS) % bound):
        raise PluginError(
            f"torch {torch.__version__} keeps the state of its random numbers in a form that is not known here, so "
            "seeds would not be obeyed: install the version of torch that constraints.txt names."
        )
