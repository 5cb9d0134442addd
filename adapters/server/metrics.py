"""The engine's metrics.

On each node Ray exports them beside its own; /metrics gathers both.
"""

from __future__ import annotations

from contextlib import suppress
from urllib.request import ProxyHandler, build_opener

PREFIX = "pe_server_"

_SECONDS = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0]
_SIZES = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]


class Metrics:
    """Metrics of a replica for Prometheus."""

    def __init__(self) -> None:
        from ray.serve.metrics import Counter, Histogram

        self._images = Counter(
            f"{PREFIX}images", "Images made by the engine, refused and failed ones included."
        )
        self._engine = Counter(f"{PREFIX}engine_seconds", "Seconds that the engine was at work.")
        self._batch = Histogram(f"{PREFIX}batch_images", "Images in a batch.", _SIZES)
        self._queue = Histogram(
            f"{PREFIX}queue_seconds", "Seconds that a batch's oldest waited.", _SECONDS
        )

    def count_batch(self, images: int, waiting: float, seconds: float) -> None:
        """Count a batch."""
        self._images.inc(images)
        self._engine.inc(seconds)
        self._batch.observe(images)
        self._queue.observe(waiting)


def exported() -> str:
    """Return our metrics and those of Ray Serve, of all nodes, in Prometheus' text format."""
    import ray

    direct = build_opener(ProxyHandler({}))
    lines = []
    for node in ray.nodes():
        if not node["Alive"] or node.get("MetricsExportPort", -1) <= 0:
            continue
        # A node that does not answer is missing here, and soon from Ray's own view.
        with (
            suppress(OSError),
            direct.open(
                f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics",
                timeout=5,
            ) as page,
        ):
            lines += page.read().decode().replace(f"ray_{PREFIX}", PREFIX).splitlines()
    chosen = [line for line in lines if PREFIX in line or "ray_serve_" in line]
    return "".join(f"{line}\n" for line in dict.fromkeys(chosen))
