"""The official SDK of OpenAI under the one policy: no retries of its own, its errors translated in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from adapters.http.client import check_redirect
from adapters.http.credentials import Credentials
from adapters.http.faults import Fault
from pe.errors import MissingDependency

if TYPE_CHECKING:
    import httpx2
    import openai

OPENAI = "https://api.openai.com/v1"


class SpeaksOpenAI(Protocol):
    """What settings say of an endpoint that speaks OpenAI's API."""

    @property
    def url(self) -> str:
        """Where it is."""
        ...

    @property
    def azure_api_version(self) -> str | None:
        """For Azure OpenAI, whose address is the resource's; None: another."""
        ...


def open_sdk(given: SpeaksOpenAI, credentials: Credentials, pool: httpx2.Client, purpose: str) -> openai.OpenAI:
    """The SDK over connections of ours.

    Raises:
        MissingDependency: it is not installed; the message begins with `purpose`.
    """
    try:
        import openai
    except ImportError as error:
        raise MissingDependency.of("openai", "http", purpose) from error
    common: dict[str, Any] = {"api_key": credentials.key or "none", "max_retries": 0, "http_client": pool}
    if given.azure_api_version is not None:
        return openai.AzureOpenAI(azure_endpoint=given.url, api_version=given.azure_api_version, **common)
    return openai.OpenAI(base_url=given.url, **common)


def key_header(given: SpeaksOpenAI, expires: bool) -> str:
    """The header that takes the key: of Azure its own, but for a key that expires, which is a token of Entra ID."""
    return "api-key" if given.azure_api_version is not None and not expires else "Authorization"


def sent(send: Callable[[], Any]) -> httpx2.Response:
    """The response to one call by the SDK.

    Raises:
        Fault: the SDK's error, translated.
    """
    import openai

    try:
        response = send()
    except openai.APIStatusError as error:
        check_redirect(error.status_code, error.response.headers.get("location", ""))
        raise Fault.of_response(error.status_code, error.response.headers, error.response.content) from error
    except openai.APIConnectionError as error:  # time-outs, too
        raise Fault.of_chain(error) from error
    return cast("httpx2.Response", getattr(response, "http_response", response))
