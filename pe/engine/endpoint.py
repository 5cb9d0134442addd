"""Whether the endpoint of a recipe can be reached and takes the key, and what its server heeds; asking no sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pe.plugins.findings import Finding, LooksAtEndpoint
from pe.plugins.registry import load, require


def endpoint_findings(kind: str, settings: Mapping[str, Any]) -> Iterator[Finding]:
    """What can be found out of an endpoint.

    Args:
        kind: of generator that speaks to it.
        settings: its settings.

    Raises:
        PluginError: there is no such kind.
        MissingDependency: a library that it needs is not installed.
    """
    require("pe.adapters", kind)
    plugin = load("pe.adapters", kind)
    if isinstance(plugin, LooksAtEndpoint):
        yield from plugin.look(settings)
    else:
        yield Finding(
            "problem", f"{kind}: has no endpoint that can be looked at", "ask it for samples: pe probe RECIPE"
        )
