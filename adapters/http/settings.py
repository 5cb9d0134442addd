"""What each server heeds of the requests that an API allows, and where that was found; docs/endpoints.md shows it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self
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
"""Those with OpenAI's images API."""
SDServer = Literal["a1111", "auto", "forge", "sdnext", "stable-diffusion.cpp", "xinference"]
"""Those with AUTOMATIC1111's /sdapi/v1."""

_B64 = "400, `moderation_blocked`"
_NONE = "no filter in its routes"


@dataclass(frozen=True)
class Profile:
    """One server behind one API.

    Attributes:
        server: as the setting `server` names it.
        title: as people call it.
        api: the kind of generator that speaks to it.
        sets: settings that it stands for, in place of their defaults.
        varies: how its samples are varied: `edit`, `variations`, `img2img`; none: not at all.
        degree: what it does with a degree as a number.
        seed: what it does with a seed.
        several: what it does with several parents in one request.
        refusals: how an answer of its content filter looks.
        known: how that was found: `measured`, `from source` or `documented`.
        source: what was read or measured: project, and commit or version.
    """

    server: str
    title: str
    api: API
    varies: tuple[str, ...]
    degree: str
    seed: str
    several: str
    known: Literal["measured", "from source", "documented"]
    source: str
    refusals: str = _NONE
    sets: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def settings_for(self, stated: Mapping[str, Any]) -> dict[str, Any]:
        """The settings to be taken from it beside those that a recipe states, which go before.

        That the degree is exact holds for the profile's own field alone.
        """
        taken = {name: value for name, value in self.sets.items() if name not in stated}
        if stated.get("degree_field", self.sets.get("degree_field")) != self.sets.get("degree_field"):
            taken.pop("degree_exact", None)
        return taken


PROFILES = (
    Profile(
        "openai",
        "OpenAI",
        "openai_images",
        ("edit",),
        degree="no field",
        seed="no field",
        several="references for one image",
        refusals=_B64,
        known="documented",
        source="API reference, 2026-10; gpt-image models refuse `response_format`",
        sets={"response_format": None},
    ),
    Profile(
        "azure",
        "Azure OpenAI",
        "openai_images",
        ("edit",),
        degree="no field",
        seed="no field",
        several="references for one image",
        refusals="400, `contentFilter`",
        known="documented",
        source="API reference, 2026-10",
        sets={"response_format": None},
    ),
    Profile(
        "sglang",
        "SGLang",
        "openai_images",
        ("edit",),
        degree="dropped",
        seed="heeded (`seed`)",
        several="references for one image",
        known="from source",
        source="sglang 0230ddc, 0730031",
        sets={"seed_field": "seed"},
    ),
    Profile(
        "vllm-omni",
        "vLLM-Omni",
        "openai_images",
        ("edit",),
        degree="`strength`, by Z-Image alone",
        seed="heeded (`seed`)",
        several="references for one image",
        known="from source",
        source="vllm-omni 005fd8e",
        sets={"seed_field": "seed", "degree_field": "strength"},
    ),
    Profile(
        "xinference",
        "Xinference",
        "openai_images",
        ("edit", "variations"),
        degree="dropped: always 0.75",
        seed="dropped",
        several="references for one image",
        known="measured",
        source="xinference 4.1.0; 7ecec16",
    ),
    Profile(
        "localai",
        "LocalAI",
        "openai_images",
        (),
        degree="–",
        seed="heeded (`seed`)",
        several="–",
        known="from source",
        source="LocalAI 82c191a",
        sets={"seed_field": "seed"},
    ),
    Profile(
        "ovms",
        "OpenVINO Model Server",
        "openai_images",
        ("edit",),
        degree="exact (`strength`)",
        seed="heeded (`rng_seed`)",
        several="refused",
        known="from source",
        source="model_server 7e4df0c",
        sets={"seed_field": "rng_seed", "degree_field": "strength", "degree_exact": True},
    ),
    Profile(
        "stable-diffusion.cpp",
        "stable-diffusion.cpp",
        "openai_images",
        ("edit",),
        degree="dropped",
        seed="dropped: always 42, or what `--seed` says",
        several="references for one image",
        known="measured",
        source="stable-diffusion.cpp 97d2990, and of stable-diffusion-cpp-python 0.4.7",
    ),
    Profile(
        "litellm",
        "LiteLLM's proxy",
        "openai_images",
        ("edit",),
        degree="handed on",
        seed="handed on",
        several="handed on",
        refusals="of the host behind it",
        known="measured",
        source="litellm 1.106.2; images/generations of models that it does not know refuse `response_format`",
        sets={"response_format": None},
    ),
    Profile(
        "pe",
        "our own `pe serve`",
        "openai_images",
        ("edit", "variations"),
        degree="exact (`strength`); in words of its own where it varies by instruction",
        seed="heeded (`seed`)",
        several="refused",
        refusals="400, `content_policy_violation`",
        known="measured",
        source="this version",
        sets={"seed_field": "seed", "degree_field": "strength", "degree_exact": True},
    ),
    Profile(
        "a1111",
        "AUTOMATIC1111",
        "sdapi",
        ("img2img",),
        degree="exact",
        seed="heeded",
        several="each is varied",
        known="from source",
        source="stable-diffusion-webui 0027ce1",
        sets={"several_parents": True},
    ),
    Profile(
        "forge",
        "Forge",
        "sdapi",
        ("img2img",),
        degree="exact",
        seed="heeded",
        several="each is varied",
        known="from source",
        source="stable-diffusion-webui-forge dfdcbab",
        sets={"several_parents": True},
    ),
    Profile(
        "sdnext",
        "SD.Next",
        "sdapi",
        ("img2img",),
        degree="exact in img2img pipelines",
        seed="heeded",
        several="up to the pipeline",
        known="from source",
        source="sdnext 058a7f0",
    ),
    Profile(
        "stable-diffusion.cpp",
        "stable-diffusion.cpp",
        "sdapi",
        ("img2img",),
        degree="exact",
        seed="heeded",
        several="the first alone is varied",
        known="measured",
        source="stable-diffusion.cpp 97d2990",
    ),
    Profile(
        "xinference",
        "Xinference",
        "sdapi",
        ("img2img",),
        degree="exact",
        seed="heeded",
        several="fails (500); one image a request, `batch` is dropped",
        known="measured",
        source="xinference 4.1.0; 7ecec16; it wants `extra: {model: NAME}` and data URIs",
        sets={"data_uri": True},
    ),
)


