"""Whatever a server is sent, it answers in time, in the documented shape, and never with a 500."""

from __future__ import annotations

import http.client
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from adapters.server.errors import CODES
from adapters.server.formats import ARRAYS
from tests.adapters.server.malformed import BATCH, BOUNDARY, EDITS, GENERATIONS, JSON, Bad, all_bad
from tests.adapters.server.serving import Server

TOO_LONG = 25.0
"""Seconds."""


def answer_to(server: Server, bad: Bad) -> tuple[int, bytes, float]:
    """Status, body, and the seconds to them."""
    began = time.monotonic()
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=TOO_LONG)
    try:
        connection.putrequest(bad.method, bad.path.replace(" ", "%20"), skip_host="host" in bad.headers)
        for name, value in bad.headers.items():
            connection.putheader(name, value)
        if bad.kind is not None:
            connection.putheader("Content-Type", bad.kind)
        connection.putheader("Content-Length", str(len(bad.body)))
        connection.endheaders(bad.body)
        response = connection.getresponse()
        return response.status, response.read(), time.monotonic() - began
    finally:
        connection.close()


def check_shape(status: int, body: bytes) -> None:
    """OpenAI's shape, with the words that belong to the status."""
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == CODES[status][0]
    assert isinstance(error["message"], str)
    assert error["message"].endswith(".")


def test_hundreds_of_malformed_requests_are_refused_in_the_documented_shape(small: Server) -> None:
    requests = all_bad()
    assert len(requests) > 400
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda bad: answer_to(small, bad), requests))
    wrong = []
    for bad, (status, body, seconds) in zip(requests, answers, strict=True):
        if status not in bad.statuses or seconds > TOO_LONG:
            wrong.append((bad.name, bad.path, status, body[:200], seconds))
        elif status != 200:
            check_shape(status, body)
    assert not wrong, "\n".join(map(str, wrong))
    refused = sum(status != 200 for status, _, _ in answers)
    assert refused > 400
    assert small.get("/readyz") == (200, {"status": "ok"})


def raw(server: Server, head: str, *pieces: bytes) -> bytes:
    """What comes back on a connection on which this is sent."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), TOO_LONG) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        try:
            for piece in pieces:
                connection.sendall(piece)
        except OSError:
            pass  # refused while it is sent
        answer = b""
        try:
            while b"\r\n\r\n" not in answer or not answer.endswith(b"}}"):
                piece = connection.recv(65536)
                if not piece:
                    break
                answer += piece
        except ConnectionError:
            pass
        return answer


@pytest.mark.parametrize(
    ("path", "kind"), [(GENERATIONS, JSON), (EDITS, f"multipart/form-data; boundary={BOUNDARY}"), (BATCH, ARRAYS)]
)
def test_a_body_that_is_announced_as_too_large_is_not_read(small: Server, path: str, kind: str) -> None:
    answer = raw(small, f"POST {path} HTTP/1.1\nHost: localhost\nContent-Type: {kind}\nContent-Length: {2**40}", b"{")
    assert answer.startswith(b"HTTP/1.1 413 ")
    check_shape(413, answer.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("length", ["", "Content-Length: 3\n"], ids=["", "with a length that lies"])
def test_a_body_is_counted_while_it_comes(small: Server, length: str) -> None:
    head = f"POST {GENERATIONS} HTTP/1.1\nHost: localhost\nContent-Type: {JSON}\n{length}Transfer-Encoding: chunked"
    piece = b"10000\r\n" + b"a" * 2**16 + b"\r\n"
    answer = raw(small, head, *[piece] * 64)
    assert answer[:13] in (b"HTTP/1.1 413 ", b"HTTP/1.1 400 ")  # the latter from uvicorn, for two lengths


def test_a_body_that_never_ends_is_given_up(small: Server) -> None:
    address = urlsplit(small.url)
    head = f"POST {GENERATIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\nContent-Length: 100\r\n\r\n{{"
    with socket.create_connection((address.hostname, address.port), 60) as connection:
        connection.sendall(head.encode())
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
    assert small.get("/readyz") == (200, {"status": "ok"})


def test_what_is_no_http_and_what_is_a_websocket_are_sent_away(small: Server) -> None:
    assert raw(small, "nothing of the kind").startswith(b"HTTP/1.1 400 ")
    for method in ("GET", "OPTIONS"):
        answer = raw(small, f"{method} * HTTP/1.1\nHost: localhost")
        assert answer.startswith(b"HTTP/1.1 400 ")
        check_shape(400, answer.partition(b"\r\n\r\n")[2])
    upgrade = "Upgrade: websocket\nConnection: Upgrade\nSec-WebSocket-Version: 13"
    upgrade += "\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
    assert raw(small, f"GET /v1/models HTTP/1.1\nHost: localhost\n{upgrade}").startswith(b"HTTP/1.1 403 ")
