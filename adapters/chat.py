"""Any endpoint that speaks OpenAI's chat completions: OpenAI, Azure, vLLM, Ollama, llama.cpp, LiteLLM and others.

RANDOM_API sends a public prompt; VARIATION_API sends a synthetic text with blanks to fill in, or to be paraphrased.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit
from weakref import finalize

from pydantic import Field, model_validator

from adapters.http import (
    Concurrent,
    Credentials,
    Fault,
    OnFirstUse,
    Policy,
    object_of,
    open_client,
    stated,
    workers_for,
)
from adapters.http.faults import one_line
from adapters.http.look import look_at
from adapters.http.openai_sdk import OPENAI, key_header, open_sdk, sent
from adapters.http.recognition import server_by_address
from adapters.text_prompts import Asking, Outcome, answer_of
from adapters.text_settings import Written
from pe.data.conditions import Conditions
from pe.errors import RecipeError
from pe.plugins.findings import Finding
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    Failed,
    PluginInfo,
    RandomRequest,
    Refused,
    Seeds,
    Usage,
    VariationRequest,
)
from pe.plugins.validation import Count, Settings, read_settings

if TYPE_CHECKING:
    import httpx2
    import openai

Read = tuple[list[Outcome], Usage]


class ExpectedTokens(Settings):
    """Tokens of an average request, which `pe probe` tells."""

    text_in: Count = Field(description="of what is sent: the prompt, and in a variation the parent")
    text_out: Count = Field(description="of what the model writes, its thoughts included")


class ChatSettings(Concurrent, Written):
    """What a recipe says of such an endpoint.

    Attributes:
        model: as the endpoint names it; there is no default, because names are retired often.
        base_url: of the endpoint; None: OpenAI's own.
        azure_api_version: for Azure OpenAI, whose `base_url` is the resource's address.
        n: most texts of one request: of equal prompts, or variations of one parent (variation: paraphrase).
        max_tokens_field: the field that takes `max_tokens`; None: max_completion_tokens for OpenAI and Azure, else
            max_tokens.
        seed_field: a field by which the server takes a seed.
        expected_tokens: of a request for one text, so that the plan tells what a run costs where tokens have a price.
        extra: further fields, sent as they are (top_k, reasoning_effort, chat_template_kwargs …).
    """

    model: str
    base_url: str | None = None
    key_env: str | None = "OPENAI_API_KEY"
    concurrency: Count = 8
    azure_api_version: str | None = None
    n: Count = 1
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] | None = None
    seed_field: str | None = None
    expected_tokens: ExpectedTokens | None = None
    extra: dict[str, Any] | None = None

    @property
    def url(self) -> str:
        """Where samples are sent."""
        return self.base_url or OPENAI

    @property
    def limit_field(self) -> str:
        """The field that takes `max_tokens`."""
        new = self.azure_api_version is not None or server_by_address(self.url) is not None
        return self.max_tokens_field or ("max_completion_tokens" if new else "max_tokens")

    @model_validator(mode="after")
    def _check_one_prompt(self) -> Self:
        if self.n > 1 and self.variation == "fill_in":
            raise RecipeError(
                f"n is {self.n}, and by variation: fill_in each text has blanks of its own, and so a request of its "
                "own: take n: 1, or variation: paraphrase."
            )
        return self


class Chat:
    """RANDOM_API and VARIATION_API by OpenAI's chat completions.

    Samples carry their prompt as the condition `prompt`, and the attributes that were drawn for it. Degree 0 is the
    parent itself and makes no call. Nothing is deterministic, even where a seed is sent.

    Args:
        settings: see `ChatSettings`.

    Raises:
        RecipeError: a setting is wrong.
    """

    Settings = ChatSettings

    info = PluginInfo(modality="texts", machine_settings=tuple(Concurrent.model_fields), code_settings=("key_command",))

    def __init__(self, **settings: Any) -> None:
        self._given = given = read_settings(ChatSettings, settings, "Chat")
        self._asking = Asking.of(given)
        self._opened = OnFirstUse(self._open)
        self._host = urlsplit(given.url).netloc
        expected = given.expected_tokens
        tokens = None if expected is None else Usage(0, **expected.model_dump())
        self.info = replace(self.info, hosts=(self._host,), tokens=tokens)

    @classmethod
    def look(cls, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """See `LooksAtEndpoint.look`."""
        return look_at(cls.Settings, settings, OPENAI, recognise=False)

    @property
    def capabilities(self) -> Capabilities:
        """One parent, or one prompt, per request."""
        workers = workers_for(self._given.concurrency)
        return Capabilities(self._given.n, workers, "parent", self._asking.degree, deterministic=False)

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        return self._asking.describe(degree)

    def describe_wait(self) -> str:
        """What requests wait for now; empty: for nothing."""
        opened = self._opened.made
        return "" if opened is None else opened[1].wait

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if a label has no prompt, or no value of an attribute."""
        self._asking.prompts.check(labels)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """The prompt of each new sample, and the attributes in it."""
        return self._asking.prompts.draw(labels, seeds)

    def random_api(self, request: RandomRequest) -> Answer:
        """New texts of the request's one prompt.

        Raises:
            Rejected: the endpoint will not answer however often it is asked.
        """
        return self._ask(request, self._asking.for_new(request)[0])

    def variation_api(self, request: VariationRequest) -> Answer:
        """Variations of the request's one parent; at degree 0 the parent, without a call.

        Raises:
            Rejected: see `random_api`.
            APIError: the parents are no texts.
        """
        if request.degree == 0:
            return Answer(request.samples, usage=Usage(0))
        return self._ask(request, self._asking.for_variations(request)[0])

    def _ask(self, request: RandomRequest | VariationRequest, prompt: str) -> Answer:
        client, policy, credentials = self._opened.get()
        count, seed = len(request), int(request.seeds[0] % 2**31)
        outcome = policy.call(lambda: credentials.ask(lambda: self._send(client, prompt, count, seed)), self._read)
        came, billed = outcome.result or ([], Usage(0))
        lacking = outcome.miss or Failed(f"the endpoint sent {len(came)} texts where {count} were asked for")
        outcomes = [*came[:count], *[lacking] * (count - len(came))]
        return answer_of(outcomes, self._given.longest, request.conditions, Usage(outcome.calls, len(came)) + billed)

    def _send(self, client: openai.OpenAI, prompt: str, count: int, seed: int) -> httpx2.Response:
        given, messages = self._given, [{"role": "user", "content": prompt}]
        if given.system is not None:
            messages.insert(0, {"role": "system", "content": given.system})
        fields = stated(temperature=given.temperature, top_p=given.top_p, n=count if count > 1 else None)
        fields |= {given.limit_field: given.max_tokens}
        body = (given.extra or {}) | ({given.seed_field: seed} if given.seed_field else {})
        completions: Any = client.chat.completions.with_raw_response
        return sent(lambda: completions.create(model=given.model, messages=messages, **fields, extra_body=body))

    def _read(self, response: httpx2.Response) -> Read:
        answer = object_of(response)
        choices = answer.get("choices")
        if not isinstance(choices, list) or (not choices and answer.get("error")):
            raise Fault.of_object(answer, "the answer holds no list of choices")
        return [self._text(choice) for choice in choices], billed(answer.get("usage"))

    def _text(self, choice: Any) -> Outcome:
        """The text of a choice, or why it is none."""
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(message, dict):
            return Failed(f"the endpoint sent {type(choice).__name__} without a message in place of a text")
        ended, content = choice.get("finish_reason"), message.get("content")
        if message.get("refusal"):
            return Refused(one_line(str(message["refusal"])))
        if ended == "content_filter":
            return Refused("the endpoint's content filter withheld the text (finish_reason: content_filter)")
        if isinstance(content, list):  # parts, as some servers send them
            content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
        if content is not None and not isinstance(content, str):
            return Failed(f"the endpoint sent {type(content).__name__} in place of a text")
        return self._given.take(content or "", ended=ended != "length")

    def _open(self) -> tuple[openai.OpenAI, Policy, Credentials]:
        given = self._given
        credentials = Credentials(given, header=key_header(given, given.key_expires))
        pool = open_client(given, given.concurrency, credentials)
        finalize(self, pool.close)
        policy = Policy(self._host, concurrency=given.concurrency, tries=given.tries, clean=credentials.clean)
        return open_sdk(given, credentials, pool, "OpenAI's chat completions"), policy, credentials


def billed(usage: Any) -> Usage:
    """The tokens that an answer's `usage` names; thoughts are among those that the model wrote."""

    def count(key: str) -> int:
        number = usage.get(key) if isinstance(usage, dict) else None
        return number if isinstance(number, int) and number > 0 else 0

    asked, written = count("prompt_tokens"), count("completion_tokens")
    return Usage(calls=0, tokens=max(count("total_tokens"), asked + written), text_in=asked, text_out=written)
