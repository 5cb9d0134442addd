"""The actors that embed blocks: each gets blocks once Ray has found room for it, and loses them when it is lost.

Ray would start a lost actor again by itself, but a cluster that has lost a machine may have no room for it: then its
blocks would wait for ever. So the others do them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pe.cluster.tasks import AHEAD, Line, TaskAnswer, lost_workers
from pe.data.samples import Samples

if TYPE_CHECKING:
    from ray import ObjectRef


@dataclass(eq=False)
class _Block:
    """A block under way.

    Attributes:
        samples: in Ray's memory.
        actor: has it in hand; None: it waits for one.
        task: the actor's.
        answer: the actor's.
        tries: actors that had it.
    """

    samples: ObjectRef
    actor: Any = None
    task: ObjectRef | None = None
    answer: TaskAnswer | None = None
    tries: int = 0


class Embedders:
    """Actors that embed blocks.

    Args:
        start: starts one; Ray makes it when there is room.
        number: of actors, at most.
        tries: actors that may be lost over one block, or in a row before they are there.
    """

    def __init__(self, start: Callable[[], Any], number: int, tries: int) -> None:
        self._start, self._number, self._tries = start, number, tries
        self._coming: dict[ObjectRef, Any] = {}
        self._ready: list[Any] = []
        self._never_ready = 0
        self._blocks: deque[_Block] = deque()

    def answers(self, blocks: Iterator[Samples]) -> Iterator[Any]:
        """Yield the value of each block, in order."""
        import ray

        seen: set[Line] = set()
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
                yield answer.result(seen)

    def end(self) -> None:
        """End all actors."""
        import ray

        for actor in (*self._ready, *self._coming.values()):
            ray.kill(actor)

    def _add(self) -> None:
        actor = self._start()
        self._coming[actor.__ray_ready__.remote()] = actor

    def _hand_out(self) -> None:
        """Give blocks that wait to actors with little in hand."""
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
        """Take answers, and actors that are ready by now; `wait` until there is something."""
        import ray

        tasks = {block.task: block for block in self._blocks if block.task is not None and block.answer is None}
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
        """Take from an actor what it had in hand, and start another in its place."""
        import ray

        mine = [block for block in self._blocks if block.actor is actor and block.answer is None]
        for block in mine:
            block.actor = block.task = None
            block.tries += 1
        if actor in self._ready:
            self._ready.remove(actor)
        else:
            self._coming = {task: one for task, one in self._coming.items() if one is not actor}
            self._never_ready += 1
        if max(self._never_ready, *(block.tries for block in mine), 0) == self._tries:
            raise lost_workers(error, self._tries)
        ray.kill(actor)
        self._add()
