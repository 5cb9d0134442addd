"""A forward proxy on loopback: requests with an absolute address, and tunnels by CONNECT."""

from __future__ import annotations

import http.client
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@contextmanager
def proxying(seen: list[str]) -> Iterator[str]:
    """The address of a proxy that notes in `seen` each request's first two words."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_CONNECT(self) -> None:
            seen.append(f"CONNECT {self.path}")
            host, _, port = self.path.rpartition(":")
            with socket.create_connection((host, int(port))) as upstream:
                self.send_response(200)
                self.end_headers()
                _pump(self.connection, upstream)
            self.close_connection = True

        def do_POST(self) -> None:
            seen.append(f"{self.command} {self.path}")
            address = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with closing(http.client.HTTPConnection(address.netloc)) as upstream:
                upstream.request(self.command, address.path, body, dict(self.headers))
                with closing(upstream.getresponse()) as answer:
                    try:
                        content = answer.read()
                    except http.client.IncompleteRead:
                        return
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers["Content-Type"] or "")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _pump(one: socket.socket, other: socket.socket) -> None:
    """Pass bytes both ways until one side ends."""
    while True:
        for ready in select.select([one, other], [], [])[0]:
            data = ready.recv(65536)
            if not data:
                return
            (other if ready is one else one).sendall(data)
