"""Whether what a recipe names is here, or its endpoint takes the key, and what its server heeds; asking no sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pe.planning.build import set_up
from pe.planning.readiness import obstacles
from pe.plugins.findings import Finding, LooksAtEndpoint
from pe.plugins.registry import load, require
from pe.recipe.schema import Recipe


def recipe_findings(recipe: Recipe) -> Iterator[Finding]:
    """Of a recipe's endpoint as below; of one without an endpoint, whether a run could start here.

    Raises:
        PluginError: there is no such kind of generator or embedding.
        RecipeError: one of their settings is unknown, missing or of the wrong type.
        MissingDependency: a library that the endpoint needs is not installed.
    """
    kind, settings = recipe.api.kind, recipe.api.settings
    if isinstance(load("pe.adapters", kind), LooksAtEndpoint):
        yield from endpoint_findings(kind, settings)
        return
    api, why = set_up("pe.adapters", recipe.api)
    if api is None:
        yield Finding("problem", f"{kind}: cannot be set up here: {why}")
        return
    found = obstacles(recipe, api)
    for sentence in found:
        yield Finding("problem", sentence)
    if not found:
        yield Finding(
            "ok", f"{kind} and {recipe.embedding.kind}: a run could start here", "look first: pe probe RECIPE"
        )


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
