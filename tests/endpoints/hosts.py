"""Every host that has a scripted server, and how to ask it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from adapters.hosts import Bedrock, Gemini, Stability, Together
from adapters.http import Host as HTTPHost
from tests.endpoints.bedrock_server import ACCESS, BedrockServer
from tests.endpoints.faults import Script
from tests.endpoints.gemini_server import GeminiServer
from tests.endpoints.hosted import Hosted
from tests.endpoints.stability_server import StabilityServer
from tests.endpoints.together_server import TogetherServer

Generator = HTTPHost[Any]
Make = Callable[..., tuple[Generator, Script]]
"""Makes a host's adapter, and the script of the server that it talks to."""


@dataclass(frozen=True)
class Host:
    """One of them.

    Attributes:
        serve: its scripted server.
        kind: its adapter.
        settings: that the adapter must have.
        refusals: the server's faults that are refusals.
        keyed: what the key's header holds, of a key.
        base: path of `base_url`.
        given: settings of all of them.
    """

    serve: Callable[[Script], Hosted]
    kind: Callable[..., Generator]
    settings: dict[str, Any]
    refusals: tuple[str, ...]
    keyed: str = "Bearer {}"
    base: str = ""
    given: dict[str, Any] = field(default_factory=lambda: {"prompts": "a {label}", "image_size": 64, "key_env": None})

    def make(self, url: str, **settings: Any) -> Generator:
        """The adapter, for a server at this address."""
        return self.kind(**self.given | self.settings | {"base_url": url + self.base} | settings)


def bedrock(**settings: Any) -> Bedrock:
    """Bedrock's adapter, in an environment with the account's credentials, in other processes too."""
    os.environ |= ACCESS
    return Bedrock(**settings)


HOSTS = {
    "bedrock": Host(
        BedrockServer, bedrock, {"model": "stability.sd3-5-large-v1:0", "region": "us-west-2"}, ("refusal",)
    ),
    "gemini": Host(
        GeminiServer, Gemini, {"model": "gemini-3.1-flash-image"}, ("blocked", "refusal"), keyed="{}", base="/v1beta"
    ),
    "stability": Host(StabilityServer, Stability, {"model": "sd3.5-large"}, ("refusal", "blurred")),
    "together": Host(
        TogetherServer,
        Together,
        {"model": "black-forest-labs/FLUX.2-dev", "parent_field": "reference_images"},
        ("refusal",),
        base="/v1",
    ),
}
