"""The Ray cluster that a run's private work goes to: one of its own, or one that is there."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pe.cluster.work import RayWork
from pe.errors import RecipeError
from pe.plugins.start_ray import start_ray
from pe.recipe.schema import OBJECT, Recipe

AUTO = "auto"

_NO_SPILLING = {"automatic_object_spilling_enabled": False}
"""Few shards are under way at a time: what does not fit into memory is a mistake, and must not go to disk."""


@contextmanager
def on_ray(address: str, recipe: Recipe, **own: Any) -> Iterator[RayWork]:
    """Private work on a Ray cluster.

    Args:
        address: AUTO: Ray is started on this machine, on loopback, and ends with the run, as does all that it wrote;
            else HOST:PORT of a cluster to join, from one of its machines.
        recipe: of the run.
        own: more arguments of `ray.init`, if Ray is started.

    Raises:
        MissingDependency: ray is not installed.
        RecipeError: Ray cannot be started or joined, or `address` is none.
    """
    spec, size = recipe.embedding, recipe.private.declared_size
    embedding = None if spec.kind.startswith(OBJECT) else spec
    if address != AUTO:
        if not re.fullmatch(r"[^/]+:\d+", address):
            raise RecipeError(f"--ray {address}: write auto, or HOST:PORT of a Ray cluster's head.")
        with _connected(address) as hosts:
            yield RayWork(embedding, size, hosts)
        return
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="pe-", ignore_cleanup_errors=True) as folder:  # Ray opens its own to all
        try:
            with _connected(None, _system_config=_NO_SPILLING, _temp_dir=str(Path(folder) / "ray"), **own):
                yield RayWork(embedding, size)
        finally:
            for name in os.environ.keys() - before.keys():
                del os.environ[name]
            os.environ.update(before)


@contextmanager
def _connected(address: str | None, **own: Any) -> Iterator[list[str]]:
    """The addresses of all machines of the cluster."""
    start_ray(address, extra="ray", purpose="--ray", **own)
    import ray

    try:
        yield sorted({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]})
    finally:
        ray.shutdown()
