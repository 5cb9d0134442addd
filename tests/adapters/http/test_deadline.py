"""A server that sends a byte now and then holds no worker for ever."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from adapters.http import Connection
from pe.errors import Unavailable
from tests.adapters.http.test_environment import EACH, image

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 40\r\n"


@contextmanager
def dripping(at: str) -> Iterator[str]:
    """The address of a server that answers at once, but for 40 bytes of the head or the body: they take 20 seconds."""
    listening, stopped = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the client goes before the end
            connection.recv(2**20)
            connection.sendall(HEAD if at == "head" else HEAD + b"\r\n")
            for _ in range(40):
                if stopped.wait(0.5):
                    return
                connection.sendall(b"x")

    def serve() -> None:
        while not stopped.is_set():
            try:
                connection = listening.accept()[0]
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        stopped.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)


@pytest.mark.parametrize("at", ["head", "body"])
@EACH
def test_a_whole_request_ends_after_total_timeout_though_bytes_still_come(kind: str, at: str) -> None:
    with dripping(at) as url, pytest.raises(Unavailable, match="no whole answer within total_timeout, 1 s"):
        image(kind, url, total_timeout=1, timeout=5, tries=1, patience=0.1)


def test_so_it_does_behind_a_proxy(seen: list[str]) -> None:
    with dripping("body") as url, pytest.raises(Unavailable, match="total_timeout, 1 s"):
        image("sdapi", url, total_timeout=1, timeout=30, tries=1, patience=0.1)
    assert set(seen) == {f"POST {url}/sdapi/v1/txt2img"}


def test_it_is_a_quarter_of_an_hour_or_twice_the_timeout_unless_it_is_given() -> None:
    assert Connection().deadline == 900
    assert Connection(timeout=960).deadline == 1920
    assert Connection(timeout=960, total_timeout=100).deadline == 100
