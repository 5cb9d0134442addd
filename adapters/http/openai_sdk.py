"""The official SDK of OpenAI under the one policy: no retries of its own, its errors translated in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast
from urllib.parse import urlsplit
from weakref import finalize

from adapters.http.client import check_redirect, object_of, open_client
from adapters.http.credentials import Credentials
from adapters.http.faults import Fault
from adapters.http.policy import CheckStop, Outcome, policy_of
from adapters.http.settings import Connection
from pe.errors import MissingDependency

if TYPE_CHECKING:
    import httpx2
    import openai

Result = TypeVar("Result")

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


class OpenAIConnection(Connection):
    """How an endpoint that speaks OpenAI's API is reached.

    Attributes:
        base_url: of the endpoint; None: OpenAI's own.
        azure_api_version: for Azure OpenAI, whose `base_url` is the resource's address.
    """

    base_url: str | None = None
    key_env: str | None = "OPENAI_API_KEY"
    azure_api_version: str | None = None

    @property
    def url(self) -> str:
        """Where samples are sent."""
        return self.base_url or OPENAI


class SDKEndpoint:
    """An endpoint by the SDK, under the one policy.

    Attributes:
        host: what messages call it.
        client: the SDK.
        credentials: who asks.
        policy: retries and rates.

    Args:
        given: how it is reached.
        concurrency: requests at once, at the most.
        purpose: what the SDK is needed for.

    Raises:
        MissingDependency: it is not installed; the message begins with `purpose`.
        RecipeError: what a setting names is not there.
    """

    def __init__(self, given: OpenAIConnection, concurrency: int, purpose: str) -> None:
        self.host = urlsplit(given.url).netloc
        self.credentials = Credentials(given, header=key_header(given, given.key_expires))
        pool = open_client(given, concurrency, self.credentials)
        finalize(self, pool.close)
        self.policy = policy_of(given, self.host, concurrency, self.credentials)
        self.client = open_sdk(given, self.credentials, pool, purpose)

    def ask(
        self,
        send: Callable[[], Any],
        read: Callable[[dict[str, Any]], Result],
        check_stop: CheckStop = lambda: None,
    ) -> Outcome[Result]:
        """What came of one call by the SDK, whose answer is a JSON object; see `Policy.call`."""
        ask = self.credentials.ask
        return self.policy.call(lambda: ask(lambda: sent(send)), lambda response: read(object_of(response)), check_stop)


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
