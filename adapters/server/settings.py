"""What a server is told when it starts: the model, its replicas, the keys and the limits."""

from __future__ import annotations

import hashlib
import ipaddress
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from adapters.diffusion.device import Precision

Count = Annotated[int, Field(ge=1)]


class Limits(BaseModel):
    """What a request may ask for; all is checked before an image is decoded.

    Attributes:
        body: bytes of a request.
        pixels: of an image, sent or wanted.
        images: of a batch request.
        n: images of a request in OpenAI's form.
        steps: of an image.
        prompt: characters.
        requests: of one key under way at once, for each ingress.
        waiting: images under way at once, of all keys, for each ingress.
        seconds: that a request may take, from its last byte on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    body: Count = 2**28
    pixels: Count = 2**22
    images: Count = 256
    n: Count = 16
    steps: Count = 1000
    prompt: Count = 4000
    requests: Count = 16
    waiting: Count = 4096
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 900.0


class Settings(BaseModel):
    """A server's settings; as JSON they are the arguments of the application in a file for `serve deploy`.

    Attributes:
        model: `small`, a folder, a checkpoint's file, or a repository of the Hugging Face hub.
        precision: of the arithmetic; auto: bf16 on a GPU that computes in it, else fp32.
        generator: more of the settings of the generator that would run the model here: `diffusion`, `pixel_diffusion`
            or `improved_diffusion`.
        steps: of a request that names none.
        guidance: of a request that names none; None: the pipeline's own, and none for a model with classes. A number,
            1 included, says of such a model that the last of its classes stands for none, by which it is guided.
        max_batch: images per forward pass, at the most; None: the family's own. Memory may make it fewer.
        wait_ms: how long an idle engine waits for others before it starts a batch that is not full.
        replicas: of the engine; None: as many as are busy, up to `max_replicas`.
        max_replicas: None: as many as there is room for when the application is built.
        gpus_per_replica: shares of a GPU bound its memory, too; 0: the CPU; None: 1 where the cluster has GPUs, else 0.
        cpus_per_replica: cores; None: an even share of all but one, which Ray and the ingress have.
        key_digests: SHA-256 of each API key; without any, only connections from the machine itself are answered.
        limits: see `Limits`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    precision: Precision = "auto"
    generator: dict[str, Any] = {}
    steps: Count = 50
    guidance: Annotated[float, Field(ge=0, le=100)] | None = None
    max_batch: Count | None = None
    wait_ms: Annotated[float, Field(ge=0, le=1000)] = 4.0
    replicas: Count | None = None
    max_replicas: Count | None = None
    gpus_per_replica: Annotated[float, Field(ge=0)] | None = None
    cpus_per_replica: Annotated[float, Field(gt=0)] | None = None
    key_digests: tuple[str, ...] = ()
    limits: Limits = Limits()


def digest_of(key: str) -> str:
    """What is kept of an API key."""
    return hashlib.sha256(key.encode()).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether an address to listen on, or at which a connection came in, is this machine's alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_loopback(url: str) -> bool:
    """True if a URL names this machine by localhost or a loopback address; other names may be bound to it by a site."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
