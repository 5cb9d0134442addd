"""Every item's own random numbers: an image depends on its seed, not on the batch it was made in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pe.errors import PluginError

if TYPE_CHECKING:
    import torch

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
