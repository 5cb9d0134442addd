"""The versions of what took part in a run."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from pe.version import __version__

_TOOK_PART = ("numpy", "scipy", "dp-accounting", "pillow", "faiss-cpu", "faiss-gpu", "torch", "diffusers")


def software_versions() -> dict[str, str]:
    """Distribution → version, of this toolkit and of the libraries that its results rest on."""
    versions = {"private-evolution-toolkit": __version__, "python": platform.python_version()}
    return versions | {name: found for name in _TOOK_PART if (found := installed_version(name))}


@cache
def installed_version(distribution: str) -> str:
    """The version of an installed distribution; empty when it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
