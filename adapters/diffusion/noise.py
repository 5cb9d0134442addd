"""Every item's own random numbers: an image depends on its seed, not on the batch it was made in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

_HEADER = 24  # bytes before the words in the state of torch's Mersenne Twister: seed, left, seeded, next
_WORDS = 624


def seeded(seed: int) -> torch.Generator:
    """A generator on the CPU, whatever the model's device, for a seed of 64 bits.

    torch's `manual_seed` heeds the lower 32 bits alone, so that among 100,000 items one or two would be made
    from the noise of another; the state is filled from all 64 instead.
    """
    import torch

    words = np.random.Philox(key=seed).random_raw(_WORDS) >> np.uint64(32)
    generator = torch.Generator("cpu").manual_seed(0)
    state = generator.get_state().numpy()
    state[_HEADER : _HEADER + 8 * _WORDS] = words.view(np.uint8)
    generator.set_state(torch.from_numpy(state))
    return generator


def normals(shape: Sequence[int], generators: Sequence[torch.Generator]) -> torch.Tensor:
    """Standard normal float32, n×shape, on the CPU: row i from generator i."""
    import torch

    return torch.stack([torch.randn(tuple(shape), generator=generator) for generator in generators])
