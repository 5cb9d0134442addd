"""A phase of API work: the items it asks for, the requests that ask for them, and what came back."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pe.data.conditions import Conditions
from pe.data.population import Population
from pe.data.samples import Array
from pe.data.seeds import item_seeds
from pe.errors import ContractError
from pe.protocols import Answer, Capabilities, GenerationAPI, RandomRequest, VariationRequest

Items = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Work:
    """n items wanted from a generator.

    Attributes:
        phase: a name unique in the run, `population/3` or `lookahead/3`; it seeds the items.
        labels: int32 (n,), index into `classes`.
        classes: the public label names.
        seed: the recipe's seed.
        source: the population whose members are varied; None for RANDOM_API.
        parents: int64 (n,), the member that each item varies; NO_PARENT for RANDOM_API.
        degree: variation in [0, 1].
    """

    phase: str
    labels: npt.NDArray[np.int32]
    classes: tuple[str, ...]
    seed: int
    parents: Items
    source: Population | None = None
    degree: float = 1.0

    def __len__(self) -> int:
        return len(self.labels)

    def chunks(self, items: Items, capabilities: Capabilities) -> Iterator[Items]:
        """Cut `items` into requests that the generator can take."""
        for group in self._groups(items, capabilities.shares):
            for start in range(0, len(group), capabilities.max_chunk):
                yield group[start : start + capabilities.max_chunk]

    def _groups(self, items: Items, shares: str) -> list[Items]:
        if shares == "nothing":
            return [items]
        if self.source is None:
            keys = self.labels[items].astype(np.int64)
        elif shares == "parent":
            keys = self.parents[items]
        else:
            keys = _row_keys(self.source.conditions.take(self.parents[items]), self.labels[items])
        order = np.argsort(keys, kind="stable")
        boundaries = np.flatnonzero(np.diff(keys[order])) + 1
        return np.split(items[order], boundaries)

    def ask(self, api: GenerationAPI, items: Items, attempts: Items) -> Answer:
        """Ask the generator for `items`, each for the `attempts[i]`-th time.

        Raises:
            ContractError: the answer is not what the protocol says.
        """
        seeds = item_seeds(self.seed, self.phase, items, attempts)
        labels = tuple(self.classes[label] for label in self.labels[items])
        if self.source is None:
            return check_answer(api, "random_api", api.random_api(RandomRequest(labels, seeds)), len(items))
        parents = self.source.take(self.parents[items])
        request = VariationRequest(parents.samples, labels, parents.conditions, seeds, self.degree)
        answer = check_answer(api, "variation_api", api.variation_api(request), len(items))
        if answer.conditions or not parents.conditions:
            return answer
        kept = [i for i in range(len(items)) if i not in answer.missing]
        return Answer(answer.samples, parents.conditions.take(kept), answer.missing, answer.usage)


def check_answer(api: GenerationAPI, method: str, answer: object, count: int) -> Answer:
    """`answer` if it is a whole answer to `count` items.

    Raises:
        ContractError: another type, or another number of samples, conditions or missing items.
    """
    where = f"{type(api).__name__}.{method}"
    if not isinstance(answer, Answer):
        raise ContractError(f"{where} returned {type(answer).__name__}: return pe.Answer(pe.Images(array)).")
    got = len(answer.samples)
    if got + len(answer.missing) != count or not all(0 <= i < count for i in answer.missing):
        raise ContractError(
            f"{where} was asked for {count} samples and returned {got} with {len(answer.missing)} missing: "
            "return one per item and name the others in Answer.missing."
        )
    if answer.conditions.rows not in (None, got):
        raise ContractError(f"{where} returned {got} samples with {answer.conditions.rows} rows of conditions.")
    return answer


def _row_keys(conditions: Conditions, labels: npt.NDArray[np.int32]) -> Items:
    """The same number for items of the same label and condition."""
    keys = labels.astype(np.int64)
    for column in conditions.values():
        _, inverse = np.unique(column, axis=0, return_inverse=True)
        _, keys = np.unique(np.stack([keys, inverse.reshape(-1)]), axis=1, return_inverse=True)
        keys = keys.reshape(-1)
    return keys


def encode(columns: dict[str, Array]) -> bytes:
    """Named arrays as bytes: their names, then each array, all in the .npy format, one after another."""
    buffer = io.BytesIO()
    for array in (np.array(list(columns)), *columns.values()):
        np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def decode(data: bytes) -> dict[str, Array]:
    """The named arrays that `encode` wrote; never executes anything."""
    buffer = io.BytesIO(data)
    names = np.load(buffer, allow_pickle=False)
    return {str(name): np.load(buffer, allow_pickle=False) for name in names}
