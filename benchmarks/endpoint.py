"""Measure how near a run comes to an endpoint's own rate limit.

    python benchmarks/endpoint.py [--images N]

A server in a process of its own answers every request after 200 ms and lets 32 requests in at once.
In the first part the recipe states that limit. In the second the client finds out from the 429s
that it gets. Adapter and dispatcher are those of a run. Writes results/endpoint.md.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import multiprocessing
import resource
import tempfile
import threading
import time
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from PIL import Image
from record import keep, where

from adapters.openai_images import OpenAIImages
from pe.dispatch.dispatcher import Dispatcher
from pe.plugins.protocols import as_generator
from pe.store.writer import RunWriter

LATENCY, LIMIT, SIDE = 0.2, 32, 64
IDEAL = LIMIT / LATENCY


class Server:
    """Answers images/generations with one image after LATENCY; beyond LIMIT at once it says 429."""

    def __init__(self) -> None:
        buffer = io.BytesIO()
        pixels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(buffer, "PNG")
        image = base64.b64encode(buffer.getvalue()).decode()
        self._body = json.dumps({"created": 1, "data": [{"b64_json": image}]}).encode()
        self._inside = 0

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        status, body = (
            429,
            b'{"error": {"message": "Too many requests", "code": "rate_limit_exceeded"}}',
        )
        if self._inside < LIMIT:
            self._inside += 1
            await asyncio.sleep(LATENCY)
            self._inside -= 1
            status, body = 200, self._body
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def serve(told: Connection) -> None:
    server = uvicorn.Server(uvicorn.Config(Server(), port=0, log_level="critical", lifespan="off"))

    async def run() -> None:
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        told.send(server.servers[0].sockets[0].getsockname()[1])
        await task

    asyncio.run(run())


class Watch(threading.Thread):
    """Notes, four times a second: images there, CPU seconds used, and resident memory, MB."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__(daemon=True)
        self._journal = dispatcher.run.journal
        self.notes: list[tuple[float, int, float, float]] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.25):
            usage = resource.getrusage(resource.RUSAGE_SELF)
            memory = int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
            spent = self._journal._totals
            now = time.monotonic()
            self.notes.append(
                (now, spent.answers if spent else 0, usage.ru_utime + usage.ru_stime, memory)
            )


def measure(
    port: int, images: int, concurrency: int
) -> tuple[float, list[tuple[float, int, float, float]], int]:
    """Seconds for `images`, the notes taken, and calls made."""
    api = OpenAIImages(
        server=None,
        model="m",
        prompts="a",
        image_size=SIDE,
        base_url=f"http://127.0.0.1:{port}/v1",
        key_env=None,
        concurrency=concurrency,
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        RunWriter.create(Path(folder) / "run", {"recipe.yaml": b""}) as run,
    ):
        dispatcher = Dispatcher(as_generator(api), run, ("a",), seed=0)
        run.journal.totals()
        watch = Watch(dispatcher)
        watch.start()
        started = time.monotonic()
        dispatcher.random(np.zeros(images, dtype=np.int32))
        seconds = time.monotonic() - started
        watch.over.set()
        return (
            seconds,
            [(at - started, *rest) for at, *rest in watch.notes],
            run.journal.totals().usage.calls,
        )


async def bare(port: int, calls: int) -> float:
    """Calls a second of LIMIT plain sockets that do nothing but send and read: what two cores can
    attain at all.
    """

    async def ask(times: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(times):
            writer.write(
                b"POST /v1/images/generations HTTP/1.1\r\nHost: bare\r\nContent-Length: 2\r\n\r\n{}"
            )
            await reader.readuntil(b"\r\n\r\n")
            while size := int(await reader.readline(), 16):
                await reader.readexactly(size + 2)
            await reader.readline()
        writer.close()

    started = time.monotonic()
    await asyncio.gather(*(ask(calls // LIMIT) for _ in range(LIMIT)))
    return calls // LIMIT * LIMIT / (time.monotonic() - started)


def steady(notes: list[tuple[float, int, float, float]], since: float = 0.0) -> float:
    """Images a second from `since` seconds on, or from the first answer, until the last is
    there.
    """
    late = [note for note in notes if note[0] >= since and note[1] > 0]
    last = next(note for note in late if note[1] == late[-1][1])
    return (last[1] - late[0][1]) / (last[0] - late[0][0])


def reached(notes: list[tuple[float, int, float, float]], share: float) -> float:
    """Seconds until a stretch of 2 seconds has `share` of the ideal rate."""
    for first, last in zip(notes, notes[8:], strict=False):
        if (last[1] - first[1]) / (last[0] - first[0]) >= share * IDEAL:
            return last[0]
    return float("inf")


def flat(values: list[float]) -> str:
    """The mean of the first and of the last quarter."""
    quarter = max(1, len(values) // 4)
    return f"{np.mean(values[:quarter]):.3g} → {np.mean(values[-quarter:]):.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2000)
    arguments = parser.parse_args()
    ours, its = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(its,), daemon=True)
    server.start()
    port = ours.recv()
    try:
        attainable = asyncio.run(bare(port, arguments.images))
        seconds, notes, _ = measure(port, arguments.images, LIMIT)
        unknown, found, calls = measure(port, 2 * arguments.images, 2 * LIMIT)
    finally:
        server.terminate()
        server.join()
    cpu = [(b[2] - a[2]) / (b[0] - a[0]) for a, b in pairwise(notes)]
    text = [
        f"## An endpoint of {LATENCY * 1000:.0f} ms that lets {LIMIT} requests in at once "
        f"({IDEAL:.0f} a second)",
        "",
        f"{where()}; client and server share them. One image of {SIDE}×{SIDE} a request. `python "
        "benchmarks/endpoint.py`",
        "",
        f"- told the limit: {arguments.images:,} images; {steady(notes):.0f} a second between the "
        f"first answer and the last, {steady(notes) / IDEAL:.1%} of the ideal (target: at least 95 "
        f"%); {seconds:.1f} s in all, with loading the SDK and gathering the population",
        f"- {LIMIT} bare sockets that only send and read, on the same cores: {attainable:.0f} a "
        f"second, {attainable / IDEAL:.1%} of the ideal; the above is "
        f"{steady(notes) / attainable:.1%} of that",
        f"- client meanwhile, first quarter → last quarter: {flat(cpu)} cores, "
        f"{flat([note[3] for note in notes])} MB resident",
        f"- not told, {2 * LIMIT} at once at most: {2 * arguments.images:,} in {unknown:.1f} s by "
        f"{calls:,} calls; 80 % of the limit over 2 seconds reached after "
        f"{reached(found, 0.8):.1f} s (target: within 20 s); {steady(found, 5.0) / IDEAL:.1%} of "
        "it from second 5 on",
    ]
    keep("endpoint.md", "\n".join(text))


if __name__ == "__main__":
    main()
