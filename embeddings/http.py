"""Embeddings behind an HTTP endpoint.

The endpoint gets PRIVATE samples, so the recipe must state that it is trusted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

import numpy as np

from adapters.http import (
    Connection,
    Credentials,
    Fault,
    HTTPClient,
    OnFirstUse,
    Rejected,
    Seconds,
    data_uri,
    encode_picture,
    non_null,
    object_of,
)
from adapters.http.answers import read_base64
from adapters.http.retries import Outcome
from adapters.openai_sdk import OpenAIConnection, OpenAIEndpoint
from pe.data.samples import Samples
from pe.data.texts import Texts
from pe.errors import APIError, ContractError, RecipeError, Unavailable
from pe.plugins.protocols import PluginInfo, Vectors
from pe.plugins.settings import Count, read_settings

if TYPE_CHECKING:
    import httpx2

Entries = Outcome[list[Any]]

EMPTY = "."
"""Sent for an empty text, which OpenAI's reference forbids. Blocks of private texts are filled up
with empty ones."""


class SentPrivateData(Connection):
    """Settings of the connection, and permission to send private samples over it.

    Attributes:
        trusted_with_private_data: must be true: whoever runs the endpoint sees every private
            sample.
        batch_size: samples per request.
    """

    trusted_with_private_data: bool = False
    batch_size: Count = 32
    timeout: Seconds = 60.0


class EndpointEmbedding(ABC):
    """Sends private samples to an endpoint as they are, un-noised, in requests of `batch_size`."""

    kind: ClassVar[str]
    noun: ClassVar[str]
    info = PluginInfo(
        machine_settings=(*Connection.model_fields, "batch_size"), code_settings=("key_command",)
    )

    def __init__(self, config: SentPrivateData, url: str, dimensions: int | None = None) -> None:
        self._host = urlsplit(url).netloc
        if not config.trusted_with_private_data:
            raise RecipeError(
                f"embedding '{self.kind}' would send every PRIVATE {self.noun} to {self._host}: "
                "state embedding.trusted_with_private_data: true if whoever runs it may see them "
                "(the certificate will say so), or take a local embedding."
            )
        self.info = replace(self.info, hosts=(self._host,))
        self._each = config.batch_size
        self._length = dimensions
        self._source = "it began with" if dimensions is None else "dimensions asks for"
        self._clients = OnFirstUse(self._open)

    @property
    def batch_size(self) -> int:
        """Samples per request."""
        return self._each

    @abstractmethod
    def _open(self) -> HTTPClient:
        """Return a client of the endpoint."""

    @abstractmethod
    def _send(self, client: HTTPClient, samples: Samples) -> httpx2.Response:
        """Send one request for these samples and return the answer.

        Raise Fault if there is none.
        """

    def embed(self, samples: Samples) -> Vectors:
        """Return float32, n×d, as the endpoint answers.

        Every request holds all of `samples`, or as many blank samples.

        Raises:
            APIError: the endpoint cannot be asked, or refuses these samples.
            ContractError: it does not answer with one vector per sample, of one length.
        """
        vectors = vectors_of(self._entries(samples), len(samples), self.noun, self._host)
        if self._length not in (None, vectors.shape[1]):
            raise ContractError(
                f"{self._host} answers with {vectors.shape[1]} numbers; {self._source} "
                f"{self._length}."
            )
        self._length = int(vectors.shape[1])
        return vectors

    def _entries(self, samples: Samples) -> Entries:
        """Ask without waiting.

        If the fault may heal, wait until blank samples succeed, then ask for `samples` again.

        After that the server is back, or fails on `samples` only. Only a failure of blank samples
        raises Unavailable.
        """
        outcome = self._ask(samples, is_patient=False)
        if outcome.fault is None or not outcome.fault.heals:
            return outcome
        try:
            blank = self._ask(samples.only(), is_patient=True)
        except Unavailable as error:
            raise Unavailable(f"{error} `pe run RUN` goes on when it is back.") from None
        if blank.result is None:
            raise Unavailable(
                f"The embedding's endpoint fails on blank samples: {blank.fault}; then `pe run "
                "RUN`."
            )
        return self._ask(samples, is_patient=False)

    def _ask(self, samples: Samples, is_patient: bool) -> Entries:
        """Return the entries of the endpoint's answer for these samples, or a fault."""
        client = self._clients.get()
        return client.policy.call(
            lambda: self._send(client, samples),
            lambda response: entries_of(object_of(response)),
            is_patient=is_patient,
        )


def entries_of(answer: Mapping[str, Any]) -> list[Any]:
    """Return the entries of an answer. Fault if it has none."""
    data = answer.get("data")
    if not isinstance(data, list):
        raise Fault.of_object(answer, "the answer has no list 'data'")
    return data


