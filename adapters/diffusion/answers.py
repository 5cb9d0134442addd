"""From the engine's outcomes to the protocol's answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adapters.diffusion.items import Outcome, Pixels
from pe.data.conditions import Conditions
from pe.data.samples import Images, Samples
from pe.errors import APIError
from pe.plugins.protocols import Answer, Failed, Refused, Usage


def answer_of(outcomes: Sequence[Outcome], shape: tuple[int, int, int], conditions: Conditions) -> Answer:
    """The answer that these outcomes are.

    Args:
        outcomes: one per item of the request.
        shape: h, w, c of a sample.
        conditions: one row per item of the request; those of items without an image are left out.
    """
    images = {i: outcome for i, outcome in enumerate(outcomes) if isinstance(outcome, np.ndarray)}
    missing = {i: outcome for i, outcome in enumerate(outcomes) if isinstance(outcome, Refused | Failed)}
    pixels = np.stack(list(images.values())) if images else np.empty((0, *shape), dtype=np.uint8)
    return Answer(Images(pixels), conditions.take(list(images)), missing, Usage(1, len(images)))


def parents_of(samples: Samples) -> list[Pixels]:
    """The pixels of each parent.

    Raises:
        APIError: they are no images.
    """
    if not isinstance(samples, Images):
        raise APIError(f"A diffusion model varies images, not {samples.kind}.")
    return list(samples.pixels)
