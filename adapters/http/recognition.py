"""Which server answers, by what it says of itself: in its list of models, or on a path that it alone has."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from adapters.http.client import respond
from adapters.http.faults import Fault
from adapters.http.profiles import API, Profile, profile

if TYPE_CHECKING:
    import httpx2

Ask = Callable[[str], Any]
"""What GET of an address brings, as JSON; None for nothing of the kind."""

_OWNERS = {"sglang": "sglang", "vllm": "vllm-omni", "xinference": "xinference", "OVMS": "ovms", "pe": "pe"}
"""`owned_by` of a server's models → server."""


def server_by_address(url: str) -> str | None:
    """OpenAI's and Azure's own hosts, which need not be asked; None: another."""
    host = urlsplit(url).hostname or ""
    if host.endswith((".azure.com", ".azure.us", ".azure.cn")):
        return "azure"
    return "openai" if host.endswith(".openai.com") else None


def asker(client: httpx2.Client) -> Ask:
    """Asks by this client.

    An error status tells nothing and is no fault, but for those that pass (429, 503); no answer is a `Fault`, too.
    """

    def ask(url: str) -> Any:
        try:
            return respond(client, "GET", url).json()
        except (ValueError, RecursionError):  # no JSON
            return None
        except Fault as fault:
            if fault.status in (None, 429, 503):
                raise
            return None

    return ask


def recognised(api: API, url: str, ask: Ask) -> Profile | None:
    """Who answers at `url`, the `base_url` of a recipe; None: that cannot be told."""
    base = url.rstrip("/")
    models: Any = ask(f"{base}/models") if api == "openai_images" else None
    found = _openai_server(base, ask, models) if api == "openai_images" else _sd_server(base, ask)
    known = None if found is None else profile(api, found)
    if known is None or found != "pe" or (models["data"][0].get("pe") or {}).get("degree") != "wording":
        return known
    return replace(known, sets={name: each for name, each in known.sets.items() if name != "degree_exact"})


def _openai_server(base: str, ask: Ask, models: Any) -> str | None:
    server = _owner(models)
    if server is not None:
        return server
    root = re.sub(r"/v\d+$", "", base)
    known = ask(f"{root}/.well-known/localai.json")
    if isinstance(known, dict) and "endpoint_groups" in known:
        return "localai"
    return "litellm" if ask(f"{root}/health/liveliness") == "I'm alive!" else None


def _sd_server(base: str, ask: Ask) -> str | None:
    options = ask(f"{base}/sdapi/v1/options")
    if not isinstance(options, dict):
        owner = _owner(ask(f"{base}/v1/models"))
        return owner if owner == "xinference" else None
    if options.keys() == {"samples_format", "sd_model_checkpoint"}:
        return "stable-diffusion.cpp"
    if any(str(name).startswith("forge_") for name in options):
        return "forge"
    version = ask(f"{base}/sdapi/v1/version")
    if isinstance(version, dict):
        return "sdnext" if version.get("app") == "sd.next" else None
    return "a1111" if "samples_save" in options else None


def _owner(models: Any) -> str | None:
    """The server that owns all the models of a list."""
    entries = models.get("data") if isinstance(models, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return None
    if [entry.get("id") for entry in entries] == ["sd-cpp-local"]:
        return "stable-diffusion.cpp"
    owners = {str(entry.get("owned_by")) for entry in entries}
    return _OWNERS.get(owners.pop()) if len(owners) == 1 else None
