"""What plug-ins' settings reach on this machine: addresses, keys, code, variables, files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pe.plugins.protocols import PluginInfo, info_of
from pe.plugins.registry import Group, load, plugins

_CONNECTION = {
    "base_url", "url", "description_url", "result_hosts", "key_env", "key_file", "key_command",
    "basic_auth_env", "headers_env", "client_cert", "client_key",
}  # fmt: skip
"""Settings that say to which addresses this machine connects, and with which of its keys."""
_FETCHED = {"model", "weights"}
"""Settings of plug-ins that compute here, which name a file, or a repository that is fetched."""
_GROUPS: tuple[Group, ...] = ("pe.adapters", "pe.embeddings")


def reach(sections: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the settings, by dotted key, that reach things of this machine.

    These are addresses, keys, code to run, environment variables, models that may be fetched, and
    files outside `folder`. The `kind` stands for a plug-in that contacts other machines at an
    address of its own.

    Args:
        sections: of a recipe, as plain values; each plug-in in them, at any depth, has a `kind`.
        folder: the run's directory, with which they came.
    """
    values = {key: value for key, value in leaves(sections) if value is not None}
    infos = {
        key: info_of(load(group, str(kind)))
        for key, kind in values.items()
        for group in _GROUPS
        if key.endswith("kind") and str(kind) in plugins(group)
    }
    code = {name.split(".")[-1] for info in infos.values() for name in info.code_settings}
    reached = {}
    for key, value in values.items():
        names = {*key.split(".")}
        runs_code = (
            names & code and not str(value).isidentifier()
        )  # else it is a name of the plug-in's own
        addresses = {f"{key.removesuffix('kind')}{name}" for name in ("base_url", "url")}
        asks_others = key in infos and infos[key].hosts is None and not values.keys() & addresses
        section, _, name = key.rpartition(".")
        here = infos.get(f"{section}.kind".lstrip("."), PluginInfo()).hosts == ()
        is_fetched = here and name in _FETCHED
        texts = value if isinstance(value, list) else [value]
        is_outside = "/" in key or any(
            _is_outside(str(text), folder) for text in texts
        )  # a key may be a path
        if names & _CONNECTION or runs_code or asks_others or is_fetched or is_outside:
            reached[key] = value
    return reached


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value with its dotted key, from nested mappings and lists of mappings."""
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _is_outside(text: str, folder: Path) -> bool:
    """Return True for an address, or a path outside the current folder and `folder`."""
    path = os.path.normpath(text)
    leads_out = path.startswith(("/", "~", "..")) and not Path(path).is_relative_to(
        folder.absolute()
    )
    return leads_out or "://" in text
