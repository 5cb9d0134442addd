"""Encoded images from an endpoint: bounded, of three formats, brought to one size."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from adapters.http.addresses import Addresses
from adapters.http.client import fetched, respond
from pe.data.decoding import Channels, Resize, convert_pixels, decode_image
from pe.errors import BadImage
from pe.plugins.protocols import Failed

if TYPE_CHECKING:
    import httpx2

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
