"""Whatever a server is sent, it answers in time, in the documented shape, and never with a 500."""

import http.client
import json
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pytest

from adapters.server.errors import CODES
from adapters.server.formats import ARRAYS, BatchRequest, pack_request
from tests.adapters.server.asking import BATCH, EDITS, GENERATIONS, JSON, VARIATIONS, get, png
from tests.adapters.server.test_formats import BAD

FORM = "multipart/form-data; boundary=boundary"
TOO_LONG = 25.0
"""Seconds."""


class Sent(NamedTuple):
    """A request, and the statuses that it may be answered with."""

    path: str
    body: bytes = b""
    kind: str | None = None
    statuses: tuple[int, ...] = (400,)
    method: str = "POST"
    header: tuple[str, Any] = ("", None)


WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    0.5,
    10**400,
    1e308,
    "",
    "x",
    "\ud800",
    [1],
    {"a": 1},
    "9" * 5000,
)
FIELDS = (
    *("n", "seed", "num_inference_steps", "guidance_scale", "class_label"),
    *("prompt", "model", "size", "negative_prompt", "response_format", "stream"),
)
BODIES = (
    *(
        "prompt=7",
        "",
        "[]",
        "{}",
        '{"prompt":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"prompt": "a cat"}',
    ),
    *('{"prompt": "7", "guidance_scale": NaN}', '{"prompt": "7", "seed": ' + "1" * 10_000 + "}"),
    *('{"prompt": "7", "image_url": "file:///etc/passwd"}', '{"prompt": "7", "\\ud800": 1}'),
    *(
        '{"prompt": "", "class_label": 62}',
        '{"prompt": "7", "size": "28x29"}',
        '{"prompt": "7", "guidance_scale": 2}',
    ),
)


def json_bodies() -> Iterator[Sent]:
    # None is what most fields are without a value, and "" is a prompt: such requests are answered
    for name in FIELDS:
        for value in WRONG:
            content = json.dumps({"prompt": "7", "num_inference_steps": 1, name: value})
            yield Sent(GENERATIONS, content.encode(), JSON, (200, 400, 404))
    for text in BODIES:
        yield Sent(GENERATIONS, text.encode(), JSON)
    yield Sent(GENERATIONS, '{"prompt": "é"}'.encode("latin-1"), JSON)
    yield Sent(GENERATIONS, b'{"prompt": "' + b"a" * 2**21 + b'"}', JSON, (413,))
    for kind in ("text/plain", FORM, ARRAYS, "", None, "application/json2"):
        yield Sent(GENERATIONS, b'{"prompt": "7"}', kind, (415,))