def profile(api: API, server: str) -> Profile | None:
    """What is known of a server; None: nothing."""
    return next((found for found in PROFILES if (found.api, found.server) == (api, server)), None)


def markdown() -> str:
    """The table of docs/endpoints.md."""
    ways = {"edit": "images/edits", "variations": "images/variations"}
    rows = ["| server (`server`) | random | variation | degree | seed | several parents | refusals | known |"]
    rows.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for found in PROFILES:
        random = "images/generations" if found.api == "openai_images" else "txt2img"
        varies = ", ".join(ways.get(way, way) for way in found.varies) or "none: it cannot be used"
        cells = (f"{found.title} (`{found.server}`)", random, varies, found.degree, found.seed, found.several)
        rows.append(f"| {' | '.join(cells)} | {found.refusals} | {found.known} ({found.source}) |")
    return "\n".join(rows) + "\n"


# What a recipe says of any endpoint: how it is reached, what is asked of it, what its images become.


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
    """How an endpoint is reached; none of it changes what a run means.

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
        """Whether a key that was refused may be had anew."""
        return self.key_file is not None or self.key_command is not None

    @model_validator(mode="after")
    def _check_one_key(self) -> Self:
        named = [name for name in ("key_file", "key_command", "basic_auth_env") if getattr(self, name) is not None]
        if self.key_env is not None and "key_env" in self.model_fields_set:
            named = ["key_env", *named]
        if len(named) > 1:
            raise RecipeError(f"{' and '.join(named)} are given: an endpoint takes one of them.")
        if self.client_key is not None and self.client_cert is None:
            raise RecipeError("client_key is given without client_cert: name the certificate's file, too.")
        return self

    @model_validator(mode="after")
    def _check_addresses(self) -> Self:
        for name in ("base_url", "url"):
            found = getattr(self, name, None)
            for url in found if isinstance(found, list) else [found or ""]:
                if "@" in urlsplit(url).netloc:
                    raise RecipeError(
                        f"{name} holds a user or a password, which a run would store: take them out of it, and name "
                        "in basic_auth_env an environment variable that holds user:password."
                    )
        return self


class Concurrent(Connection):
    """The same, of one that takes several requests at once.

    Attributes:
        concurrency: most requests at once.
    """

    concurrency: Count = 1


class Pictures(Settings):
    """What samples are drawn from, and what they look like.

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

    prompts: TextsByLabel
    image_size: Size
    keep_size: bool | Size = False
    base_url: str | None = None

    @model_validator(mode="after")
    def _check_drawn(self) -> Self:
        if self.keep_size is True and self.drawn is None:
            raise RecipeError(
                "keep_size: true needs one known size at which the endpoint draws: give size, or the pixels to keep "
                "(keep_size: 512)."
            )
        return self

    @property
    def kept(self) -> tuple[int, int] | None:
        """(height, width) at which samples are kept to be varied, beside `image_size`; None: they are not."""
        size = self.drawn if self.keep_size is True else self.keep_size or None
        return None if size == self.image_size else size

    @property
    def url(self) -> str:
        """Where samples are sent."""
        return self.base_url or ""

    @property
    @abstractmethod
    def ladder(self) -> Ladder:
        """How it is told a degree of variation."""

    @property
    def drawn(self) -> tuple[int, int] | None:
        """(height, width) that the endpoint is asked for, so that another is a fault; None: any."""
        return None

    @property
    def profile(self) -> Profile | None:
        """What is known of the server without asking it."""
        return None

    @property
    def asks(self) -> bool:
        """Whether the server is to be asked who it is."""
        return False

    @property
    def way(self) -> str | None:
        """The setting `variation`, of a kind that can vary samples in several ways."""
        return None

    def served_by(self, profile: Profile | None, named: bool = True) -> Self:
        """These settings, with the server's in place of those that are not stated.

        Args:
            profile: what is known of the server; None: nothing.
            named: by the recipe. A server that was recognised in mid-run is sent one parent a request all the same,
                because a run measures before its first request whether several come back mixed up.

        Raises:
            RecipeError: the server cannot vary samples, or not in this way.
        """
        if profile is None:
            return self
        way = self.way
        if way is not None and way not in profile.varies:
            has = " and ".join(f"variation: {name}" for name in profile.varies) or "none: use another server"
            raise RecipeError(
                f"variation: {profile.title} (server: {profile.server}) cannot vary a sample by '{way}'; it has {has}, "
                "or write server: null if it is another."
            )
        stated = {name: getattr(self, name) for name in self.model_fields_set}
        taken = profile.settings_for(stated)
        if not named:
            taken.pop("several_parents", None)
        return self.model_copy(update=taken)


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
        """How it is told a degree of variation."""
        return Ladder.of(self.wordings, self.degree_field, self.degree_exact)
