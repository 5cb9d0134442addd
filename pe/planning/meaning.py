"""Whether two recipes mean the same run, so that one may go on where the other stopped."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from pe.planning.build import class_of
from pe.planning.fitting import is_fitted
from pe.plugins.protocols import info_of
from pe.plugins.registry import Group, load, plugins
from pe.plugins.specs import PluginSpec, members_of
from pe.recipe.schema import Recipe

_MACHINE_ONLY = (
    "name", "limits", "private.path", "private.ledger_file", "private.largest_side", "api.price", "refusals.max_share",
    "evolution.neighbor_search", "evolution.measure_degree", "privacy.public_clock", "privacy.clock_slack",
)  # fmt: skip
_MOST = 200
"""Characters of a value."""


def differences(before: Recipe, after: Recipe) -> list[str]:
    """The keys whose change gives the run another meaning: `key: old → new`, sorted.

    What only concerns the machine may change: limits, prices, where the private records lie (their fingerprint tells
    whether they are the same), where their ledger file does, and the settings that a plug-in's `info` names as
    machine_settings (device, concurrency, batch size, the key's environment variable). An object's class counts by its
    name alone. So may the declared size, unless a fit is planned by it.
    """
    old, new = (dict(_leaves(recipe.model_dump(mode="json"))) for recipe in (before, after))
    for leaves, key in product((old, new), ("api.kind", "embedding.kind")):
        leaves[key] = class_of(leaves[key])
    free = [*_MACHINE_ONLY, *_machine_settings("pe.adapters", "api", after.api)]
    free += _machine_settings("pe.embeddings", "embedding", after.embedding)
    for key, member in members_of(after.api).items():
        free += [f"api.{key}.price", *_machine_settings("pe.adapters", f"api.{key}", member)]
    if not is_fitted(after.api.kind):
        free += ["private.declared_size", "private.declared_units"]
    changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    return [
        f"{key}: {_shown(old.get(key))} → {_shown(new.get(key))}"
        for key in changed
        if not any(key == name or key.startswith(f"{name}.") for name in free)
    ]


def _machine_settings(group: Group, section: str, spec: PluginSpec) -> list[str]:
    if spec.kind not in plugins(group):
        return []
    return [f"{section}.{name}" for name in info_of(load(group, spec.kind)).machine_settings]


def _shown(value: Any) -> str:
    """A value in a message; of a long list, prompts of a file say, the beginning."""
    text = repr(value)
    return text if len(text) <= _MOST else f"{text[:_MOST]}…"


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no mapping, and no list of mappings alone, by its dotted key."""
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value
