"""What the scripted hosts share that answer by jobs."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

from starlette.applications import Starlette

from adapters.prompts import LADDER
from tests.endpoints.faults import Script, fail, lost
from tests.endpoints.sd_server import png


@dataclass
class Job:
    """One job.

    Attributes:
        body: what it was asked for.
        images: PNG files.
        outcome: "" for a result, or how it ends without one.
        looks: how often it was looked at.
    """

    body: dict[str, Any]
    images: list[bytes]
    outcome: str = ""
    looks: int = 0


@dataclass
class JobHost:
    """Takes jobs, and ends each at its second look.

    Attributes:
        knows: ends without a result that such a host has.
        submit_at: which request submits the first job.
        script: which requests have transport faults; `lost`: the request is heeded, and its answer is lost.
        outcomes: of the next jobs: refusal, failed, cancelled, unknown, fewer, torn, large, elsewhere; "" a result.
        finished: how many jobs may end; those after them stay at work.
        side: of the images.
        jobs: id → job.
        submitted: how often each id was submitted.
        fetched: headers of the requests for images that need no key.
    """

    knows: ClassVar[tuple[str, ...]] = ("refusal", "failed", "cancelled")
    submit_at: ClassVar[int] = 0
    script: Script = field(default_factory=Script)
    outcomes: list[str] = field(default_factory=list)
    finished: float = float("inf")
    side: int = 16
    jobs: dict[str, Job] = field(default_factory=dict)
    submitted: Counter[str] = field(default_factory=Counter)
    fetched: list[dict[str, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._app = Starlette(routes=self.routes())

    def routes(self) -> list[Any]:
        raise NotImplementedError

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.base = f"http://{headers['host']}"
        self.script.keys.add(headers.get("authorization", headers.get("x-key", "")))
        fault = self.script.next()
        if fault != "lost" and fault and await fail(fault, send):
            return
        await self._app(scope, receive, lost if fault == "lost" else send)

    def start(self, name: str, body: dict[str, Any], shades: list[int]) -> None:
        """Take a job on; `shades`: of its images."""
        with self._lock:
            outcome = self.outcomes.pop(0) if self.outcomes else ""
            shades = shades[:-1] if outcome == "fewer" else shades
            images = [png(shade, self.side + (outcome == "large")) for shade in shades]
            images = [image[:60] for image in images] if outcome == "torn" else images
            self.submitted[name] += 1
            self.jobs[name] = Job(body, images, outcome)

    def look(self, name: str) -> Job | None:
        """A job; None: it is not known."""
        with self._lock:
            job = self.jobs.get(name)
            if job is None or job.outcome == "unknown":
                return None
            job.looks += 1
            return job

    def ended(self, name: str) -> bool:
        place = list(self.jobs).index(name)
        return self.jobs[name].looks > 1 and place < self.finished

    @property
    def held(self) -> int:
        """Jobs that were looked at, and may not end."""
        return sum(job.looks > 0 for place, job in enumerate(self.jobs.values()) if place >= self.finished)


def shades_of(seed: int, count: int, parent: int | None, degree: float) -> list[int]:
    """Of new images by the seed; of variations between the parent's and such a one, by the degree."""
    fresh = [(seed * 37 + i) % 256 for i in range(count)]
    return fresh if parent is None else [round(parent + degree * (shade - parent)) for shade in fresh]


def worded(prompt: str) -> float:
    """The degree that a prompt puts into words."""
    return next((degree for degree, words in LADDER.items() if words in prompt), 1.0)
