"""Image embeddings from an endpoint. It is sent PRIVATE images, so the recipe must say that it may be."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from adapters.http import Connection, Endpoints, Fault, OnFirstUse, Rejected, Seconds, encoded, object_of
from pe.data.samples import Samples
from pe.errors import APIError, ContractError, RecipeError
from pe.plugins.protocols import PluginInfo, Vectors
from pe.plugins.validation import Count, read_settings

if TYPE_CHECKING:
    import httpx2

Body = Callable[[str | None, list[str]], dict[str, Any]]
"""(model, images as data URIs) → the request's JSON."""


def jina_body(model: str | None, images: list[str]) -> dict[str, Any]:
    """The request as Jina's API and those like it want it."""
    return {"model": model, "input": [{"image": image} for image in images]}


class HTTPEmbeddingSettings(Connection):
    """What a recipe says of the endpoint.

    Attributes:
        url: the endpoint's full address.
        trusted_with_private_data: must be true: whoever runs the endpoint sees every private image.
        model: as the endpoint names it.
        batch_size: images per request.
        tries: how often a request is made.
    """

    url: str
    trusted_with_private_data: bool = False
    model: str | None = None
    batch_size: Count = 32
    timeout: Seconds = 60.0


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
        self._host = urlsplit(given.url).netloc
        if not given.trusted_with_private_data:
            raise RecipeError(
                f"embedding 'http' would send every PRIVATE image to {self._host}: state "
                "embedding.trusted_with_private_data: true if whoever runs it may see them (the certificate will say "
                "so), or take a local embedding."
            )
        self._body, self._endpoint = body, OnFirstUse(lambda: Endpoints([given.url], given, concurrency=1))
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
        images = ["data:image/png;base64," + base64.b64encode(data).decode() for data in encoded(samples)]
        outcome = self._endpoint.get().ask("", _entries, self._body(self._given.model, images))
        if outcome.fault is not None and outcome.fault.refusal:
            raise Rejected(f"{self._host} refuses: {outcome.fault}", outcome.fault.status)
        if outcome.result is None:
            raise APIError(f"{self._host} gave no embeddings in {outcome.calls} calls: {outcome.fault}")
        vectors = self._ordered(outcome.result, len(images))
        if self._dimension not in (None, vectors.shape[1]):
            raise ContractError(f"{self._host} answered with {vectors.shape[1]} numbers after {self._dimension}.")
        self._dimension = int(vectors.shape[1])
        return vectors

    def _ordered(self, entries: list[Any], count: int) -> Vectors:
        """The vectors by their index."""
        try:
            found = {int(entry["index"]): np.asarray(entry["embedding"], dtype=np.float64) for entry in entries}
            with np.errstate(over="ignore"):  # what is too large becomes infinite, and is no vector
                vectors = np.stack([found[i] for i in range(count)]).astype(np.float32)
        except (KeyError, TypeError, ValueError) as error:
            raise ContractError(f"{self._host} did not answer with one vector per image for {count} images.") from error
        if len(entries) != count or vectors.ndim != 2:
            raise ContractError(f"{self._host} answered with vectors that are not one per image.")
        return vectors


def _entries(response: httpx2.Response) -> list[Any]:
    """The entries of an answer.

    Raises:
        Fault: it has none.
    """
    data = object_of(response).get("data")
    if not isinstance(data, list):
        raise Fault("the answer has no list 'data'")
    return data
