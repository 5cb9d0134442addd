"""Which addresses that a host names are followed: its own, and those of hosts that are known by name."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt
from PIL import Image
from pydantic import Field

from adapters.http.client import fetched, respond
from adapters.http.faults import Fault
from adapters.http.policy import Outcome
from pe.data.decoding import Channels, Resize, convert_pixels, decode_image
from pe.data.images import Images
from pe.data.samples import DRAWN, Conditions, Samples
from pe.errors import APIError, BadImage
from pe.plugins.protocols import NOTHING, Answer, Failed, Refused, Usage

if TYPE_CHECKING:
    import httpx2


HostName = Annotated[str, Field(pattern=r"^([a-z0-9-]+\.)+[a-z]{2,}$")]
"""A name of the public network, which no address of this machine or its network is."""

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Addresses:
    """What may be asked besides the host that the recipe names.

    Attributes:
        base: the host's address: whatever has its scheme, name and port may be asked.
        hosts: names that may be asked by https on its own port, and all names below them.
    """

    base: str
    hosts: tuple[str, ...] = ()

    def refusal(self, url: object) -> str:
        """Why an address is not followed, in a clause without its path; empty: it is."""
        if not isinstance(url, str):
            return f"named {type(url).__name__} in place of an address"
        try:
            parts, base = urlsplit(url), urlsplit(self.base)
            place, own = ((one.scheme, one.hostname or "", one.port or _PORTS.get(one.scheme)) for one in (parts, base))
        except ValueError:  # brackets, a port
            return "named an address that is none"
        if "@" in parts.netloc or not place[1]:
            return "named an address that is none"
        scheme, name, port = place
        known = any(name == host or name.endswith(f".{host}") for host in self.hosts)
        if place == own or (known and scheme == "https" and port == _PORTS["https"]):
            return ""
        where = f"{scheme}://{name}" + ("" if port == _PORTS.get(scheme) else f":{port}")
        followed = " or ".join([f"{own[0]}://{own[1]}", *(f"https://{host}" for host in self.hosts)])
        return f"named an address at {where}, and only {followed} is followed"


# Encoded images from an endpoint: bounded, of three formats, brought to one size.


Pixels = npt.NDArray[np.uint8]

MOST_BYTES = 2**26
"""Most bytes of one encoded image."""

_URL_SAFE = str.maketrans("-_", "+/")
_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")


def read_base64(text: str) -> bytes:
    """The bytes of base64 in the usual or the URL-safe alphabet, with white space in it, with or without its padding.

    Raises:
        ValueError: it is something else.
    """
    text = "".join(text.split()).translate(_URL_SAFE)
    return base64.b64decode(text if text.endswith("=") else text + "=" * (-len(text) % 4), validate=True)


@dataclass(frozen=True)
class PictureRule:
    """What an image from an endpoint must be, and becomes.

    Attributes:
        height: of the samples, pixels.
        width: of the samples, pixels.
        channels: 1 (grey) or 3.
        resize: how an image of another size gets there: crop, fit or stretch.
        sent: (height, width) that the endpoint was asked for: another size counts as failed; None: any.
        kept: (height, width) at which samples are kept to be varied; None: they are not.
    """

    height: int
    width: int
    channels: Channels = 3
    resize: Resize = "crop"
    sent: tuple[int, int] | None = None
    kept: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the samples."""
        return self.height, self.width, self.channels

    def sample(self, pixels: Pixels) -> Pixels:
        """The sample that an image becomes."""
        return convert_pixels(
            pixels, size=(self.height, self.width), resize=self.resize, channels=self.channels, name="The image"
        )

    def keep(self, pixels: Pixels) -> Pixels:
        """What is kept of an image, uint8 h×w×3."""
        return convert_pixels(pixels, size=self.kept, resize=self.resize, channels=3, name="The image")

    def decode(self, data: bytes) -> Pixels | Failed:
        """The pixels of PNG, JPEG or WebP bytes as they were drawn, uint8 h×w×3; or why there are none."""
        webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
        if len(data) > MOST_BYTES or not (webp or data.startswith(_STARTS)):
            return Failed(f"the endpoint sent {len(data)} bytes that are no PNG, JPEG or WebP image")
        try:
            return decode_image(data, size=self.sent, resize=None, channels=3, name="The endpoint's image")
        except BadImage as error:
            return Failed(str(error))

    def decode_text(self, text: object) -> Pixels | Failed:
        """The pixels of an image in base64, with or without a data URI's head; or why there are none."""
        if not isinstance(text, str):
            return Failed("the endpoint sent an entry without an image")
        if text.startswith("data:"):
            _, comma, text = text.partition(",")
            if not comma:
                return Failed("the endpoint sent a data URI without data")
            text = unquote(text)
        try:
            return self.decode(read_base64(text))
        except ValueError:
            return Failed("the endpoint sent an image whose base64 is broken")

    def fetch(self, client: httpx2.Client, url: object, kept: dict[str, bytes]) -> Pixels | Failed:
        """The pixels of an image behind an https address, by a client without credentials; see `fetched`."""
        if not isinstance(url, str) or not url.startswith("https://"):
            remedy = "have it send the image itself (`response_format: b64_json`)"
            return Failed(f"the endpoint named an image's address that is not https: {remedy}")
        if refusal := Addresses(url).refusal(url):
            return Failed(f"the endpoint {refusal}")
        data = fetched(url, lambda: respond(client, "GET", url), kept)
        return data if isinstance(data, Failed) else self.decode(data)


# From pictures to the protocol's answer, and from samples to what an endpoint takes.


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
