"""Real HTTP servers on loopback, for as long as a test needs them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


@contextmanager
def serving(app: object, **tls: Any) -> Iterator[str]:
    """The address of `app`, served on a free port of 127.0.0.1; by TLS if uvicorn's settings for it are given."""
    # no log_config: logging, configured anew, closes the stream of absl's handler, which pytest captures
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_config=None, lifespan="off", timeout_keep_alive=30, **tls
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(10)
