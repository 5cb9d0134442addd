"""What embeddings behind an endpoint share: it is sent PRIVATE samples, so the recipe must say that it may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import numpy as np

from adapters.http import Connection, Fault, OnFirstUse, Rejected, Seconds
from adapters.http.pictures import read_base64
from adapters.http.policy import Outcome
from pe.data.samples import Samples
from pe.errors import APIError, ContractError, RecipeError, Unavailable
from pe.plugins.protocols import Vectors
from pe.plugins.validation import Count

Asker = TypeVar("Asker")
Entries = Outcome[list[Any]]


class SentPrivateData(Connection):
    """How the endpoint is reached, and that it may be.

    Attributes:
        trusted_with_private_data: must be true: whoever runs the endpoint sees every private sample.
        batch_size: samples per request.
        tries: how often a request is made.
    """

    trusted_with_private_data: bool = False
    batch_size: Count = 32
    timeout: Seconds = 60.0

    @property
    def impatient(self) -> Self:
        """These settings without patience."""
        return self.model_copy(update={"patience": 0.0})

    def check_trusted(self, kind: str, noun: str, host: str) -> None:
        """Raise RecipeError unless the recipe says that the host may see private samples.

        Args:
            kind: of the embedding.
            noun: what people call a sample.
            host: the endpoint's.
        """
        if not self.trusted_with_private_data:
            raise RecipeError(
                f"embedding '{kind}' would send every PRIVATE {noun} to {host}: state "
                "embedding.trusted_with_private_data: true if whoever runs it may see them (the certificate will say "
                "so), or take a local embedding."
            )


def entries_of(answer: Mapping[str, Any]) -> list[Any]:
    """The entries of an answer.

    Raises:
        Fault: it has none.
    """
    data = answer.get("data")
    if not isinstance(data, list):
        raise Fault.of_object(answer, "the answer has no list 'data'")
    return data


def ask_for(
    samples: Samples,
    ask: Callable[[Asker, Samples], Entries],
    quick: OnFirstUse[Asker],
    patient: OnFirstUse[Asker],
) -> Entries:
    """Embed private samples by an endpoint without patience.

    Where it brings nothing, blank samples are asked for with patience first: if they bring something, the server is
    back, or only these samples fail.

    Raises:
        Unavailable: it is away; the message is about blank samples.
    """
    outcome = ask(quick.get(), samples)
    if outcome.fault is None or not outcome.fault.heals:
        return outcome
    try:
        blank = ask(patient.get(), samples.only())
    except Unavailable as error:
        raise Unavailable(f"{error} `pe resume RUN` goes on when it is back.") from None
    if blank.result is None:
        raise Unavailable(f"The embedding's endpoint fails on blank samples: {blank.fault}; then `pe resume RUN`.")
    return ask(quick.get(), samples)


def vectors_of(outcome: Entries, count: int, noun: str, host: str) -> Vectors:
    """The vectors that a request for `count` samples brought, by their index: {"index", "embedding"}.

    An embedding is a list of numbers, or the base64 of 32-bit floats, little-endian.

    Raises:
        APIError: the endpoint cannot be asked, or refuses these samples.
        ContractError: it does not answer with one vector per sample, of one length.
    """
    if outcome.fault is not None and outcome.fault.refusal:
        raise Rejected(f"{host} refuses: {outcome.fault}", outcome.fault.status)
    if outcome.result is None:
        raise APIError(f"{host} gave no embeddings in {outcome.calls} calls: {outcome.fault}")
    try:
        found = {int(entry["index"]): _numbers(entry["embedding"]) for entry in outcome.result}
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is no vector
            vectors = np.stack([found[i] for i in range(count)]).astype(np.float32)
    except (KeyError, TypeError, ValueError) as error:
        raise ContractError(f"{host} did not answer with one vector per {noun} for {count} {noun}s.") from error
    if len(outcome.result) != count or vectors.ndim != 2:
        raise ContractError(f"{host} answered with vectors that are not one per {noun}.")
    return vectors


def _numbers(embedding: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    if isinstance(embedding, str):
        return np.frombuffer(read_base64(embedding), "<f4").astype(np.float64)
    return np.asarray(embedding, dtype=np.float64)
