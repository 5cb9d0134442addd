"""The settings of endpoints, and the profiles of known servers.

A profile tells what parts of a request a server heeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import BeforeValidator, Field, model_validator

from adapters.prompts import Ladder, Texts, TextsByLabel
from pe.data.decoding import Channels, Resize
from pe.errors import RecipeError
from pe.plugins.settings import Count, Settings

API = Literal["openai_images", "sdapi"]
OpenAIServer = Literal[
    "azure",
    "litellm",
    "localai",
    "openai",
    "ovms",
    "pe",
    "sglang",
    "stable-diffusion.cpp",
    "vllm-omni",
    "xinference",
]
"""Servers with OpenAI's images API."""
SDServer = Literal["a1111", "forge", "sdnext", "stable-diffusion.cpp", "xinference"]
"""Servers with AUTOMATIC1111's /sdapi/v1."""


@dataclass(frozen=True)
class Profile:
    """The facts that we use about a server that speaks an API: see servers.yaml."""

    server: str  # the server's name in the setting `server`
    title: str  # the name that people use
    degree: str = "no field"  # what the server does with a degree that is sent as a number
    seed: str = "no field"  # what the server does with a seed
    # what the server does with several parents in one request
    several: str = "references for one image"
    # settings that the server implies, in place of their defaults
    sets: Mapping[str, Any] = field(default_factory=dict)
    # ways to vary a sample: `edit`, `variations`, `img2img`; empty: the server cannot vary one
    varies: Sequence[str] = ("edit",)
    api: API = "openai_images"  # the kind of generator that speaks to the server


_TABLE = Path(__file__).with_name("servers.yaml")
PROFILES = tuple(Profile(**facts) for facts in yaml.safe_load(_TABLE.read_text(encoding="utf-8")))


def profile(api: API, server: str) -> Profile | None:
    """Return the profile of a server, or None if it has none."""
    return next((each for each in PROFILES if (each.api, each.server) == (api, server)), None)


# The sections that recipes of endpoints share: how it is reached, what is asked of it, what its
# images become.

Scalar = str | int | float | bool
Seconds = Annotated[float, Field(gt=0)]


Side = Annotated[int, Field(ge=1, le=8192)]
Size = Annotated[
    tuple[Side, Side],
    BeforeValidator(
        lambda size: (size, size) if isinstance(size, int) else size, Side | tuple[Side, Side]
    ),
]
"""(height, width) in pixels. A recipe may give one number for both."""


class Connection(Settings):
    """Connection settings. They may differ between machines.

    Attributes:
        key_env: the environment variable that holds the key; None: no key, unless another setting
            brings one.
        key_file: a file that holds the key, read before each request.
        key_command: a program and its arguments, whose output is the key; run again when the key is
            refused.
        basic_auth_env: the environment variable that holds user:password, for HTTP Basic
            authentication.
        headers_env: further headers, each with the environment variable that holds its value.
        client_cert: a file with this client's certificate (PEM).
        client_key: a file with the certificate's private key (PEM); None: the key stands in
            `client_cert`.
        timeout: most seconds to connect, and from one byte to the next.
        total_timeout: seconds until the last byte of an answer's body; None: 900, or twice
            `timeout` if that is more.
        tries: how often a request is made before the server counts as away.
        patience: seconds that a server which is away, or throttles, is waited for; then the run
            stops, to be resumed.
    """

    key_env: str | None = None
    key_file: Path | None = None
    key_command: Annotated[list[str], Field(min_length=1)] | None = None
    basic_auth_env: str | None = None
    headers_env: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")], str] | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    timeout: Seconds = 180.0
    total_timeout: Seconds | None = None
    tries: Count = 6
    patience: Seconds = 900.0

    @property
    def deadline(self) -> float:
        """Seconds from a request to the last byte of its answer, at the most."""
        return max(900.0, 2 * self.timeout) if self.total_timeout is None else self.total_timeout

    @property
    def key_expires(self) -> bool:
        """True if a new key can be read after one was refused."""
        return self.key_file is not None or self.key_command is not None

    @model_validator(mode="after")
    def _check_connection(self) -> Self:
        # A class may have a default of `key_env`, which any other way to bring a key replaces.
        keys = ("key_env", "key_file", "key_command", "basic_auth_env")
        stated = self.model_dump(
            include=set(keys),
            exclude_unset=True,
            exclude_none=True,
        )
        if len(stated) > 1:
            names = " and ".join(f"`{name}`" for name in keys if name in stated)
            raise RecipeError(f"{names} are set, but an endpoint takes only one of them.")
        if self.client_key is not None and self.client_cert is None:
            raise RecipeError("`client_key` needs `client_cert`. Name the certificate's file, too.")
        for name in ("base_url", "url"):
            urls = getattr(self, name, None)
            for url in urls if isinstance(urls, list) else [urls or ""]:
                if "@" in urlsplit(url).netloc:
                    raise RecipeError(
                        f"`{name}` holds a user or a password, which a run would store. Remove "
                        "them, and name in `basic_auth_env` an environment variable that holds "
                        "user:password."
                    )
        return self


