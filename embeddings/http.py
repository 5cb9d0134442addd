"""Image embeddings from an endpoint. It is sent PRIVATE images, so the recipe must say that it may be."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from adapters.http import Connection, Endpoints, OnFirstUse, encoded, object_of
from embeddings.endpoint import Entries, SentPrivateData, ask_for, entries_of, vectors_of
from pe.data.samples import Samples
from pe.errors import ContractError
from pe.plugins.protocols import PluginInfo, Vectors
from pe.plugins.validation import read_settings

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
        return endpoint.ask(self._path, lambda answer: entries_of(object_of(answer)), body)
