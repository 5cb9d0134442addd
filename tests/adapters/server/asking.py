"""A server without Ray, and asking one in plain HTTP."""

import base64
import io
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml
from click.testing import CliRunner
from diffusers.utils import logging as diffusers_log
from PIL import Image
from transformers.utils import logging as transformers_log

from adapters.server.checks import ServeSettings
from adapters.server.command import serve
from adapters.server.errors import ProxyMiddleware
from adapters.server.formats import ARRAYS, BatchAnswer, BatchRequest, pack_request, read_answer
from adapters.server.server import Server
from tests.endpoints.serving import serving

Pixels = npt.NDArray[np.uint8]
GENERATIONS, EDITS, VARIATIONS = (
    f"/v1/images/{name}" for name in ("generations", "edits", "variations")
)
BATCH = "/v1/batch/images"
JSON = "application/json"


def settings_of(*options: str) -> ServeSettings:
    printed = CliRunner().invoke(serve, [*options, "--print-config"], catch_exceptions=False).output
    return ServeSettings.model_validate(yaml.safe_load(printed)["applications"][0]["args"])


@contextmanager
def near(*options: str) -> Iterator[str]:
    """The address of a replica in this process, behind the middleware of Ray's proxy."""
    given = settings_of(*options).model_dump(mode="json")
    logs = {log: log.get_verbosity() for log in (diffusers_log, transformers_log)}
    try:
        with serving(ProxyMiddleware(Server(given).__serve_build_asgi_app__())) as url:
            yield url
    finally:
        for log, verbosity in logs.items():
            log.set_verbosity(verbosity)


def ask(
    url: str, body: bytes | None = None, method: str | None = None, **headers: str
) -> tuple[int, bytes, Any]:
    """Status, body and headers; the names of headers are written with _ for -."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, body, named, method=method), timeout=90
        ) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


def get(url: str, path: str, key: str | None = None) -> tuple[int, Any]:
    status, answer, _ = ask(url + path, **bearer(key))
    return status, json.loads(answer)


def generate(url: str, content: dict[str, Any], key: str | None = None) -> tuple[int, Any]:
    status, answer, _ = ask(
        url + GENERATIONS, json.dumps(content).encode(), content_type=JSON, **bearer(key)
    )
    return status, json.loads(answer)


def batch(url: str, wanted: BatchRequest) -> BatchAnswer:
    status, answer, _ = ask(url + BATCH, pack_request(wanted), content_type=ARRAYS)
    assert status == 200, answer
    return read_answer(answer, len(wanted))


def pixels(answer: Any) -> Pixels:
    """The images that OpenAI's client has received, n×h×w or n×h×w×3."""
    files = [io.BytesIO(base64.b64decode(entry.b64_json)) for entry in answer.data]
    return np.stack([np.asarray(Image.open(file)) for file in files])


def png(image: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def apart(one: Pixels, other: Pixels) -> int:
    """Grey levels that two batches of images differ by at the most."""
    assert one.shape == other.shape
    return int(np.abs(one.astype(int) - other.astype(int)).max())
