"""What each server heeds of the requests that an API allows, and where that was found; docs/endpoints.md shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

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
