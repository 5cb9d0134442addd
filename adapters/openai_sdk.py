"""OpenAI's API by OpenAI's SDK, which makes requests and knows Azure.

`Policy` retries, and we read the answers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adapters.http.client import HTTPClient, fault_of
from adapters.http.credentials import Credentials
from adapters.http.faults import Fault
from adapters.http.settings import Connection
from pe.plugins.devices import import_library

if TYPE_CHECKING:
    import httpx2

OPENAI = "https://api.openai.com/v1"


class OpenAIConnection(Connection):
    """Connection settings of an endpoint that speaks OpenAI's API.

    Attributes:
        base_url: the endpoint's address; None: that in OPENAI_BASE_URL, else OpenAI's own.
        azure_api_version: the API version of Azure OpenAI, whose `base_url` is the resource's
            address; None: not Azure.
    """

    base_url: str | None = None
    key_env: str | None = "OPENAI_API_KEY"
    azure_api_version: str | None = None

    @property
    def url(self) -> str:
        """Address that samples are sent to."""
        return address_of({"base_url": self.base_url})


def address_of(settings: Mapping[str, Any]) -> str:
    """Return the address that settings name.

    Without one, return that in OPENAI_BASE_URL, else OpenAI's own.
    """
    return str(settings.get("base_url") or os.environ.get("OPENAI_BASE_URL") or OPENAI)


class OpenAIEndpoint(HTTPClient):
    """An endpoint that speaks OpenAI's API, under the one policy.

    Raise RecipeError if the key cannot be read.

    The organisation in OPENAI_ORG_ID and the project in OPENAI_PROJECT_ID are billed.
    """

    def __init__(self, config: OpenAIConnection, concurrency: int) -> None:
        # Azure takes the key in a header of its own, but tokens that expire (Entra ID) as all
        # others do.
        is_azure_key = config.azure_api_version is not None and not config.key_expires
        credentials = Credentials(config, header="api-key" if is_azure_key else "Authorization")
        super().__init__(config.url, config, concurrency, credentials)
        self._sdk = _open_sdk(config, self.pool)

    def ask(self, method: str, where: str, **request: Any) -> httpx2.Response:
        """Make a request to a path and return the response.

        Raise Fault as `HTTPClient.ask` does.

        Args:
            method: GET or POST.
            where: the path, such as /embeddings; on Azure the SDK puts it below the deployment of
                the body's `model`.
            request: `body` and `files` of a POST, and `options` of either, as the SDK takes them.
        """
        import httpx2
        import openai

        send = self._sdk.get if method == "GET" else self._sdk.post
        try:
            response: httpx2.Response = send(
                where,
                cast_to=httpx2.Response,
                **request,
            )
            return response
        except openai.APIStatusError as error:
            fault = fault_of(error.response)
        except openai.APIConnectionError as error:
            fault = Fault.of_transport(error.__cause__ or error)
        assert fault is not None
        raise fault


def form(fields: Mapping[str, Any], **files: tuple[str, bytes, str]) -> dict[str, Any]:
    """Return a form as `OpenAIEndpoint.ask` takes it.

    A file is its name, its content and its type.
    """
    return {
        "body": fields,
        "files": files,
        "options": {"headers": {"Content-Type": "multipart/form-data"}},
    }


def _open_sdk(config: OpenAIConnection, pool: httpx2.Client) -> Any:
    """Return the SDK's client over our own connections.

    These sign each request and bound each answer.
    """
    sdk = import_library(
        "openai",
        "http",
        "Calling an endpoint that speaks OpenAI's API",
    )
    # The recipe names all headers and the host that they go to, so those of OPENAI_CUSTOM_HEADERS
    # are left out.
    lines = os.environ.get("OPENAI_CUSTOM_HEADERS", "").split("\n")
    names = [line.partition(":")[0].strip() for line in lines]
    headers = {name: sdk.omit for name in names if name.lower() not in ("", "authorization")}
    settings: dict[str, Any] = {
        "api_key": "-",
        "default_headers": headers | {"Authorization": "-"},  # which `Credentials.sign` replaces
        "http_client": pool,
        "max_retries": 0,
        "timeout": pool.timeout,
    }
    pool.event_hooks["request"].append(_tell_nothing)
    if config.azure_api_version is None:
        return sdk.OpenAI(base_url=config.url, **settings)
    return sdk.AzureOpenAI(
        azure_endpoint=config.url, api_version=config.azure_api_version, **settings
    )


def _tell_nothing(request: httpx2.Request) -> None:
    """Remove the headers by which the SDK describes this machine."""
    import httpx2

    # In one go: to delete each of a dozen headers costs as much as the rest of a request.
    kept = [
        (name, value)
        for name, value in request.headers.raw
        if not name.lower().startswith(b"x-stainless-")
    ]
    request.headers = httpx2.Headers(kept)