def form(fields, *files) -> bytes:
    parts = [f'form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    for name, data in files:
        parts.append(f'form-data; name="{name}"; filename="../../x.png"\r\n\r\n'.encode() + data)
    return (
        b"".join(b"--boundary\r\nContent-Disposition: " + part + b"\r\n" for part in parts)
        + b"--boundary--\r\n"
    )


GOOD = {"prompt": "7", "num_inference_steps": "1", "strength": "1"}
NOISE = png(np.random.default_rng(0).integers(0, 256, (28, 28)).astype(np.uint8))
FILES = (
    *(
        NOISE[:400],
        b"",
        b"\x80\x04cos\nsystem\n.",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    ),
    png(np.zeros((2049, 2049), np.uint8)),  # a few kilobytes, of more pixels than the limit
)


def forms() -> Iterator[Sent]:
    one = ("image", NOISE)
    for name in ("n", "seed", "strength", "class_label"):
        for value in ("", "-1", "1e999", "nan", "9" * 5000, "１７０", "0x7"):
            yield Sent(EDITS, form(GOOD | {name: value}, one), FORM)
    for data in FILES:
        yield Sent(EDITS, form(GOOD, ("image", data)), FORM)
    whole = form(GOOD, one)
    for path in (EDITS, VARIATIONS):
        for body in (
            form(GOOD | {"image": "http://127.0.0.1/x.png"}),
            form(GOOD, one, one),
            form(GOOD, ("mask", NOISE)),
            form({f"f{i}": i for i in range(999)}, one),
            form(GOOD | {"user": "a" * 2**21}, one),
            whole.replace(b'"strength"', b'"prompt"'),
        ):
            yield Sent(path, body, FORM)
        yield Sent(path, b"{}", JSON, (415,))
    for boundary in ("", "; boundary=other", f"; boundary={'x' * 9999}"):
        yield Sent(EDITS, whole, f"multipart/form-data{boundary}", (400, 415))
    dice = random.Random(1)
    for i in range(40):
        yield Sent((EDITS, VARIATIONS)[i % 2], whole[: dice.randrange(len(whole) - 4)], FORM)


SEEDS, IMAGES = np.zeros(2, np.uint64), np.zeros((2, 28, 28, 1), np.uint8)
REQUESTS = (
    BatchRequest(np.zeros(257, np.uint64)),
    BatchRequest(SEEDS, float("nan"), 1, images=IMAGES),
    BatchRequest(SEEDS, 0.5, 1),
    BatchRequest(SEEDS, None, 1, images=IMAGES),
    BatchRequest(SEEDS, 0.5, 1, images=IMAGES[:, 1:]),
    BatchRequest(SEEDS, steps=-(2**63)),
    BatchRequest(SEEDS, steps=1, guidance=float("nan")),
    BatchRequest(SEEDS, steps=1, size=(2**62, 2**62)),
    BatchRequest(SEEDS, steps=1, prompts=("a", "b")),
    BatchRequest(SEEDS, steps=1, negative_prompts=("a", "", "")),
    BatchRequest(SEEDS, steps=1, classes=np.array([0, 2**62])),
)


def batches() -> Iterator[Sent]:
    for data in (*BAD.values(), *map(pack_request, REQUESTS)):
        yield Sent(BATCH, data, ARRAYS)
    yield Sent(BATCH, pack_request(BatchRequest(SEEDS, steps=1, model="x")), ARRAYS, (404,))
    yield Sent(BATCH, b"{}", JSON, (415,))


HEADERS: tuple[tuple[str, Any], ...] = (
    *(
        ("x-request-id", b"\xff\xfe"),
        ("x-request-timeout-seconds", "0.000001"),
        ("traceparent", "00-zz-zz-01"),
    ),
    *(
        ("serve-multiplexed-model-id", b"\xc3\x28"),
        ("x-session-id", b"\xff"),
        ("content-encoding", "gzip"),
    ),
    *(("authorization", b"Bearer \xff\xfe"), ("expect", "200-ok"), ("cookie", "a=" + "b" * 9000)),
)
"""Ray's proxy acts on some of them, or fails over their bytes."""


def paths() -> Iterator[Sent]:
    for path in ("/", "/v1/images", "/v2/models", "/v1/models/../../etc/passwd", "/%00", "/%E9"):
        yield Sent(path, statuses=(404,), method="GET")
    for path in (GENERATIONS, EDITS, BATCH):
        for method in ("GET", "PUT", "OPTIONS", "TRACE"):
            yield Sent(path, statuses=(405,), method=method)


def odd_headers() -> Iterator[Sent]:
    for header in HEADERS:
        yield Sent("/v1/models", statuses=(200,), method="GET", header=header)
        yield Sent(GENERATIONS, b'{"prompt": "cat"}', JSON, header=header)


def check(url: str, sent: Sent) -> int:
    """Send the request, and check its answer; its status."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TOO_LONG)
    try:
        connection.putrequest(sent.method, sent.path)
        for name, value in (
            sent.header,
            ("Content-Type", sent.kind),
            ("Content-Length", str(len(sent.body))),
        ):
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(sent.body)
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    assert response.status in sent.statuses, (sent, response.status, body[:200])
    if response.status != 200:
        check_shape(response.status, body)
    return response.status


def check_shape(status: int, body: bytes) -> None:
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == CODES[status][0]
    assert error["message"].endswith(".")


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # Starlette closes no broken form's file
@pytest.mark.parametrize("requests", [json_bodies, forms, batches, paths, odd_headers])
def test_malformed_requests_are_refused_in_the_documented_shape(small: str, requests: Any) -> None:
    statuses = [check(small, sent) for sent in requests()]
    assert len([status for status in statuses if status != 200]) > 8
    assert get(small, "/readyz") == (200, {"status": "ok"})


def raw(url: str, head: str, *pieces: bytes, ends: bool = False) -> bytes:
    """What comes back on a connection on which this is sent, and which is then half closed if it
    `ends`.
    """
    address = urlsplit(url)
    answer = b""
    with socket.create_connection((address.hostname, address.port), TOO_LONG) as connection:
        with suppress(OSError):  # refused while it is sent
            for piece in (head.replace("\n", "\r\n").encode() + b"\r\n\r\n", *pieces):
                connection.sendall(piece)
            if ends:
                connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while not answer.endswith(b"}}") and (piece := connection.recv(65536)):
                answer += piece
    return answer


def test_a_body_too_large_is_not_read_or_counted_as_it_comes_and_one_without_end_is_given_up(small):
    head = f"POST {GENERATIONS} HTTP/1.1\nHost: localhost\nContent-Type: {JSON}\n"
    answer = raw(small, f"{head}Content-Length: {2**40}", b"{")
    assert answer.startswith(b"HTTP/1.1 413 ")
    check_shape(413, answer.partition(b"\r\n\r\n")[2])
    pieces = [b"10000\r\n" + b"a" * 2**16 + b"\r\n"] * 64
    assert raw(small, f"{head}Transfer-Encoding: chunked", *pieces).startswith(b"HTTP/1.1 413 ")
    raw(small, f"{head}Content-Length: 100", b"{", ends=True)
    assert get(small, "/readyz") == (200, {"status": "ok"})
