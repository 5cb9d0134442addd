"""Real HTTP servers on loopback, for as long as a test needs them."""

import asyncio
import threading
import time
from contextlib import contextmanager

import uvicorn


class _Server(uvicorn.Server):
    """uvicorn's server, which ends at once: its own looks every 0.1 s whether it is to end, and
    waits as long then.
    """

    async def main_loop(self):
        while not self.should_exit:
            await asyncio.sleep(0.01)

    async def shutdown(self, sockets=None):
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0.01)


@contextmanager
def serving(app, **tls):
    """The address of `app`, served on a free port of 127.0.0.1; by TLS if uvicorn's settings for it
    are given.
    """
    # no log_config: logging, configured anew, closes the stream of absl's handler, which pytest
    # captures
    common = {"log_config": None, "lifespan": "off", "timeout_keep_alive": 30}
    server = _Server(uvicorn.Config(app, host="127.0.0.1", port=0, **common, **tls))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.002)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
