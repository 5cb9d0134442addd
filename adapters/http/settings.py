"""The settings of endpoints, and what each known server heeds of the requests that its API allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from adapters.prompts import Ladder, Texts, TextsByLabel
from pe.data.decoding import Channels, Resize
from pe.errors import RecipeError
from pe.plugins.settings import Count, Settings

API = Literal["openai_images", "sdapi"]
OpenAIServer = Literal[
    "auto",
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
SDServer = Literal["a1111", "auto", "forge", "sdnext", "stable-diffusion.cpp", "xinference"]
"""Servers with AUTOMATIC1111's /sdapi/v1."""


@dataclass(frozen=True)
class Profile:
    """One server behind one API: a row of the table in docs/endpoints.md.

    Attributes:
        server: as the setting `server` names it.
        title: as people call it.
        evidence: how this was found (measured, from source or documented) and in which project, commit or version.
        varies: how its samples are varied: `edit`, `variations`, `img2img`; none: not at all.
        degree: what it does with a degree as a number.
        seed: what it does with a seed.
        several: what it does with several parents in one request.
        refusals: how an answer of its content filter looks.
        sets: settings that it stands for, in place of their defaults.
        api: the kind of generator that speaks to it.
    """

    server: str
    title: str
    evidence: str
    varies: tuple[str, ...] = ("edit",)
    degree: str = "no field"
    seed: str = "no field"
    several: str = "references for one image"
    refusals: str = "no filter in its routes"
    sets: Mapping[str, Any] = field(default_factory=dict)
    api: API = "openai_images"


_sd_profile = partial(Profile, varies=("img2img",), degree="exact", seed="heeded", api="sdapi")

PROFILES = (
    Profile(
        "openai",
        "OpenAI",
        "documented (API reference, 2026-10; gpt-image models refuse `response_format`)",
        refusals="400, `moderation_blocked`",
        sets={"response_format": None},
    ),
    Profile(
        "azure",
        "Azure OpenAI",
        "documented (API reference, 2026-10)",
        refusals="400, `contentFilter`",
        sets={"response_format": None},
    ),
    Profile(
        "sglang",
        "SGLang",
        "from source (sglang 0230ddc, 0730031)",
        degree="dropped",
        seed="heeded (`seed`)",
        sets={"seed_field": "seed"},
    ),
    Profile(
        "vllm-omni",
        "vLLM-Omni",
        "from source (vllm-omni 005fd8e)",
        degree="`strength`, by Z-Image alone",
        seed="heeded (`seed`)",
        sets={"seed_field": "seed", "degree_field": "strength"},
    ),
    Profile(
        "xinference",
        "Xinference",
        "measured (xinference 4.1.0; 7ecec16)",
        varies=("edit", "variations"),
        degree="dropped: always 0.75",
        seed="dropped",
    ),
    Profile(
        "localai",
        "LocalAI",
        "from source (LocalAI 82c191a)",
        varies=(),
        degree="–",
        seed="heeded (`seed`)",
        several="–",
        sets={"seed_field": "seed"},
    ),
    Profile(
        "ovms",
        "OpenVINO Model Server",
        "from source (model_server 7e4df0c)",
        degree="exact (`strength`)",
        seed="heeded (`rng_seed`)",
        several="refused",
        sets={"seed_field": "rng_seed", "degree_field": "strength", "degree_exact": True},
    ),
    Profile(
        "stable-diffusion.cpp",
        "stable-diffusion.cpp",
        "measured (stable-diffusion.cpp 97d2990, and of stable-diffusion-cpp-python 0.4.7)",
        degree="dropped",
        seed="dropped: always 42, or what `--seed` says",
    ),
    Profile(
        "litellm",
        "LiteLLM's proxy",
        "measured (litellm 1.106.2; images/generations of models that it does not know refuse `response_format`)",
        degree="handed on",
        seed="handed on",
        several="handed on",
        refusals="of the host behind it",
        sets={"response_format": None},
    ),
    Profile(
        "pe",
        "our own `pe serve`",
        "measured (this version)",
        varies=("edit", "variations"),
        degree="exact (`strength`); in words of its own where it varies by instruction",
        seed="heeded (`seed`)",
        several="refused",
        refusals="400, `content_policy_violation`",
        sets={"seed_field": "seed", "degree_field": "strength", "degree_exact": True},
    ),
    _sd_profile(
        "a1111",
        "AUTOMATIC1111",
        "from source (stable-diffusion-webui 0027ce1)",
        several="each is varied",
        sets={"several_parents": True},
    ),
    _sd_profile(
        "forge",
        "Forge",
        "from source (stable-diffusion-webui-forge dfdcbab)",
        several="each is varied",
        sets={"several_parents": True},
    ),
    _sd_profile(
        "sdnext",
        "SD.Next",
        "from source (sdnext 058a7f0)",
        degree="exact in img2img pipelines",
        several="up to the pipeline",
    ),
    _sd_profile(
        "stable-diffusion.cpp",
        "stable-diffusion.cpp",
        "measured (stable-diffusion.cpp 97d2990)",
        several="the first alone is varied",
    ),
    _sd_profile(
        "xinference",
        "Xinference",
        "measured (xinference 4.1.0; 7ecec16; it wants `extra: {model: NAME}` and data URIs)",
        several="fails (500); one image a request, `batch` is dropped",
        sets={"data_uri": True},
    ),
)


