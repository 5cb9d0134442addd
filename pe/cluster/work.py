"""Private work on a Ray cluster, seen from the process that draws the noise.

At any time a few blocks or shards are under way (`AHEAD` for each worker), so neither this process
nor Ray's object store ever holds more, however many records there are. The work of a lost worker is
done again by another one, with an equal result: the result depends on nothing but what was sent.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pe.cluster import tasks
from pe.cluster.tasks import in_order
from pe.data.samples import Samples
from pe.errors import ClusterError, ContractError, RecipeError
from pe.histogram import Counts, Labels, Voting
from pe.plugins.protocols import Embedding, Vectors
from pe.plugins.specs import PluginSpec, construct
from pe.plugins.start_ray import start_ray
from pe.private.embeddings import SHARD_BYTES, SPARE, PrivateEmbeddings, shards
from pe.recipe.schema import OBJECT, Recipe
from pe.version import __version__

RETRIES = 3
"""Further tries at the work on a block or a shard after its worker was lost."""


class RayWork:
    """Private work on the Ray cluster that this process has joined. A `PrivateWork`.

    Args:
        embedding: name and settings from which a worker makes the embedding; None: it gets a copy
            of the run's object.
        declared_size: the declared number of records: the number of shards depends on it, and on
            the true number only if that is more than SPARE times as large.
        hosts: the machines of a cluster that was joined.
        shard_bytes: average number of bytes of a shard's vectors.
    """

    def __init__(
        self,
        embedding: PluginSpec | None,
        declared_size: int | None,
        hosts: Sequence[str] = (),
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self.hosts = hosts
        self._spec = embedding
        self._declared_size = declared_size
        self._shard_bytes = shard_bytes
        self._key = secrets.randbits(64)

    def embed(self, embedding: Embedding, blocks: Iterator[Samples]) -> Iterator[Vectors]:
        """Yield the vectors of each block, in order.

        One of the workers embeds each block. CONFIDENTIAL.

        Raises:
            ClusterError: workers are lost again and again, or do not give made-up samples the same
                vectors.
            PEError: the embedding raised it, or cannot be sent to a worker.
        """
        import ray

        share, number = _workers()
        task = ray.remote(max_retries=RETRIES, max_calls=0, **share)(tasks.embed)
        name = secrets.token_hex(8)
        make = [ray.put(self._pickle(embedding))]
        refs = (task.remote(__version__, name, make, ray.put(block)) for block in blocks)
        digests = set()
        for vectors, digest in in_order(refs, number, RETRIES + 1):
            digests.add(digest)
            if len(digests) > 1:
                raise ClusterError(
                    "Ray's workers give the same made-up samples different vectors, so a record's "
                    "vote would depend on the worker that embeds it. Let workers with one kind of "
                    "GPU, or none, have part in the run."
                )
            yield vectors

    def count_votes(
        self,
        private: PrivateEmbeddings,
        candidates: Vectors,
        labels: Labels,
        grid: int,
        voting: Voting,
    ) -> Counts:
        """Return the clean votes in grid steps: the votes of all shards, added exactly.

        CONFIDENTIAL.

        Guarantee: as `pe.histogram.count_votes`, with an equal result; all records of a unit are in
        one shard.
        """
        import ray

        share, number = _workers(gpus=voting.neighbor_search != "faiss")
        task = ray.remote(max_retries=RETRIES, max_calls=0, **share)(tasks.votes)
        public = ray.put((candidates, labels))
        parts = shards(private, self._number_of_shards(private), self._key)
        refs = (task.remote(__version__, part, public, grid, voting) for part in parts)
        total = np.zeros(len(labels), np.int64)
        for votes in in_order(refs, number, RETRIES + 1):
            total += votes
        return total

    def _number_of_shards(self, private: PrivateEmbeddings) -> int:
        records = max(len(private), math.ceil((self._declared_size or 0) * SPARE))
        dimension: int = private.vectors.shape[1]
        per_shard = max(1, self._shard_bytes // (4 * dimension))
        return max(1, -(-records // per_shard))

    def _pickle(self, embedding: Embedding) -> bytes:
        """Return a pickled function that makes the embedding on a worker."""
        from ray import cloudpickle

        if self._spec is not None:
            return bytes(
                cloudpickle.dumps(
                    partial(construct, "pe.embeddings", self._spec.kind, self._spec.settings)
                )
            )
        try:
            return bytes(cloudpickle.dumps(lambda: embedding))
        except Exception as error:  # whatever the object's parts raise
            raise ContractError(
                f"{type(embedding).__name__} cannot be sent to Ray's workers "
                f"({type(error).__name__}: {error}): name an embedding, or make your object one "
                "that pickle takes."
            ) from error


def _workers(gpus: bool = True) -> tuple[dict[str, float], int]:
    """Return each worker's share of the cluster, and how many workers there are.

    The share is a GPU if `gpus` and the cluster has any. Otherwise it is a core.
    """
    import ray

    resources = ray.cluster_resources()
    number = int(resources.get("GPU", 0))
    if gpus and number:
        return {"num_gpus": 1}, number
    return {"num_cpus": 1}, max(1, int(resources.get("CPU", 1)))


AUTO = "auto"

_NO_SPILLING = {"automatic_object_spilling_enabled": False}
"""Few shards are in memory at a time, so memory should never be full. Private data must not be
spilled to disk."""


@contextmanager
def on_ray(address: str, recipe: Recipe, **own: Any) -> Iterator[RayWork]:
    """Start Ray, or join a cluster. Yield a run's private work on it.

    Args:
        address: AUTO: Ray is started on this machine, on loopback, and ends with the run, as do its
            files; else HOST:PORT of a cluster to join, from one of its machines.
        recipe: of the run.
        own: more arguments of `ray.init`, if Ray is started.

    Raises:
        PEError: ray is not installed, cannot be started or joined, or `address` is no address.
    """
    spec = recipe.embedding
    size = recipe.private.declared_size
    embedding = None if spec.kind.startswith(OBJECT) else spec
    if address != AUTO:
        if not re.fullmatch(r"[^/]+:\d+", address):
            raise RecipeError(f"--ray {address}: write auto, or HOST:PORT of a Ray cluster's head.")
        with _connect(address) as hosts:
            yield RayWork(embedding, size, hosts)
        return
    before = dict(os.environ)
    # Ray opens its own folder to all.
    with tempfile.TemporaryDirectory(prefix="pe-", ignore_cleanup_errors=True) as folder:
        try:
            with _connect(
                None,
                _system_config=_NO_SPILLING,
                _temp_dir=str(Path(folder) / "ray"),
                **own,
            ):
                yield RayWork(embedding, size)
        finally:
            for name in os.environ.keys() - before.keys():
                del os.environ[name]
            os.environ.update(before)


@contextmanager
def _connect(address: str | None, **own: Any) -> Iterator[list[str]]:
    """Connect to Ray. Yield the addresses of all machines of the cluster."""
    start_ray(address, extra="ray", purpose="--ray", **own)
    import ray

    try:
        yield sorted({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]})
    finally:
        ray.shutdown()
