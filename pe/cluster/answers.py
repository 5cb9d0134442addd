"""What workers tell, as the process hears it that asked."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pe.cluster.tasks import Line, Told
from pe.errors import ClusterError

if TYPE_CHECKING:
    from ray import ObjectRef

AHEAD = 2
"""How many blocks or shards are under way for each worker."""

log = logging.getLogger(__name__)


def in_order(asked: Iterable[ObjectRef], workers: int, tries: int) -> Iterator[Any]:
    """The values of what tasks tell, in order; what they logged goes to this process's log, each line once."""
    under_way: deque[ObjectRef] = deque()
    seen: set[Line] = set()
    for one in asked:
        under_way.append(one)
        if len(under_way) == AHEAD * workers:
            yield _value(under_way.popleft(), seen, tries)
    while under_way:
        yield _value(under_way.popleft(), seen, tries)


def heard(told: Told, seen: set[Line]) -> Any:
    """The value, once its lines are logged, but for those that were `seen`; raises what the worker could not."""
    for line in told.lines:
        if line not in seen:
            seen.add(line)
            logging.getLogger(line[0]).log(*line[1:])
    if told.error is not None:
        raise told.error
    if told.failed:
        raise RuntimeError(f"Work on a Ray worker failed ({told.failed}).")
    return told.value


def lost(error: Exception, tries: int) -> ClusterError:
    """What to raise when Ray has lost the workers of one piece of work in each of `tries`."""
    log.error("Ray lost its workers.", exc_info=error)
    return ClusterError(
        f"Ray lost the workers of one and the same piece of private work {tries} times "
        f"({type(error).__name__}): the run's log says more; resume the run when the cluster is well."
    )


def _value(asked: ObjectRef, seen: set[Line], tries: int) -> Any:
    import ray

    try:
        told = ray.get(asked)
    except ray.exceptions.RayError as error:
        raise lost(error, tries) from None
    return heard(told, seen)
