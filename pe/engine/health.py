"""What is installed, what works, what is missing and the command that installs it."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from typing import Any

import numpy as np

from pe.errors import MissingDependency, PEError, pip_install
from pe.nearest import describe, nearest
from pe.planning.build import set_up
from pe.planning.checks import obstacles
from pe.plugins.devices import FITTING_TORCH, listed_cards, unseen_cards, words_for
from pe.plugins.protocols import Finding, LooksAtEndpoint
from pe.plugins.registry import Group, libraries, load, missing_libraries, plugins, require
from pe.recipe.schema import Recipe
from pe.version import __version__

DISTRIBUTION = "private-evolution-toolkit"
PACKAGES = ("pe", "adapters", "embeddings")

_EXTRAS = {
    "cpu": "neighbour search on the processor",
    "demo": "pe demo; fonts for drawn text",
    "diffusion": "local diffusion models",
    "embeddings": "EfficientNet-Lite, OpenCLIP, DINOv2, Inception",
    "evaluation": "pe evaluate",
    "http": "endpoints",
    "notebook": "progress bars in Jupyter",
    "medical": "private records in DICOM and scientific TIFF",
    "parquet": "private records in Parquet and Arrow",
    "ray": "private work on a Ray cluster",
    "remote": "private records on object stores",
    "server": "pe serve",
    "sign": "pe sign, pe verify",
    "text": "texts by local models",
    "trained": "generators that are fitted on the private records",
}


def findings() -> Iterator[Finding]:
    """All findings, in the order in which a person wants them."""
    yield Finding("ok", f"{DISTRIBUTION} {__version__} on Python {platform.python_version()}, {platform.system()}")
    yield from _import_names()
    yield from _accelerators()
    yield from _neighbors()
    for extra, purpose in _EXTRAS.items():
        yield _extra(extra, purpose)
    groups: tuple[Group, ...] = ("pe.adapters", "pe.embeddings", "pe.commands")
    for group in groups:
        yield from _plugins(group)


def _import_names() -> Iterator[Finding]:
    """Whether another distribution has taken one of our import names."""
    owners = packages_distributions()
    for name in PACKAGES:
        others = sorted(set(owners.get(name, ())) - {DISTRIBUTION})
        if others:
            yield Finding(
                "problem",
                f"import name '{name}' is also installed by {', '.join(others)}",
                f"pip uninstall {' '.join(others)} && pip install --force-reinstall --no-deps {DISTRIBUTION}",
            )
        elif find_spec(name) is None:
            yield Finding("problem", f"package '{name}' cannot be imported", f"pip install {DISTRIBUTION}")


def _accelerators() -> Iterator[Finding]:
    """Every NVIDIA card by name, Apple's GPU, or the processor alone; and whether torch sees the driver's GPUs."""
    listed = listed_cards()
    cards = _nvidia_cards() or ([f"{words_for(listed)} of NVIDIA's driver"] if listed else [])
    for card in cards:
        yield Finding("ok", f"accelerator: {card}")
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        yield Finding("ok", "accelerator: Apple GPU (mps)")
    elif not cards:
        yield Finding("ok", "accelerator: none; everything runs on the processor")
    if find_spec("torch") and (unseen := unseen_cards()):
        yield Finding("problem", f"accelerator: {unseen}", f"{FITTING_TORCH}, or set device: cpu in the recipe")


def _nvidia_cards() -> list[str]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    query = [command, "--query-gpu=index,name,memory.total", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603
    return [f"cuda:{line.strip()}" for line in answer.stdout.splitlines() if line.strip()]


def _neighbors() -> Iterator[Finding]:
    """Whether a neighbour backend finds the right neighbour."""
    vectors = np.eye(8, dtype=np.float32)
    try:
        right = bool((nearest(vectors, vectors, 1)[:, 0] == np.arange(8)).all())
    except MissingDependency as error:
        yield Finding("missing", f"neighbour search: {error}", pip_install("cpu"))
    except PEError as error:
        yield Finding("problem", f"neighbour search: {error}")
    else:
        found = f"neighbour search: {describe('auto')}"
        yield Finding("ok", found) if right else Finding("problem", f"{found} gives wrong answers")


def _extra(extra: str, purpose: str) -> Finding:
    """Whether everything is installed that an extra of ours brings."""
    found = libraries(DISTRIBUTION, extra)
    missing = [name for name, version in found.items() if not version]
    if missing:
        what = f"extra {extra} ({purpose}): {', '.join(missing)} not installed"
        return Finding("missing", what, pip_install(extra))
    return Finding("ok", f"extra {extra} ({purpose}): {', '.join(f'{name} {found[name]}' for name in found)}")


def _plugins(group: Group) -> Iterator[Finding]:
    """Each plug-in of a group that lacks a library, and all the others together."""
    ready = []
    for name, point in plugins(group).items():
        if point.dist and (missing := missing_libraries(point.dist.name, point.extras)):
            remedy = f"pip install '{point.dist.name}[{','.join(point.extras)}]'"
            yield Finding("missing", f"{group}: {name} lacks {', '.join(missing)}", remedy)
        else:
            ready.append(name)
    yield Finding("ok", f"{group}: {', '.join(ready) or 'none'}")


# Whether what a recipe names is here, or its endpoint takes the key, and what its server heeds; asking no sample.


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
