"""A few hundred requests that no server should be asked."""

from __future__ import annotations

import io
import json
import random
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from adapters.server.formats import ARRAYS, BatchRequest, pack_request
from tests.adapters.server.test_formats import BAD

JSON = "application/json"
BOUNDARY = "boundary"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
GENERATIONS, EDITS, VARIATIONS = "/v1/images/generations", "/v1/images/edits", "/v1/images/variations"
BATCH = "/v1/batch/images"


@dataclass(frozen=True)
class Bad:
    """A request; `statuses` that it may be answered with."""

    name: str
    path: str
    body: bytes
    kind: str | None
    statuses: tuple[int, ...] = (400,)
    method: str = "POST"
    headers: dict[str, Any] = field(default_factory=dict)


def all_bad() -> list[Bad]:
    return [*json_bodies(), *forms(), *batches(), *routes_and_headers()]


WRONG: tuple[Any, ...] = (None, True, -1, 0.5, 10**400, 1e308, "", "x", "\ud800", [], [1], {}, {"a": 1}, "9" * 5000)
NUMBERS = ("n", "seed", "num_inference_steps", "guidance_scale", "class_label")
TEXTS = ("prompt", "model", "size", "negative_prompt", "response_format", "output_format", "stream")


def json_bodies() -> Iterator[Bad]:
    # None is what most fields are without a value, and "" is a prompt: such requests are answered
    for name in (*NUMBERS, *TEXTS):
        for i, value in enumerate(WRONG):
            content = {"prompt": "7", "num_inference_steps": 1, name: value}
            yield Bad(f"{name} {i}", GENERATIONS, json.dumps(content).encode(), JSON, (200, 400, 404))
    texts = {
        "no json": "prompt=7",
        "empty": "",
        "a list": "[]",
        "a text": '"7"',
        "NaN": '{"prompt": "7", "guidance_scale": NaN}',
        "infinite": '{"prompt": "7", "guidance_scale": Infinity}',
        "beyond floats": '{"prompt": "7", "guidance_scale": 1e999}',
        "beyond integers": '{"prompt": "7", "seed": ' + "1" * 10_000 + "}",
        "deep": '{"prompt":' + "[" * 100_000 + "]" * 100_000 + "}",
        "unknown field": '{"prompt": "7", "image_url": "file:///etc/passwd"}',
        "unknown field that is no text": '{"prompt": "7", "\\ud800": 1}',
        "no prompt": "{}",
        "a url wanted": '{"prompt": "7", "response_format": "url"}',
        "words": '{"prompt": "a cat"}',
        "a class that is none": '{"prompt": "", "class_label": 62}',
        "a class without a name": '{"prompt": "", "class_label": "cat"}',
        "too many": '{"prompt": "7", "n": 17}',
        "too many steps": '{"prompt": "7", "num_inference_steps": 51}',
        "another size": '{"prompt": "7", "size": "28x29"}',
        "a size that is none": '{"prompt": "7", "size": "28x"}',
        "guidance": '{"prompt": "7", "guidance_scale": 2}',
        "a negative prompt": '{"prompt": "7", "negative_prompt": "8"}',
        "a seed too large": '{"prompt": "7", "seed": 18446744073709551616}',
        "a stream": '{"prompt": "7", "stream": true}',
    }
    for name, text in texts.items():
        yield Bad(name, GENERATIONS, text.encode(), JSON)
    yield Bad("latin", GENERATIONS, '{"prompt": "é"}'.encode("latin-1"), JSON)
    yield Bad("another model", GENERATIONS, b'{"prompt": "7", "model": "dall-e-3"}', JSON, (404,))
    yield Bad("large", GENERATIONS, b'{"prompt": "' + b"a" * 2**21 + b'"}', JSON, (413,))
    for kind in ("text/plain", FORM, ARRAYS, "application/x-www-form-urlencoded", "", None, "/", "application/json2"):
        yield Bad(f"kind {kind}", GENERATIONS, b'{"prompt": "7"}', kind, (415,))


