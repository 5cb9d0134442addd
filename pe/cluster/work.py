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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pe.cluster import tasks
from pe.cluster.tasks import AHEAD, Line, TaskAnswer, in_order, lost_workers
from pe.data.samples import Samples
from pe.errors import ClusterError, ContractError, RecipeError
from pe.histogram import Counts, Labels, Voting
from pe.plugins.protocols import Embedding, Vectors
from pe.plugins.specs import PluginSpec, construct
from pe.plugins.start_ray import start_ray
from pe.private.embeddings import SHARD_BYTES, SPARE, PrivateEmbeddings, shards
from pe.recipe.schema import OBJECT, Recipe
from pe.version import __version__

if TYPE_CHECKING:
    from ray import ObjectRef

RETRIES = 3
"""Further tries at the work on a block or a shard after its worker was lost."""


@dataclass(eq=False)
class _Block:
    """A block under way: its samples in Ray's memory, its actor, and the actor's answer."""

    samples: ObjectRef
    actor: Any = None  # None: it waits for one
    task: ObjectRef | None = None
    answer: TaskAnswer | None = None
    losses: int = 0  # actors that had it


class _Embedders:
    """Actors that embed blocks: an actor gets blocks once Ray has found room for the actor.

    Ray would start a lost actor again by itself, but a cluster that has lost a machine may have no
    room for it: then its blocks would wait for ever. So the other actors embed them. It is an error
    if `tries` actors are lost over one block, or in a row before they are ready.
    """

    def __init__(self, start: Callable[[], Any], number: int, tries: int) -> None:
        self._start = start
        self._number = number
        self._tries = tries
        self._coming: dict[ObjectRef, Any] = {}
        self._ready: list[Any] = []
        self._never_ready = 0
        self._blocks: deque[_Block] = deque()

    def answers(self, blocks: Iterator[Samples]) -> Iterator[Any]:
        """Yield the value of each block, in order."""
        import ray

        lines: set[Line] = set()
        more = True
        while more or self._blocks:
            if more and len(self._blocks) < AHEAD * self._number:
                samples = next(blocks, None)
                more = samples is not None
                if more:
                    self._blocks.append(_Block(ray.put(samples)))
                    if len(self._ready) + len(self._coming) < min(self._number, len(self._blocks)):
                        self._add()
                self._receive(wait=False)
            else:
                self._receive(wait=True)
            self._hand_out()
            while self._blocks and (answer := self._blocks[0].answer) is not None:
                self._blocks.popleft()
                yield answer.result(lines)

    def end(self) -> None:
        """End all actors."""
        import ray

        for actor in (*self._ready, *self._coming.values()):
            ray.kill(actor)

    def _add(self) -> None:
        actor = self._start()
        self._coming[actor.__ray_ready__.remote()] = actor

    def _hand_out(self) -> None:
        """Give each waiting block to the actor that has the fewest, if that is below AHEAD."""
        in_hand = dict.fromkeys(self._ready, 0)
        for block in self._blocks:
            if block.actor is not None and block.answer is None:
                in_hand[block.actor] += 1
        for block in self._blocks:
            if block.actor is None and in_hand:
                actor = min(in_hand, key=in_hand.__getitem__)
                if in_hand[actor] == AHEAD:
                    return
                block.actor, block.task = actor, actor.embed.remote(block.samples)
                in_hand[actor] += 1

    def _receive(self, wait: bool) -> None:
        """Take an answer or an actor that is ready, and with `wait` wait for one."""
        import ray

        tasks = {
            block.task: block
            for block in self._blocks
            if block.task is not None and block.answer is None
        }
        if not tasks and not self._coming:
            return
        ready, _ = ray.wait([*tasks, *self._coming], num_returns=1, timeout=None if wait else 0)
        for one in ready:
            try:
                answer = ray.get(one)
            except ray.exceptions.RayError as error:
                self._lose(self._coming[one] if one in self._coming else tasks[one].actor, error)
                return
            if one in tasks:
                tasks[one].answer = answer
            else:
                self._ready.append(self._coming.pop(one))
                self._never_ready = 0

    def _lose(self, actor: Any, error: Exception) -> None:
        """Take a lost actor's blocks from it, and start another actor.

        Raises:
            ClusterError: that was the last of the tries.
        """
        import ray

        mine = [block for block in self._blocks if block.actor is actor and block.answer is None]
        for block in mine:
            block.actor = block.task = None
            block.losses += 1
        if actor in self._ready:
            self._ready.remove(actor)
        else:
            self._coming = {task: one for task, one in self._coming.items() if one is not actor}
            self._never_ready += 1
        if max(self._never_ready, *(block.losses for block in mine), 0) == self._tries:
            raise lost_workers(error, self._tries)
        ray.kill(actor)
        self._add()


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
        actor = ray.remote(**share)(tasks.Embedder)
        embedders = _Embedders(
            partial(actor.remote, __version__, self._pickle(embedding)), number, RETRIES + 1
        )
        try:
            first = None
            for vectors, digest in embedders.answers(blocks):
                if digest != (first := first or digest):
                    raise ClusterError(
                        "Ray's workers give the same made-up samples different vectors, so where a "
                        "record is embedded would change its vote: let workers with one kind of "
                        "GPU, or none, have part in the run."
                    )
                yield vectors
        finally:
            embedders.end()

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
    if gpus and (number := int(resources.get("GPU", 0))):
        return {"num_gpus": 1}, number
    return {"num_cpus": 1}, max(1, int(resources.get("CPU", 1)))


AUTO = "auto"

_NO_SPILLING = {"automatic_object_spilling_enabled": False}
"""Few shards are in memory at a time, so it should never be full; and private data must not be
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
                None, _system_config=_NO_SPILLING, _temp_dir=str(Path(folder) / "ray"), **own
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
