"""What a recipe says of an endpoint of OpenAI's chat completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from adapters.http import Concurrent, Seconds
from adapters.http.openai_batches import MOST
from adapters.http.openai_sdk import OpenAIConnection
from adapters.http.recognition import server_by_address
from adapters.text_settings import Written
from pe.errors import RecipeError
from pe.plugins.validation import Count, Settings


class ExpectedTokens(Settings):
    """Tokens of an average request, which `pe probe` tells."""

    text_in: Count = Field(description="of what is sent: the prompt, and in a variation the parent")
    text_out: Count = Field(description="of what the model writes, its thoughts included")


class ChatSettings(Concurrent, OpenAIConnection, Written):
    """What a recipe says of such an endpoint.

    Attributes:
        model: as the endpoint names it; there is no default, because names are retired often.
        n: most texts of one request: of equal prompts, or variations of one parent (variation: paraphrase).
        max_tokens_field: the field that takes `max_tokens`; None: max_completion_tokens for OpenAI and Azure, else
            max_tokens.
        seed_field: a field by which the server takes a seed.
        batch: ask by OpenAI's Batch API, with at most so many texts a batch; None: each text is a request of its own.
        poll: seconds before a batch is first looked at; later looks come up to ten times as rarely.
        expected_tokens: of a request for one text, so that the plan tells what a run costs where tokens have a price.
        extra: further fields, sent as they are (top_k, reasoning_effort, chat_template_kwargs …).
    """

    model: str
    concurrency: Count = 8
    n: Count = 1
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] | None = None
    seed_field: str | None = None
    batch: Annotated[int, Field(ge=1, le=MOST)] | None = None
    poll: Seconds = 30.0
    expected_tokens: ExpectedTokens | None = None
    extra: dict[str, Any] | None = None

    @property
    def limit_field(self) -> str:
        """The field that takes `max_tokens`."""
        new = self.azure_api_version is not None or server_by_address(self.url) is not None
        return self.max_tokens_field or ("max_completion_tokens" if new else "max_tokens")

    @model_validator(mode="after")
    def _check_requests(self) -> Self:
        if self.n > 1 and self.variation == "fill_in":
            raise RecipeError(
                f"n is {self.n}, and by variation: fill_in each text has blanks of its own, and so a request of its "
                "own: take n: 1, or variation: paraphrase."
            )
        if self.batch is not None and self.n > 1:
            raise RecipeError(f"n is {self.n}, and batch is given: a batch asks for each text by itself: take n: 1.")
        if self.batch is not None and self.azure_api_version is not None:
            raise RecipeError(
                "batch is given with azure_api_version: Azure takes batches by its v1 API, so name that as base_url "
                "(https://RESOURCE.openai.azure.com/openai/v1), without azure_api_version."
            )
        return self