def png() -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (28, 28)).astype(np.uint8)
    Image.fromarray(noise).save(buffer, "PNG")
    return buffer.getvalue()


def plain(side: int) -> bytes:
    """A PNG file of a few kilobytes that has side² pixels."""
    buffer = io.BytesIO()
    Image.new("L", (side, side)).save(buffer, "PNG")
    return buffer.getvalue()


def bomb(side: int) -> bytes:
    """A PNG file of a few hundred bytes that says it has side² pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = zlib.compress(b"\0" * 2**16)
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def form(fields: dict[str, Any], files: tuple[tuple[str, bytes], ...] = ()) -> bytes:
    body = b""
    for name, value in fields.items():
        body += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
    for name, data in files:
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="../../x.png"\r\n'
        body += head.encode() + b"Content-Type: image/png\r\n\r\n" + data + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode()


GOOD = {"prompt": "7", "num_inference_steps": "1", "strength": "1"}


def forms() -> Iterator[Bad]:
    one = (("image", png()),)
    for name in ("n", "seed", "num_inference_steps", "guidance_scale", "strength", "class_label"):
        for value in ("", "?", "-1", "1e999", "nan", "Infinity", "9" * 5000, "１７０", "0x7", "1 7"):
            yield Bad(f"{name}={value[:9]}", EDITS, form(GOOD | {name: value}, one), FORM)
    files = {
        "no image": b"nothing",
        "an empty image": b"",
        "half an image": png()[:400],
        "a bomb": bomb(60_000),
        "a large one": plain(2049),
        "an eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "an svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
        "a pickle": b"\x80\x04cos\nsystem\n.",
        "arrays": pack_request(BatchRequest(np.zeros(1, np.uint64))),
    }
    for path in (EDITS, VARIATIONS):
        for name, data in files.items():
            yield Bad(f"{name} {path}", path, form(GOOD, (("image", data),)), FORM)
        yield Bad(f"no file {path}", path, form(GOOD | {"image": "http://127.0.0.1/x.png"}), FORM)
        yield Bad(f"two files {path}", path, form(GOOD, one * 2), FORM)
        yield Bad(f"a mask {path}", path, form(GOOD, (("mask", png()),)), FORM)
        yield Bad(f"many fields {path}", path, form({f"f{i}": i for i in range(999)}, one), FORM)
        yield Bad(f"unknown {path}", path, form(GOOD | {"path": "/etc/passwd"}, one), FORM)
        yield Bad(f"a long field {path}", path, form(GOOD | {"user": "a" * 2**21}, one), FORM)
        yield Bad(f"a field that is a file {path}", path, form({}, (*one, ("prompt", b"7"))), FORM)
        yield Bad(f"no boundary {path}", path, form(GOOD, one), "multipart/form-data", (400, 415))
        yield Bad(f"another boundary {path}", path, form(GOOD, one), "multipart/form-data; boundary=other")
        yield Bad(
            f"a boundary that is long {path}", path, form(GOOD, one), f"multipart/form-data; boundary={'x' * 9999}"
        )
        yield Bad(f"json {path}", path, b"{}", JSON, (415,))
    yield Bad("a field twice", EDITS, form(GOOD, one).replace(b'"strength"', b'"prompt"'), FORM)
    whole, dice = form(GOOD, one), random.Random(1)
    for i in range(60):
        cut = dice.randrange(len(whole) - 4)
        yield Bad(f"cut at {cut}", (EDITS, VARIATIONS)[i % 2], whole[:cut], FORM)
    for i in range(60):
        data = bytearray(whole)
        for _ in range(dice.randrange(1, 9)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        yield Bad(f"changed {i}", EDITS, bytes(data), FORM, (200, 400, 404))


def batches() -> Iterator[Bad]:
    for name, data in BAD.items():
        yield Bad(f"arrays: {name}", BATCH, data, ARRAYS)
    seeds, images = np.zeros(2, np.uint64), np.zeros((2, 28, 28, 1), np.uint8)
    no_number = float("nan")
    wanted = {
        "none": BatchRequest(seeds[:0]),
        "too many": BatchRequest(np.zeros(257, np.uint64)),
        "a degree that is no number": BatchRequest(seeds, no_number, 1, images=images),
        "an infinite degree": BatchRequest(seeds, float("inf"), 1, images=images),
        "a degree above 1": BatchRequest(seeds, 1.01, 1, images=images),
        "a degree without images": BatchRequest(seeds, 0.5, 1),
        "images without a degree": BatchRequest(seeds, None, 1, images=images),
        "images of another size": BatchRequest(seeds, 0.5, 1, images=np.zeros((2, 27, 28, 1), np.uint8)),
        "images of more channels": BatchRequest(seeds, 0.5, 1, images=np.zeros((2, 28, 28, 3), np.uint8)),
        "no steps": BatchRequest(seeds, steps=0),
        "fewer than no steps": BatchRequest(seeds, steps=-(2**63)),
        "too many steps": BatchRequest(seeds, steps=2**63 - 1),
        "guidance": BatchRequest(seeds, steps=1, guidance=no_number),
        "a size": BatchRequest(seeds, steps=1, size=(2**62, 2**62)),
        "prompts": BatchRequest(seeds, steps=1, prompts=("a", "b")),
        "more negative prompts": BatchRequest(seeds, steps=1, negative_prompts=("a", "", "")),
        "negative prompts": BatchRequest(seeds, steps=1, negative_prompts=("a", "")),
        "a class below 0": BatchRequest(seeds, steps=1, classes=np.array([0, -1])),
        "a class too large": BatchRequest(seeds, steps=1, classes=np.array([0, 2**62])),
    }
    for name, each in wanted.items():
        yield Bad(f"batch: {name}", BATCH, pack_request(each), ARRAYS)
    yield Bad("batch: another model", BATCH, pack_request(BatchRequest(seeds, steps=1, model="x")), ARRAYS, (404,))
    yield Bad("batch: as json", BATCH, b"{}", JSON, (415,))
    whole, dice = pack_request(BatchRequest(seeds, 0.5, 2, images=images)), random.Random(2)
    for i in range(60):
        data = bytearray(whole)
        data[dice.randrange(len(data))] = dice.randrange(256)
        yield Bad(f"batch: changed {i}", BATCH, bytes(data), ARRAYS, (200, 400))


def routes_and_headers() -> Iterator[Bad]:
    for path in (
        "/",
        "/v1",
        "/v1/",
        "/v1/images",
        "/v2/models",
        "/v1/models/",
        "/v1/models/../../etc/passwd",
        "/%00",
        "/%E9",
    ):
        yield Bad(f"path {path}", path, b"", None, (404,), "GET")
    for path in (GENERATIONS, EDITS, VARIATIONS, BATCH):
        for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            yield Bad(f"{method} {path}", path, b"", None, (405,), method)
    odd = {
        "x-request-id": b"\xff\xfe",
        "x-request-timeout-seconds": "0.000001",
        "x-request-disconnect-disabled": b"\xff",
        "serve-multiplexed-model-id": b"\xc3\x28",
        "x-session-id": b"\xff",
        "traceparent": "00-zz-zz-01",
        "authorization": b"Bearer \xff\xfe",
        "content-encoding": "gzip",
        "expect": "200-ok",
        "cookie": "a=" + "b" * 9000,
    }
    for name, value in odd.items():
        yield Bad(f"header {name}", "/v1/models", b"", None, (200,), "GET", {name: value})
        body = b'{"prompt": "cat"}'
        yield Bad(f"header {name} with a body", GENERATIONS, body, JSON, (400,), headers={name: value})
    for name, value in (("host", "evil.example"), ("origin", "https://evil.example")):
        yield Bad(f"header {name}", "/v1/models", b"", None, (401,), "GET", {name: value})
