"""The engine's metrics. Ray exports them on each node beside its own of requests, and /metrics gathers both."""

from __future__ import annotations

import asyncio

PREFIX = "pe_server_"

_SECONDS = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0]
_SIZES = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]


class Metrics:
    """Metrics of a replica for Prometheus."""

    def __init__(self) -> None:
        from ray.serve.metrics import Counter, Histogram

        self._images = Counter(f"{PREFIX}images", "Images made by the engine, refused and failed ones included.")
        self._engine = Counter(f"{PREFIX}engine_seconds", "Seconds that the engine was at work.")
        self._batch = Histogram(f"{PREFIX}batch_images", "Images in a batch.", _SIZES)
        self._queue = Histogram(f"{PREFIX}queue_seconds", "Seconds that a batch's oldest waited.", _SECONDS)

    def count_batch(self, images: int, waiting: float, seconds: float) -> None:
        """Count a batch."""
        self._images.inc(images)
        self._engine.inc(seconds)
        self._batch.observe(images)
        self._queue.observe(waiting)


async def exported() -> str:
    """Return our metrics and those of Ray Serve, of all nodes, in Prometheus' text format."""
    import aiohttp
    import ray

    async def page(session: aiohttp.ClientSession, url: str) -> str:
        try:
            async with session.get(url) as response:
                return await response.text()
        except (aiohttp.ClientError, TimeoutError):
            return ""  # a node that does not answer is missing from the sum, and from Ray's own view soon

    nodes = [node for node in ray.nodes() if node["Alive"] and node.get("MetricsExportPort", -1) > 0]
    urls = [f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics" for node in nodes]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        pages = await asyncio.gather(*(page(session, url) for url in urls))
    lines = [line.replace(f"ray_{PREFIX}", PREFIX) for text in pages for line in text.splitlines()]
    chosen = [line for line in lines if PREFIX in line or "ray_serve_" in line]
    return "".join(f"{line}\n" for line in dict.fromkeys(chosen))
