"""Text embeddings by OpenAI's API: OpenAI, Azure, vLLM, llama.cpp, Ollama, text-embeddings-inference and others.

It is sent PRIVATE texts, so the recipe must say that it may be.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlsplit

from adapters.http import Connection, OnFirstUse, stated
from adapters.http.openai_sdk import OpenAIConnection, SDKEndpoint
from embeddings.endpoint import Entries, SentPrivateData, ask_for, entries_of, vectors_of
from pe.data.samples import Samples
from pe.data.texts import Texts
from pe.errors import ContractError
from pe.plugins.protocols import PluginInfo, Vectors
from pe.plugins.validation import Count, read_settings

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