def vectors_of(outcome: Entries, count: int, noun: str, host: str) -> Vectors:
    """Return the vectors of a request's entries in the order of their index: float32, `count`×d.

    An embedding is a list of numbers, or the base64 of 32-bit floats, little-endian.

    Raises:
        APIError: the endpoint cannot be asked, or refuses these samples.
        ContractError: it does not answer with one vector per sample, of one length.
    """
    if outcome.fault is not None and (outcome.fault.refusal or outcome.fault.rejects):
        raise Rejected(f"{host} rejects the request with {outcome.fault}")
    if outcome.result is None:
        raise APIError(f"{host} gave no embeddings in {outcome.calls} calls: {outcome.fault}")
    try:
        rows = {int(entry["index"]): _numbers(entry["embedding"]) for entry in outcome.result}
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is no vector
            vectors = np.stack([rows[i] for i in range(count)]).astype(np.float32)
    except (KeyError, TypeError, ValueError) as error:
        raise ContractError(
            f"{host} did not answer with one vector per {noun} for {count} {noun}s."
        ) from error
    if len(outcome.result) != count or vectors.ndim != 2:
        raise ContractError(f"{host} answered with vectors that are not one per {noun}.")
    return vectors


def _numbers(embedding: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    if isinstance(embedding, str):
        return np.frombuffer(read_base64(embedding), "<f4").astype(np.float64)
    return np.asarray(embedding, dtype=np.float64)


class HTTPEmbeddingSettings(SentPrivateData):
    """Settings of `HTTPEmbedding`.

    Attributes:
        url: the endpoint's full address.
        model: as the endpoint names it.
    """

    url: str
    model: str | None = None


class HTTPEmbedding(EndpointEmbedding):
    """For a model that cannot run here: private images are sent to its endpoint, without noise.

    Vectors by POST as in Jina's API: {"input": [{"image"}]} is sent, {"data": [{"index",
    "embedding"}]} comes back.

    Private images go to this endpoint as they are, un-noised, in requests of `batch_size`.

    Args:
        settings: see `HTTPEmbeddingSettings`.

    Raises:
        RecipeError: a setting is wrong, or the endpoint is not trusted with private data.
    """

    kind = "http"
    noun = "image"
    Settings = HTTPEmbeddingSettings

    def __init__(self, **settings: Any) -> None:
        self._config = config = read_settings(HTTPEmbeddingSettings, settings, type(self).__name__)
        super().__init__(config, config.url)

    def _open(self) -> HTTPClient:
        parts = urlsplit(self._config.url)
        return HTTPClient(
            f"{parts.scheme}://{parts.netloc}", self._config, 1, Credentials(self._config)
        )

    def _send(self, client: HTTPClient, samples: Samples) -> httpx2.Response:
        images = [{"image": data_uri(image)} for image in encode_picture(samples)]
        return client.ask(
            "POST", self._config.url, json={"model": self._config.model, "input": images}
        )


class OpenAIEmbeddingsSettings(OpenAIConnection, SentPrivateData):
    """Settings of `OpenAIEmbeddings`.

    Attributes:
        model: as the endpoint names it; there is no default, because names are retired often.
        dimensions: length of the vectors, where the model has several; None: the model's own.
        encoding_format: how vectors are sent: base64, as OpenAI's SDK asks, is shorter; float for a
            server that refuses that. Either is read, whichever comes.
        extra: further fields, sent as they are.
    """

    model: str
    dimensions: Count | None = None
    encoding_format: Literal["base64", "float"] = "base64"
    extra: dict[str, Any] | None = None


class OpenAIEmbeddings(EndpointEmbedding):
    """For texts, by a model behind an endpoint: private texts are sent there without noise.

    For OpenAI, Azure, vLLM, llama.cpp, Ollama, text-embeddings-inference and others. Private texts
    go to this endpoint as they are, un-noised, in requests of `batch_size`.

    Args:
        settings: see `OpenAIEmbeddingsSettings`.

    Raises:
        RecipeError: a setting is wrong, or the endpoint is not trusted with private data.
    """

    kind = "openai_embeddings"
    noun = "text"
    Settings = OpenAIEmbeddingsSettings
    info = replace(
        EndpointEmbedding.info,
        modality="texts",
        machine_settings=(
            *Connection.model_fields,
            "batch_size",
            "encoding_format",
            "azure_api_version",
        ),
    )

    def __init__(self, **settings: Any) -> None:
        self._config = config = read_settings(
            OpenAIEmbeddingsSettings, settings, type(self).__name__
        )
        super().__init__(config, config.url, config.dimensions)

    def _open(self) -> HTTPClient:
        return OpenAIEndpoint(self._config, 1)

    def _send(self, client: HTTPClient, samples: Samples) -> httpx2.Response:
        if not isinstance(samples, Texts):
            raise ContractError(
                f"The embedding 'openai_embeddings' takes texts, not {type(samples).__name__}."
            )
        config = self._config
        texts = [text or EMPTY for text in samples.strings]
        body = {"input": texts, "model": config.model, "encoding_format": config.encoding_format}
        body |= non_null(dimensions=config.dimensions) | (config.extra or {})
        return client.ask("POST", "/embeddings", body=body)
