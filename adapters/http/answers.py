"""From pictures to the protocol's answer, and from samples to what an endpoint takes."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from adapters.http.faults import Fault
from adapters.http.pictures import PictureRule, Pixels
from adapters.http.policy import Outcome
from pe.data.conditions import DRAWN, Conditions
from pe.data.images import Images
from pe.data.samples import Samples
from pe.errors import APIError
from pe.plugins.protocols import Answer, Failed, Refused
from pe.plugins.usage import NOTHING, Usage

Received = tuple[list[Pixels | Failed | Refused], Usage | None]
"""Images in order, or why one is none; and what the answer says of tokens billed, if anything."""


def answer_of(count: int, outcome: Outcome[Received], rule: PictureRule, conditions: Conditions) -> Answer:
    """The answer to a request for `count` items.

    Pictures beyond `count` are billed and ignored; those that are lacking have failed.

    Args:
        count: of the items.
        outcome: what came, as it was drawn.
        rule: makes samples of it.
        conditions: of the items, which the samples get with what was drawn, if that is kept.
    """
    came, billed = outcome.result or ([], None)
    lacking = outcome.miss or Failed(f"the endpoint sent {len(came)} images where {count} were asked for")
    pictures = [*came[:count], *[lacking] * (count - len(came))]
    good = [picture for picture in pictures if isinstance(picture, np.ndarray)]
    missing = {i: picture for i, picture in enumerate(pictures) if isinstance(picture, Failed | Refused)}
    samples = Images(_stacked([rule.sample(picture) for picture in good], rule.shape))
    kept = Conditions()
    if rule.kept is not None:
        rest = conditions.take([i for i in range(count) if i not in missing])
        kept = Conditions({**rest, DRAWN: _stacked([rule.keep(picture) for picture in good], (*rule.kept, 3))})
    drawn = sum(math.prod(one.shape[:2] if isinstance(one, np.ndarray) else rule.sent or (0,)) for one in came)
    usage = Usage(outcome.calls, len(came), megapixels=drawn / 1e6) + (billed or NOTHING)
    return Answer(samples, kept, missing, usage)


def _stacked(pictures: list[Pixels], shape: tuple[int, ...]) -> Pixels:
    return np.stack(pictures) if pictures else np.empty((0, *shape), dtype=np.uint8)


def images_in(answer: Mapping[str, Any], key: str) -> list[Any]:
    """The list of images that an answer holds under `key`.

    Raises:
        Fault: it holds none, or an error beside an empty one.
    """
    found = answer.get(key)
    if not isinstance(found, list) or (not found and answer.get("error")):
        raise Fault.of_object(answer, "the answer holds no list of images")
    return found


def encoded(samples: Samples) -> list[bytes]:
    """Each image as a PNG file.

    Raises:
        APIError: the samples are no images.
    """
    if not isinstance(samples, Images):
        raise APIError(f"An image endpoint varies images, not {samples.kind}.")
    return [_png(pixels) for pixels in samples.pixels]


def _png(pixels: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()
