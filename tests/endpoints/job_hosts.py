"""Every host that answers by jobs: its scripted server, and our adapter for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adapters.comfyui import ComfyUI
from adapters.http.jobs import JobHost as Generator
from adapters.job_hosts import BFL, Fal, Replicate
from tests.endpoints.comfy_server import ComfyServer, workflows
from tests.endpoints.hosted_servers import BFLServer, FalServer, ReplicateServer
from tests.endpoints.job_host import JobHost
from tests.endpoints.serving import serving

SERVERS: dict[str, Callable[..., JobHost]] = {
    "bfl": BFLServer,
    "comfyui": ComfyServer,
    "fal": FalServer,
    "replicate": ReplicateServer,
}


def generator(kind: str, url: str, folder: Path, **settings: Any) -> Generator[Any]:
    """Our adapter, of a host at `url`."""
    given = {"base_url": url, "prompts": "a {label}", "image_size": 16, "timeout": 1.0, "poll": 0.002, **settings}
    if kind == "comfyui":
        return ComfyUI(**workflows(folder) | given)
    given = {"key_env": None, **given}
    if kind == "bfl":
        return BFL(**{"model": "flux-2-pro", "size": (16, 16)} | given)
    if kind == "replicate":
        return Replicate(**{"model": "black-forest-labs/flux-dev", "degree_field": "prompt_strength"} | given)
    models = {"model": "fal-ai/flux/dev", "variation_model": "fal-ai/flux/dev/image-to-image"}
    return Fal(**models | {"degree_field": "strength", "description_url": f"{url}/openapi.json"} | given)


@contextmanager
def hosted(kind: str, folder: Path, **settings: Any) -> Iterator[tuple[Generator[Any], JobHost]]:
    """The adapter over a server of its own."""
    server = SERVERS[kind]()
    with serving(server) as url:
        yield generator(kind, url, folder, **settings), server