class Concurrent(Connection):
    """Connection settings of an endpoint that takes several requests at once.

    Attributes:
        concurrency: most requests at once.
    """

    concurrency: Count = 1


class Pictures(Settings):
    """Prompts, and the form of the samples.

    Attributes:
        prompts: a text, a list to draw from, or either for each label; `{label}` is replaced.
        image_size: height and width of the samples, pixels, or one number for both; images that
            come are resized to it.
        resize: how an image is brought to `image_size`: crop, fit or stretch.
        channels: 3, or 1 for grey samples.
    """

    prompts: TextsByLabel | None = None
    image_size: Size | None = None
    resize: Resize = "crop"
    channels: Channels = 3


class Prompted(Concurrent, Pictures):
    """An endpoint that draws from prompts.

    Attributes:
        keep_size: keep, beside each sample, the image as it was drawn, and vary that image: true,
            where the endpoint draws at one known `size`; or height and width in pixels, to which
            drawn images are resized. False: samples are varied at `image_size`, and detail is lost
            in every iteration.
    """

    default_url: ClassVar[str] = ""
    strength_field: ClassVar[str | None] = None

    prompts: TextsByLabel
    image_size: Size
    keep_size: bool | Size = False
    base_url: str | None = None

    @model_validator(mode="after")
    def _check_drawn(self) -> Self:
        if self.keep_size is True and self.fixed_size is None:
            raise RecipeError(
                "`keep_size: true` needs one known size at which the endpoint draws. Set `size`, "
                "or the pixels to keep (`keep_size: 512`)."
            )
        return self

    @property
    def url(self) -> str:
        """Address that samples are sent to."""
        return self.base_url or self.default_url

    @property
    def exact_field(self) -> str | None:
        """Name of the field that takes the degree as a number, or None if words tell it."""
        return self.strength_field

    @property
    def ladder(self) -> Ladder:
        """Wordings and fields that tell the endpoint a degree of variation."""
        return Ladder.of(
            getattr(self, "wordings", None), self.exact_field, exact=self.exact_field is not None
        )

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """(height, width) that every image must have. None: any."""
        return None

    @property
    def kept_size(self) -> tuple[int, int] | None:
        """(height, width) of a second copy of each sample, which variations start from, or None."""
        size = self.fixed_size if self.keep_size is True else self.keep_size or None
        return None if size == self.image_size else size


class Worded(Prompted):
    """An endpoint that takes a degree of variation in words, and perhaps in a field of its own.

    Attributes:
        wordings: degree → text; a degree is put in the text of the first entry at or above it.
            None: the shipped ones, or no words if `degree_exact` is true.
        degree_field: a field in which the degree is sent as a number, too (`strength`); many
            servers ignore it.
        degree_exact: the server is known to heed `degree_field`: the number tells the degree,
            without words.
    """

    wordings: dict[float, Texts] | None = None
    degree_field: str | None = None
    degree_exact: bool = False

    @property
    def ladder(self) -> Ladder:
        """Wordings and fields that tell the endpoint a degree of variation."""
        return Ladder.of(
            self.wordings,
            self.degree_field,
            self.degree_exact,
        )
