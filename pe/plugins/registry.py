"""Plug-ins by name, through entry points, and the libraries that they need.

Nothing heavy is imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires, version
from pathlib import Path
from typing import Any, Literal

from pe.errors import MissingDependency, PluginError, nearest_name

Group = Literal[
    "pe.adapters", "pe.embeddings", "pe.sources", "pe.commands", "pe.loggers", "pe.metrics"
]

NOUN = {
    "pe.adapters": "adapter",
    "pe.embeddings": "embedding",
    "pe.sources": "source",
    "pe.commands": "command",
    "pe.loggers": "logger",
    "pe.metrics": "metric",
}
_REQUIREMENT = re.compile(
    r"""([\w.-]+)\s*(?:\[([^]]*)])?[^;]*;\s*extra\s*==\s*["']([\w.-]+)["']\s*"""
)


def plugins(group: Group) -> dict[str, EntryPoint]:
    """All installed plug-ins of a group, by name, in alphabetical order."""
    times = tuple((place, _change_time(place)) for place in sys.path)
    return {point.name: point for point in _entry_points(group, times)}


def _change_time(place: str) -> int:
    """The time when a folder in which Python looks for packages last changed, in nanoseconds.

    0 if it is missing.
    """
    try:
        return Path(place).stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=8)
def _entry_points(group: Group, times: tuple[tuple[str, int], ...]) -> list[EntryPoint]:
    """A group's entry points.

    `times` changes when anything is installed, and then they are searched for anew.
    """
    return sorted(entry_points(group=group), key=lambda point: point.name)


def load(group: Group, kind: str) -> Any:
    """The object that the entry point `kind` names.

    Raise PluginError if there is none, or it cannot be imported.
    """
    point = check_name(group, kind)
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"The {NOUN[group]} '{kind}' ({point.value}) cannot be loaded: {error}."
        ) from error


def check_name(group: Group, kind: str) -> EntryPoint:
    """Return the entry point of this name, without an import.

    PluginError names the nearest known name, or all.
    """
    points = plugins(group)
    if kind not in points:
        raise PluginError(f"Unknown {NOUN[group]} '{kind}'; {nearest_name(kind, points)}")
    return points[kind]


def require(group: Group, kind: str) -> None:
    """Raise MissingDependency if a library is missing that the plug-in's entry point says it needs.

    An entry point names extras of its own distribution behind the object, `"my_package.discs:Discs
    [gpu]"`, so that a missing library is found out before anything is read, asked or written;
    nothing is imported.
    """
    point = check_name(group, kind)
    if point.dist is not None:
        require_extras(point.dist.name, point.extras, f"The {NOUN[group]} '{kind}'")


def require_extras(distribution: str, extras: Sequence[str], subject: str) -> None:
    """Raise MissingDependency, naming `subject`, if libraries of these extras are missing."""
    missing = missing_libraries(distribution, extras)
    if missing:
        raise MissingDependency(
            f"{subject} needs {', '.join(missing)}: not installed, so pip install "
            f"'{distribution}[{','.join(extras)}]'."
        )


def missing_libraries(distribution: str, extras: Sequence[str]) -> list[str]:
    """The libraries that these extras bring, and that are not installed."""
    return [
        name
        for extra in extras
        for name, version in libraries(distribution, extra).items()
        if not version
    ]


def libraries(distribution: str, extra: str) -> dict[str, str]:
    """The libraries that an extra of an installed distribution brings → their versions.

    Empty text if not installed.

    A requirement with a further marker (a platform, say) is left out.
    """
    versions: dict[str, str] = {}
    for requirement in requires(distribution) or ():
        parts = _REQUIREMENT.fullmatch(requirement)
        if parts is None or _normal(parts[3]) != _normal(extra):
            continue
        if _normal(parts[1]) == _normal(distribution):
            for inner in (parts[2] or "").split(","):
                versions |= libraries(distribution, inner.strip())
            continue
        try:
            versions[parts[1]] = version(parts[1])
        except PackageNotFoundError:
            versions[parts[1]] = ""
    return versions


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
