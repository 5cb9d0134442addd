"""Asking a server in plain HTTP, as the tests do it."""

from __future__ import annotations

import base64
import io
import json
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from adapters.server.formats import ARRAYS, BatchAnswer, BatchRequest, pack_request, read_answer
from tests.adapters.server.serving import Server

Pixels = npt.NDArray[np.uint8]


def post(server: Server, path: str, body: bytes, kind: str, key: str | None = None) -> tuple[int, bytes, Any]:
    """Status, body and headers."""
    headers = {"Content-Type": kind} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(
            urllib.request.Request(server.url + path, data=body, headers=headers), timeout=90
        ) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


def generate(server: Server, content: dict[str, Any], key: str | None = None) -> tuple[int, Any, Any]:
    """The answer of images/generations, its headers with it."""
    body = json.dumps(content).encode()
    status, answer, headers = post(server, "/v1/images/generations", body, "application/json", key)
    return status, json.loads(answer), headers


def batch(server: Server, wanted: BatchRequest, key: str | None = None) -> BatchAnswer:
    """The answer of batch/images."""
    status, answer, _ = post(server, "/v1/batch/images", pack_request(wanted), ARRAYS, key)
    assert status == 200, answer
    return read_answer(answer, len(wanted))


def pixels(entry: Any) -> Pixels:
    """The pixels of an image in base64, h×w or h×w×3."""
    text = entry["b64_json"] if isinstance(entry, dict) else entry.b64_json
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


def png(image: Pixels) -> bytes:
    """A PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image).save(buffer, "PNG")
    return buffer.getvalue()


def apart(one: Pixels, other: Pixels) -> int:
    """Grey levels that two images, or batches of them, differ by at the most."""
    assert one.shape == other.shape
    return int(np.abs(one.astype(int) - other.astype(int)).max())
