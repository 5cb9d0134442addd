"""What scripted servers share: faults, keys, imaginary models; and the jobs of hosts that answer by
jobs.
"""

import base64
import io
import json
import re
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from adapters.prompts import LADDER
from tests.endpoints.faults import Script, fail, lost, respond


def on(*routes):
    """Have a method answer requests such as `POST /v1/{model}`."""

    def marked(method):
        method.routes = routes
        return method

    return marked


def _pattern(route):
    return re.sub(
        r"{(\w+)}", lambda name: f"(?P<{name[1]}>{'.+' if name[1] == 'path' else '[^/]+'})", route
    )


@dataclass
class Asked:
    """A request: its body is JSON or a form's fields, and `file` is a form's, too."""

    fault: str
    method: str
    path: str
    content: bytes
    headers: dict[str, str]
    query: dict[str, str]
    body: Any = None
    file: bytes | None = None


class Hosted:
    """An ASGI app; the script says which of its requests fail, and notes those that come.

    The methods that `on` marks take what is asked, and the parts of its path; they return JSON,
    with its status if that is another than 200, or an image.
    """

    key_headers = ("authorization",)
    fails_at_get = True

    def __init__(self, script=None, side=64):
        self.script, self.side = script or Script(), side
        methods = [
            getattr(self, name)
            for name in dir(type(self))
            if hasattr(getattr(type(self), name), "routes")
        ]
        self._routes = [(_pattern(route), method) for method in methods for route in method.routes]

    async def __call__(self, scope, receive, send):
        request, fault = Request(scope, receive), ""
        headers = dict(request.headers)
        self.base = f"http://{headers['host']}"
        if self.fails_at_get or request.method != "GET":
            self.script.keys.add(
                next((headers[name] for name in self.key_headers if name in headers), "")
            )
            self.script.bearers.add(headers.get("authorization", ""))
            fault = self.script.next()
        if fault and await fail(fault, send):
            return
        content, query = await request.body(), dict(request.query_params)
        asked = Asked(fault, request.method, scope["path"], content, headers, query)
        if "multipart" in headers.get("content-type", ""):
            async with request.form() as form:
                asked.body = {
                    name: value for name, value in form.multi_items() if isinstance(value, str)
                }
                asked.file = next(
                    iter([await one.read() for one in form.values() if not isinstance(one, str)]),
                    None,
                )
        elif "json" in headers.get("content-type", ""):
            asked.body = json.loads(content)
        answer = self._answered(asked)
        if not isinstance(answer, Response):
            status = 200
            if isinstance(answer, tuple):
                status, answer = answer
            answer = (
                Response(answer, media_type="image/png")
                if type(answer) is bytes
                else JSONResponse(answer, status)
            )
        await answer(scope, receive, lost if fault == "lost" else send)

    def _answered(self, asked):
        for route, method in self._routes:
            if found := re.fullmatch(route, f"{asked.method} {asked.path}"):
                return method(asked, **found.groupdict())
        return 404, {"detail": "Not Found"}

    def noise(self, fault, seed, parent=None, degree=1.0):
        """A PNG file of the seed's noise; of a variation, `degree` of the way from the parent to
        it.
        """
        side = self.side + (fault == "wrong size")
        pixels = np.random.default_rng(seed).uniform(0, 255, (side, side, 3))
        if parent is not None:
            old = np.asarray(
                Image.open(io.BytesIO(parent)).convert("RGB").resize((side, side)), dtype=float
            )
            pixels = old + degree * (pixels - old)
        self.script.delivered += 1
        return encoded(np.rint(pixels).astype(np.uint8))[: 400 if fault == "truncated" else None]


class Answering:
    """An ASGI app that answers each request with this; `came` are the methods of its requests."""

    def __init__(self, answer, status=200, **headers):
        self._body = answer if isinstance(answer, bytes) else JSONResponse(answer).body
        kind = headers.pop("content_type", "application/json").encode()
        named = [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ]
        self._answer, self.came = (status, self._body, named, kind), list[str]()

    async def __call__(self, scope, receive, send):
        self.came.append(scope["method"])
        while (await receive()).get("more_body"):
            pass
        await respond(send, *self._answer)


@dataclass
class Job:
    """A job; `outcome` is "" for a result, else how it ends without one; `looks` counts how often
    it was asked for.
    """

    body: dict[str, Any]
    images: list[bytes]
    outcome: str = ""
    looks: int = 0


class JobHost(Hosted):
    """Takes jobs, and ends each at its second look; with the fault `lost` it takes one, and its
    answer is lost.
    """

    key_headers = ("authorization", "x-key")
    knows: tuple[str, ...] = ("refusal", "failed", "cancelled")
    submit_at = 0

    def __init__(self, script=None, side=16):
        super().__init__(script, side)
        self.outcomes: list[str] = []
        self.finished = float("inf")
        self.jobs: dict[str, Job] = {}
        self.submitted: Counter[str] = Counter()
        self.fetched: list[dict[str, str]] = []
        self._lock = threading.Lock()

    def start(self, name, body, shades):
        """Take a job on; `shades`: of its images."""
        with self._lock:
            outcome = self.outcomes.pop(0) if self.outcomes else ""
            images = [png(shade, self.side) for shade in shades]
            images = images[:-1] if outcome == "fewer" else images
            self.submitted[name] += 1
            self.jobs[name] = Job(body, images, outcome)

    def look(self, name):
        """A job; None: it is not known."""
        with self._lock:
            job = self.jobs.get(name)
            if job is None or job.outcome == "unknown":
                return None
            job.looks += 1
            return job

    def ended(self, name):
        return self.jobs[name].looks > 1 and list(self.jobs).index(name) < self.finished


def encoded(pixels):
    """Pixels as a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def png(shade, side):
    """A flat grey PNG file."""
    return encoded(np.full((side, side, 3), shade, dtype=np.uint8))


def pixels_of(image):
    """Of a file, of one in base64, or of a data URI."""
    data = base64.b64decode(image.rpartition(",")[2]) if isinstance(image, str) else image
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def shade_of(image):
    """Of a flat image."""
    return int(pixels_of(image)[0, 0, 0])


def shades_of(seed, count, parent, degree):
    """Of new images by the seed; of variations between the parent's and such a one, by the
    degree.
    """
    fresh = [(seed * 37 + i) % 256 for i in range(count)]
    return (
        fresh if parent is None else [round(parent + degree * (shade - parent)) for shade in fresh]
    )


def degree_of(prompt):
    """The degree that a shipped wording in a prompt tells; 1 where it holds none."""
    return next((degree for degree, text in LADDER.items() if str(text) in prompt), 1.0)
