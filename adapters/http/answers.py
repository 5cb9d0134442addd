"""From pictures to the protocol's answer, and from samples to what an endpoint takes."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from adapters.http.faults import Fault
from adapters.http.pictures import PictureRule, Pixels
from pe.data.samples import Images, Samples
from pe.errors import APIError
from pe.plugins.protocols import Answer, Failed, Refused, Usage


def answer_of(
    count: int, pictures: Sequence[Pixels | Failed | Refused] | Fault, rule: PictureRule, calls: int, tokens: int = 0
) -> Answer:
    """The answer to a request for `count` items.

    Args:
        count: items asked for.
        pictures: what came, in order; those beyond `count` are billed and ignored, those that are lacking have
            failed. Or the fault instead of which nothing came: a refusal, or one that may heal.
        rule: the samples' shape.
        calls: requests made.
        tokens: billed.
    """
    if isinstance(pictures, Fault):
        miss = Refused(pictures.words) if pictures.refusal else Failed(str(pictures))
        pictures = [miss] * count
        billed = 0
    else:
        billed = len(pictures)
        lacking = Failed(f"the endpoint sent {len(pictures)} images where {count} were asked for")
        pictures = [*pictures[:count], *[lacking] * (count - len(pictures))]
    good = [picture for picture in pictures if isinstance(picture, np.ndarray)]
    missing = {i: picture for i, picture in enumerate(pictures) if isinstance(picture, Failed | Refused)}
    pixels = np.stack(good) if good else np.empty((0, *rule.shape), dtype=np.uint8)
    return Answer(Images(pixels), missing=missing, usage=Usage(calls, billed, tokens))


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
