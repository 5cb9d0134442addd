"""What Prometheus can ask of a server. Ray exports it on each node; GET /metrics brings all nodes' together."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adapters.server.batching import Batch

PREFIX = "pe_server_"

_SECONDS = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0]
_SIZES = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]
_NOISE = re.compile(r'(?:otel_scope_\w+|Component|SessionName|Version|WorkerId)="[^"]*",?')
_EXPORTED = re.compile(rf"^(?:# \w+ )?ray_{PREFIX}", re.MULTILINE)


class EngineMetrics:
    """A replica's: images, batch sizes, queue time and the engine's time (GPU time, where it has one)."""

    def __init__(self) -> None:
        from ray.serve.metrics import Counter, Histogram

        self._images = Counter(f"{PREFIX}images", "Images made by the engine, refused and failed ones included.")
        self._engine = Counter(f"{PREFIX}engine_seconds", "Seconds that the engine was at work.")
        self._batch = Histogram(f"{PREFIX}batch_images", "Images in a batch.", boundaries=_SIZES)
        self._queue = Histogram(f"{PREFIX}queue_seconds", "Seconds that a batch's oldest waited.", boundaries=_SECONDS)

    def note(self, batch: Batch) -> None:
        """Count a batch."""
        self._images.inc(batch.images)
        self._engine.inc(batch.took)
        self._batch.observe(batch.images)
        self._queue.observe(max(batch.waited, 1e-6))


class IngressMetrics:
    """An ingress's: answers by status, refusals among them, images that went out, images asked of a replica again."""

    def __init__(self) -> None:
        from ray.serve.metrics import Counter, Histogram

        tags = ("path", "status")
        self._answers = Counter(f"{PREFIX}answers", "Requests answered, by path and status.", tag_keys=tags)
        self._sent = Counter(f"{PREFIX}images_sent", "Images in answers.")
        self._again = Counter(f"{PREFIX}images_asked_again", "Images asked again because their replica died.")
        self._seconds = Histogram(f"{PREFIX}answer_seconds", "Seconds to the answer.", _SECONDS, ("path",))

    def answered(self, path: str, status: int, images: int, seconds: float) -> None:
        """Count an answer."""
        self._answers.inc(tags={"path": path, "status": str(status)})
        self._seconds.observe(max(seconds, 1e-6), tags={"path": path})
        if images:
            self._sent.inc(images)

    def asked_again(self, images: int) -> None:
        """Count what a dead replica left undone."""
        self._again.inc(images)


async def exported() -> str:
    """Our metrics of all nodes, in Prometheus' text format."""
    import aiohttp
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"] and node.get("MetricsExportPort", -1) > 0]
    urls = [f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics" for node in nodes]

    async def page(session: aiohttp.ClientSession, url: str) -> str:
        try:
            async with session.get(url) as response:
                return await response.text()
        except (aiohttp.ClientError, TimeoutError):
            return ""  # a node that does not answer is missing from the sum, and from Ray's own view soon

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        pages = await asyncio.gather(*(page(session, url) for url in urls))
    lines = (line for text in pages for line in text.splitlines() if _EXPORTED.match(line))
    return "".join(f"{line}\n" for line in dict.fromkeys(map(_plain, lines)))


def _plain(line: str) -> str:
    """A line without Ray's name in front and the labels that tell nothing."""
    return _NOISE.sub("", line.replace(f"ray_{PREFIX}", PREFIX, 1)).replace(",}", "}")
