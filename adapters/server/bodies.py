"""Requests' bodies: counted while they come, never on disk, and images measured before they are decoded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from io import BytesIO

from PIL import Image
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from adapters.server.checks import GRID
from adapters.server.errors import Refusal
from adapters.server.formats import Pixels
from pe.data.decoding import FORMATS, decode_image
from pe.data.quiet import quiet
from pe.errors import BadImage

JSON, FORM = "application/json", "multipart/form-data"
FIELDS = 2**20
"""Most bytes of a JSON body, or of a form without its file."""

_SILENCE = 30.0  # seconds between two pieces of a body
_PATIENCE, _PACE = 20.0, 2**14  # seconds for a body, and bytes that buy a second more
_FIELDS_OF_FORM = 32


class Bounded(Request):
    """A request whose body is read no further than is allowed; FastAPI's own limit answers in words of its own.

    Args:
        request: the request.
        kind: the content type that its body must have.
        most: bytes that its body may have.

    Raises:
        Refusal: it is of another content type.
    """

    def __init__(self, request: Request, kind: str, most: int) -> None:
        super().__init__(request.scope, request.receive)
        self._most = most
        if self.headers.get("content-type", "").partition(";")[0].strip().lower() != kind:
            raise Refusal(415, f"Send the body as {kind}.")

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes; one that drips is given up, because it holds one of its key's places.

        Raises:
            Refusal: it is announced, or found, to be too large, or does not come.
        """
        too_large = Refusal(413, f"The body is larger than {self._most} bytes.")
        announced = self.headers.get("content-length", "")
        if announced.isascii() and announced.isdigit() and (len(announced) > 18 or int(announced) > self._most):
            raise too_large
        stream, size, began = super().stream(), 0, time.monotonic()
        while True:
            left = began + _PATIENCE + size / _PACE - time.monotonic()
            try:
                async with asyncio.timeout(min(_SILENCE, left)):
                    piece = await anext(stream)
            except StopAsyncIteration:
                return
            except (TimeoutError, ClientDisconnect) as error:
                raise Refusal(408, "The body did not come to its end in time.", wait=1) from error
            size += len(piece)
            if size > self._most:
                raise too_large
            yield piece

    async def strict_form(self) -> dict[str, str | bytes]:
        """A form's fields, with the bytes of its one file as `image`.

        Starlette's own `form` puts large files on disk; FastAPI's takes an empty field, or one that comes twice.

        Raises:
            Refusal: it is no such form; or see `stream`.
        """
        parser = MultiPartParser(
            self.headers, self.stream(), max_files=1, max_fields=_FIELDS_OF_FORM, max_part_size=FIELDS
        )
        parser.spool_max_size = self._most + 1  # in memory
        try:
            form = await parser.parse()
        except Refusal:
            raise
        except MultiPartException as error:
            raise Refusal(400, f"The form cannot be read: {error.message[:100].rstrip('.')}.") from error
        except Exception as error:  # the parser lets others out of malformed forms
            raise Refusal(400, "The form cannot be read.") from error
        items = form.multi_items()
        fields: dict[str, str | bytes] = {name: value for name, value in items if isinstance(value, str)}
        files = [value for name, value in items if isinstance(value, UploadFile) and name in ("image", "image[]")]
        if len(files) != 1 or len(fields) + 1 != len(items) or "image" in fields:
            raise Refusal(400, "Send one image as the file 'image', and every other field once, as text.", "image")
        image = await files[0].read()
        await form.close()
        return fields | {"image": image}


def pixels_of(data: bytes, shape: tuple[int, int, int] | None, size: tuple[int, int] | None, most: int) -> Pixels:
    """The pixels of an image file, as a model takes them.

    Args:
        data: PNG, JPEG, WebP, BMP, GIF or TIFF.
        shape: height, width and channels of the model's images; None: it takes many sizes.
        size: height and width that are wanted; None: the image's own, cut to the model's grid.
        most: pixels.

    Raises:
        Refusal: it is no image, or has too many pixels, which its header tells before any is decoded.
    """
    try:
        with quiet(), Image.open(BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
    except Exception as error:  # Pillow's parsers let almost any exception out of a malformed file
        raise Refusal(400, "The file is no PNG, JPEG, WebP, BMP, GIF or TIFF image.", "image") from error
    if width * height > most:
        raise Refusal(400, f"The image has more than {most} pixels.", "image")
    wanted = shape[:2] if shape else size or (height // GRID * GRID, width // GRID * GRID)
    if 0 in wanted or wanted[0] * wanted[1] > most:
        raise Refusal(400, f"An image has sides of {GRID} pixels at least, and {most} pixels at the most.", "size")
    try:
        return decode_image(data, size=wanted, resize="crop", channels=1 if shape and shape[2] == 1 else 3)
    except BadImage as error:
        raise Refusal(400, str(error), "image") from error
