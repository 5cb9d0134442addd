"""What embeddings behind an endpoint share: it is sent PRIVATE samples, so the recipe must say that it may be."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

import numpy as np

from adapters.http import Connection, Endpoints, Fault, OnFirstUse, Rejected, Seconds, encoded, object_of, stated
from adapters.http.answers import read_base64
from adapters.http.openai_sdk import OpenAIConnection, SDKEndpoint
from adapters.http.policy import Outcome
from pe.data.samples import Samples
from pe.data.texts import Texts
from pe.errors import APIError, ContractError, RecipeError, Unavailable
from pe.plugins.protocols import PluginInfo, Vectors
from pe.plugins.settings import Count, read_settings

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


# Image embeddings from an endpoint. It is sent PRIVATE images, so the recipe must say that it may be.


Body = Callable[[str | None, list[str]], dict[str, Any]]
"""(model, images as data URIs) → the request's JSON."""


def jina_body(model: str | None, images: list[str]) -> dict[str, Any]:
    """The request as Jina's API and those like it want it."""
    return {"model": model, "input": [{"image": image} for image in images]}


class HTTPEmbeddingSettings(SentPrivateData):
    """What a recipe says of the endpoint.

    Attributes:
        url: the endpoint's full address.
        model: as the endpoint names it.
    """

    url: str
    model: str | None = None


class HTTPEmbedding:
    """Vectors by POST: images in base64 go out, {"data": [{"index", "embedding"}]} comes back.

    Private images go to this endpoint as they are, un-noised, in blocks of `batch_size`. For another service's
    request, subclass nothing: hand over another `body`.

    Args:
        body: builds the request; not from a recipe.
        settings: see `HTTPEmbeddingSettings`.

    Raises:
        RecipeError: a setting is wrong, or the endpoint is not trusted with private data.
    """

    Settings = HTTPEmbeddingSettings

    info = PluginInfo(machine_settings=tuple(Connection.model_fields), code_settings=("key_command",))

    def __init__(self, *, body: Body = jina_body, **settings: Any) -> None:
        self._given = given = read_settings(HTTPEmbeddingSettings, settings, type(self).__name__)
        parts = urlsplit(given.url)
        self._host, root = parts.netloc, f"{parts.scheme}://{parts.netloc}"
        given.check_trusted("http", "image", self._host)
        self._body, self._endpoint = body, OnFirstUse(lambda: Endpoints([root], given.impatient, 1))
        self._patient = OnFirstUse(lambda: Endpoints([root], given, 1))
        self._path = given.url[len(root) :]  # to the letter: its last slash may make another address of it
        self.info = replace(self.info, hosts=(self._host,))
        self._dimension: int | None = None

    @property
    def batch_size(self) -> int:
        """Images per request."""
        return self._given.batch_size

    def embed(self, samples: Samples) -> Vectors:
        """float32, n×d, as the endpoint answers.

        Every request holds as many images as `samples`.

        Raises:
            APIError: the endpoint cannot be asked, or refuses these images.
            ContractError: it does not answer with one vector per image, of one length.
        """
        outcome = ask_for(samples, self._ask, self._endpoint, self._patient)
        vectors = vectors_of(outcome, len(samples), "image", self._host)
        if self._dimension not in (None, vectors.shape[1]):
            raise ContractError(f"{self._host} answered with {vectors.shape[1]} numbers after {self._dimension}.")
        self._dimension = int(vectors.shape[1])
        return vectors

    def _ask(self, endpoint: Endpoints, samples: Samples) -> Entries:
        images = ["data:image/png;base64," + base64.b64encode(data).decode() for data in encoded(samples)]
        body = self._body(self._given.model, images)
        return endpoint.ask(self._path, lambda answer: entries_of(object_of(answer)), json=body)


# Text embeddings by OpenAI's API: OpenAI, Azure, vLLM, llama.cpp, Ollama, text-embeddings-inference and others.
#
# It is sent PRIVATE texts, so the recipe must say that it may be.


EMPTY = "."
"""Sent in place of an empty text, which OpenAI's reference forbids; blocks of private texts are filled up with such."""


class OpenAIEmbeddingsSettings(OpenAIConnection, SentPrivateData):
    """What a recipe says of the endpoint.

    Attributes:
        model: as the endpoint names it; there is no default, because names are retired often.
        dimensions: length of the vectors, where the model has several; None: the model's own.
        encoding_format: how vectors are sent: base64, as OpenAI's SDK asks, is shorter; float for a server that refuses
            that. Either is read, whichever comes.
        extra: further fields, sent as they are.
    """

    model: str
    dimensions: Count | None = None
    encoding_format: Literal["base64", "float"] = "base64"
    extra: dict[str, Any] | None = None


class OpenAIEmbeddings:
    """Vectors of texts by POST /embeddings, through the official SDK.

    Private texts go to this endpoint as they are, un-noised, in requests of `batch_size`.

    Args:
        settings: see `OpenAIEmbeddingsSettings`.

    Raises:
        RecipeError: a setting is wrong, or the endpoint is not trusted with private data.
    """

    Settings = OpenAIEmbeddingsSettings

    info = PluginInfo(modality="texts", machine_settings=tuple(Connection.model_fields), code_settings=("key_command",))

    def __init__(self, **settings: Any) -> None:
        self._given = given = read_settings(OpenAIEmbeddingsSettings, settings, type(self).__name__)
        host = urlsplit(given.url).netloc
        given.check_trusted("openai_embeddings", "text", host)
        self._endpoint = OnFirstUse(lambda: SDKEndpoint(given.impatient, 1, "OpenAI's embeddings"))
        self._patient = OnFirstUse(lambda: SDKEndpoint(given, 1, "OpenAI's embeddings"))
        self.info = replace(self.info, hosts=(host,))
        self._length = given.dimensions

    @property
    def batch_size(self) -> int:
        """Texts per request."""
        return self._given.batch_size

    def embed(self, samples: Samples) -> Vectors:
        """float32, n×d, as the endpoint answers.

        Every request holds as many texts as `samples`.

        Raises:
            APIError: the endpoint cannot be asked, or refuses these texts.
            ContractError: the samples are not texts, or it does not answer with one vector per text, of one length.
        """
        if not isinstance(samples, Texts):
            raise ContractError(f"The embedding 'openai_embeddings' takes texts, not {type(samples).__name__}.")
        given, host = self._given, self._endpoint.get().host
        vectors = vectors_of(ask_for(samples, self._ask, self._endpoint, self._patient), len(samples), "text", host)
        if self._length not in (None, vectors.shape[1]):
            told = "dimensions asks for" if given.dimensions else "it began with"
            raise ContractError(f"{host} answers with {vectors.shape[1]} numbers; {told} {self._length}.")
        self._length = int(vectors.shape[1])
        return vectors

    def _ask(self, endpoint: SDKEndpoint, samples: Samples) -> Entries:
        assert isinstance(samples, Texts)
        given, texts = self._given, [text or EMPTY for text in samples.strings]
        fields = stated(dimensions=given.dimensions, extra_body=given.extra)
        fields |= {"model": given.model, "encoding_format": given.encoding_format}
        create = endpoint.client.embeddings.with_raw_response.create
        return endpoint.ask(lambda: create(input=texts, **fields), entries_of)
