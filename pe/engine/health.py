"""`pe doctor`: list installed parts, test them, and give the commands that install missing ones."""

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
from pe.fit.trainer import Trainer
from pe.nearest import describe_search, nearest
from pe.planning.checks import obstacles
from pe.planning.parts import set_up
from pe.plugins.devices import FITTING_TORCH, listed_cards, unseen_cards, words_for
from pe.plugins.protocols import Finding, class_default
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
    "gpu": "neighbour search by faiss on NVIDIA's GPUs, instead of cpu",
    "http": "endpoints",
    "notebook": "progress bars in Jupyter",
    "medical": "private records in DICOM and scientific TIFF",
    "parquet": "private records in Parquet and Arrow",
    "ray": "private work on a Ray cluster",
    "remote": "private records on object stores",
    "server": "pe serve",
    "sign": "pe export --sign-with, pe verify --key",
    "text": "texts by local models",
    "trained": "generators that are fitted on the private records",
    "words": "WordLlama, for texts",
}
_GROUPS: tuple[Group, ...] = ("pe.adapters", "pe.embeddings", "pe.commands")


def findings() -> Iterator[Finding]:
    """Yield all findings, in the order in which a person wants them."""
    yield Finding(
        "ok",
        f"{DISTRIBUTION} {__version__} on Python {platform.python_version()}, {platform.system()}",
    )
    yield from _import_names()
    yield from _accelerators()
    yield from _two_wheels()
    yield _neighbors()
    for extra, purpose in _EXTRAS.items():
        if extra == ("cpu" if "faiss-gpu" in _faiss_wheels() else "gpu"):  # either serves
            continue
        versions = libraries(DISTRIBUTION, extra)
        missing = [name for name, version in versions.items() if not version]
        if missing:
            what = f"extra {extra} ({purpose}): {', '.join(missing)} not installed"
            yield Finding("missing", what, pip_install(extra))
        else:
            names = ", ".join(f"{name} {version}" for name, version in versions.items())
            yield Finding("ok", f"extra {extra} ({purpose}): {names}")
    for group in _GROUPS:
        yield from _plugins(group)


def _import_names() -> Iterator[Finding]:
    """Name other distributions that have taken one of our import names."""
    owners = packages_distributions()
    for name in PACKAGES:
        others = sorted(set(owners.get(name, ())) - {DISTRIBUTION})
        if others:
            yield Finding(
                "problem",
                f"import name '{name}' is also installed by {', '.join(others)}",
                f"pip uninstall {' '.join(others)} && pip install --force-reinstall --no-deps "
                f"{DISTRIBUTION}",
            )
        elif find_spec(name) is None:
            yield Finding(
                "problem",
                f"package '{name}' cannot be imported",
                f"pip install {DISTRIBUTION}",
            )


def _accelerators() -> Iterator[Finding]:
    """Yield each GPU of NVIDIA or Apple, or the processor if there is none.

    Also say if torch does not see a GPU.
    """
    names = listed_cards()
    gpus = []
    command = shutil.which("nvidia-smi")
    if command:
        query = [command, "--query-gpu=index,name,memory.total", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603
        gpus = [f"cuda:{line.strip()}" for line in answer.stdout.splitlines() if line.strip()]
    if not gpus and names:
        gpus = [f"{words_for(names)} of NVIDIA's driver"]
    for gpu in gpus:
        yield Finding("ok", f"accelerator: {gpu}")
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        yield Finding("ok", "accelerator: Apple GPU (mps)")
    elif not gpus:
        yield Finding("ok", "accelerator: none; everything runs on the processor")
    unseen = unseen_cards() if find_spec("torch") else ""
    if unseen:
        remedy = f"{FITTING_TORCH}, or set device: cpu in the recipe"
        yield Finding("problem", f"accelerator: {unseen}", remedy)


def _faiss_wheels() -> list[str]:
    """Return the installed wheels that bring the module faiss."""
    return sorted(set(packages_distributions().get("faiss", ())))


def _two_wheels() -> Iterator[Finding]:
    """Say if two wheels, which overwrite each other's files, bring the module faiss."""
    wheels = _faiss_wheels()
    if len(wheels) > 1:
        remedy = (
            f"pip uninstall {' '.join(wheels)}, then {pip_install('gpu')} for NVIDIA's GPUs, or "
            f"{pip_install('cpu')}"
        )
        what = f"{' and '.join(wheels)} are both installed, and overwrite each other's files"
        yield Finding("problem", what, remedy)


def _neighbors() -> Finding:
    """Check that the neighbour search finds the right neighbours."""
    vectors = np.eye(8, dtype=np.float32)
    try:
        right = bool((nearest(vectors, vectors, 1)[:, 0] == np.arange(8)).all())
    except MissingDependency as error:
        return Finding("missing", f"neighbour search: {error}", pip_install("cpu"))
    except PEError as error:
        return Finding("problem", f"neighbour search: {error}")
    name = f"neighbour search: {describe_search('auto')}"
    return Finding("ok", name) if right else Finding("problem", f"{name} gives wrong answers")


def _plugins(group: Group) -> Iterator[Finding]:
    """Yield a finding for each plug-in that lacks a library, and one for all the others."""
    ready = []
    for name, point in plugins(group).items():
        missing = missing_libraries(point.dist.name, point.extras) if point.dist else ()
        if point.dist and missing:
            remedy = f"pip install '{point.dist.name}[{','.join(point.extras)}]'"
            yield Finding("missing", f"{group}: {name} lacks {', '.join(missing)}", remedy)
        else:
            ready.append(name)
    yield Finding("ok", f"{group}: {', '.join(ready) or 'none'}")


def recipe_findings(recipe: Recipe) -> Iterator[Finding]:
    """Check the recipe's endpoint, or, without one, this machine. Ask for no sample."""
    kind = recipe.api.kind
    settings = recipe.api.settings
    found = _look(kind, settings)
    if found:
        yield from found
        return
    api, why = set_up("pe.adapters", recipe.api)
    sentences = [f"{kind}: cannot be set up here: {why}"] if api is None else obstacles(recipe, api)
    yield from (Finding("problem", sentence) for sentence in sentences)
    if not sentences:
        what = f"{kind} and {recipe.embedding.kind}: a run could start here"
        yield Finding("ok", what, "" if isinstance(api, Trainer) else "look first: pe probe RECIPE")


def endpoint_findings(kind: str, settings: Mapping[str, Any]) -> Iterator[Finding]:
    """Check the endpoint of a kind of generator with these settings."""
    none = Finding(
        "problem",
        f"{kind}: has no endpoint that can be looked at",
        "ask it for samples: pe probe RECIPE",
    )
    yield from _look(kind, settings) or [none]


def _look(kind: str, settings: Mapping[str, Any]) -> list[Finding]:
    require("pe.adapters", kind)
    return list(class_default(load("pe.adapters", kind), "look")(settings))