def profile(api: API, server: str) -> Profile | None:
    """Return the profile of a server; None: there is none."""
    return next((each for each in PROFILES if (each.api, each.server) == (api, server)), None)


def markdown() -> str:
    """Return the table of docs/endpoints.md."""
    ways = {"edit": "images/edits", "variations": "images/variations"}
    rows = ["| server (`server`) | random | variation | degree | seed | several parents | refusals | known |"]
    rows.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for each in PROFILES:
        random = "images/generations" if each.api == "openai_images" else "txt2img"
        varies = ", ".join(ways.get(way, way) for way in each.varies) or "none: it cannot be used"
        cells = (f"{each.title} (`{each.server}`)", random, varies, each.degree, each.seed, each.several)
        rows.append(f"| {' | '.join(cells)} | {each.refusals} | {each.evidence} |")
    return "\n".join(rows) + "\n"


# The sections that recipes of endpoints share: how it is reached, what is asked of it, what its images become.

Scalar = str | int | float | bool
Seconds = Annotated[float, Field(gt=0)]


def _check_sides(size: tuple[int, int]) -> tuple[int, int]:
    if not all(1 <= side <= 8192 for side in size):
        raise ValueError("each side has 1 to 8192 pixels")
    return size


Size = Annotated[
    tuple[int, int],
    BeforeValidator(lambda size: (size, size) if isinstance(size, int) else size, int | tuple[int, int]),
    AfterValidator(_check_sides),
]
"""(height, width) in pixels; a recipe may give one number for both."""


