"""A request cut into those that a generator of several passes on, and their answers put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pe.data.samples import DRAWN, Conditions
from pe.errors import ContractError
from pe.plugins.protocols import (
    NOTHING,
    Answer,
    Capabilities,
    Failed,
    JobNote,
    RandomRequest,
    Refused,
    VariationRequest,
)

Items = npt.NDArray[np.int64]
Request = RandomRequest | VariationRequest


def cut(request: Request, items: Items, can: Capabilities) -> Iterator[Items]:
    """Requests for some items of a request, each as a generator can take it; the dispatcher's are so already."""
    groups: dict[object, list[int]] = {}
    for item in items.tolist():
        groups.setdefault(_shared(request, item, can), []).append(item)
    for group in groups.values():
        for start in range(0, len(group), can.max_chunk):
            yield np.array(group[start : start + can.max_chunk])


def _shared(request: Request, item: int, can: Capabilities) -> object:
    """What an item must have in common with all others of its request."""
    if can.shares == "nothing":
        return None
    if can.shares == "parent" and isinstance(request, VariationRequest):
        return request.samples.array[item].tobytes()
    columns = [column for name, column in request.conditions.items() if name != DRAWN]
    return request.labels[item], *(column[item].tobytes() for column in columns)


def part_of(request: Request, items: Items) -> Request:
    """Some items of a request, as one of its own."""
    labels, conditions = tuple(request.labels[item] for item in items), request.conditions.take(items)
    job = JobNote(check_stop=request.job.check_stop)
    if isinstance(request, RandomRequest):
        return RandomRequest(labels, request.seeds[items], conditions, job)
    samples, seeds = request.samples.take(items), request.seeds[items]
    return replace(request, samples=samples, labels=labels, conditions=conditions, seeds=seeds, job=job)


def together(parts: Sequence[tuple[Items, Answer]]) -> Answer:
    """The answers to parts of a request, each with its items, as the answer to all of it.

    Raises:
        ContractError: their samples differ in shape.
    """
    missing: dict[int, Refused | Failed] = {}
    usage, made = NOTHING, []
    for items, answer in parts:
        missing |= {int(items[i]): miss for i, miss in answer.missing.items()}
        usage += answer.billed
        if len(answer.samples):
            made.append((np.delete(items, sorted(answer.missing)), answer))
    if not made:
        return replace(parts[0][1], missing=missing, usage=usage)
    if len(shapes := {answer.samples.array.shape[1:] for _, answer in made}) > 1:
        raise ContractError(f"The generators answered with samples of the shapes {sorted(shapes)}.")
    order = np.argsort(np.concatenate([items for items, _ in made]), kind="stable")
    samples = type(made[0][1].samples)(np.concatenate([answer.samples.array for _, answer in made])[order])
    conditions = Conditions.concatenate([answer.conditions for _, answer in made]).take(order)
    return Answer(samples, conditions, missing, usage)