class Connection(Settings):
    """Connection settings; they may differ between machines.

    Attributes:
        key_env: the environment variable that holds the key; None: none is sent.
        key_file: a file that holds the key, read again when it changes or the key is refused.
        key_command: a program and its arguments, whose output is the key; run again when the key is refused.
        basic_auth_env: the environment variable that holds user:password, for HTTP Basic authentication.
        headers_env: further headers, each with the environment variable that holds its value.
        client_cert: a file with this client's certificate (PEM).
        client_key: a file with its private key (PEM); None: it stands in `client_cert`.
        timeout: seconds to connect, and between two bytes.
        total_timeout: seconds of a whole request; None: 900, or twice `timeout` if that is more.
        tries: how often a request is made before the server counts as away.
        patience: seconds that a server which is away, or throttles, is waited for; then the run stops, to be resumed.
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
        """Seconds of a whole request."""
        return max(900.0, 2 * self.timeout) if self.total_timeout is None else self.total_timeout

    @property
    def key_expires(self) -> bool:
        """True if a new key can be read after one was refused."""
        return self.key_file is not None or self.key_command is not None

    @model_validator(mode="after")
    def _check_one_key(self) -> Self:
        names = [name for name in ("key_file", "key_command", "basic_auth_env") if getattr(self, name) is not None]
        if self.key_env is not None and "key_env" in self.model_fields_set:
            names = ["key_env", *names]
        if len(names) > 1:
            raise RecipeError(f"{' and '.join(names)} are given: an endpoint takes one of them.")
        if self.client_key is not None and self.client_cert is None:
            raise RecipeError("client_key is given without client_cert: name the certificate's file, too.")
        return self

    @model_validator(mode="after")
    def _check_addresses(self) -> Self:
        for name in ("base_url", "url"):
            urls = getattr(self, name, None)
            for url in urls if isinstance(urls, list) else [urls or ""]:
                if "@" in urlsplit(url).netloc:
                    raise RecipeError(
                        f"{name} holds a user or a password, which a run would store: take them out of it, and name "
                        "in basic_auth_env an environment variable that holds user:password."
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
        image_size: height and width of the samples, pixels, or one number for both; what comes is resized to it.
        resize: how an image gets to `image_size`.
        channels: 3, or 1 for grey samples.
    """

    prompts: TextsByLabel | None = None
    image_size: Size | None = None
    resize: Resize = "crop"
    channels: Channels = 3


class Prompted(Concurrent, Pictures):
    """An endpoint that draws from prompts.

    Attributes:
        keep_size: keep each sample as it was drawn, too, and vary that: true, where the endpoint draws at one known
            `size`; or height and width in pixels, to which what it draws is resized. Else variations are made of
            samples at `image_size`, and detail is lost in every iteration.
    """

    default_url: ClassVar[str] = ""
    strength_field: ClassVar[str | None] = None
    """The field that takes the degree as a number, which the endpoint heeds."""

    prompts: TextsByLabel
    image_size: Size
    keep_size: bool | Size = False
    base_url: str | None = None

    @model_validator(mode="after")
    def _check_drawn(self) -> Self:
        if self.keep_size is True and self.fixed_size is None:
            raise RecipeError(
                "keep_size: true needs one known size at which the endpoint draws: give size, or the pixels to keep "
                "(keep_size: 512)."
            )
        return self

    @property
    def url(self) -> str:
        """Address that samples are sent to."""
        return self.base_url or self.default_url

    @property
    def ladder(self) -> Ladder:
        """Wordings and fields that tell the endpoint a degree of variation."""
        return Ladder.of(None, self.strength_field, exact=self.strength_field is not None)

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """(height, width) that every image must have; None: any."""
        return None

    @property
    def kept_size(self) -> tuple[int, int] | None:
        """(height, width) at which samples are kept to be varied, beside `image_size`; None: they are not."""
        size = self.fixed_size if self.keep_size is True else self.keep_size or None
        return None if size == self.image_size else size


class Worded(Prompted):
    """An endpoint that takes a degree of variation in words, and perhaps in a field of its own.

    Attributes:
        wordings: degree → text; a degree is put in the text of the first entry at or above it. None: those shipped;
            with `degree_exact` none.
        degree_field: a field in which the degree is sent as a number, too (`strength`); many servers ignore it.
        degree_exact: the server is known to heed `degree_field`: the number tells the degree, without words.
    """

    wordings: dict[float, Texts] | None = None
    degree_field: str | None = None
    degree_exact: bool = False

    @property
    def ladder(self) -> Ladder:
        """Wordings and fields that tell the endpoint a degree of variation."""
        return Ladder.of(self.wordings, self.degree_field, self.degree_exact)
