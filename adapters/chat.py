"""Any endpoint that speaks OpenAI's chat completions.

OpenAI, Azure, vLLM, Ollama, llama.cpp, LiteLLM and others do.

RANDOM_API sends a public prompt; VARIATION_API sends a synthetic text with blanks to fill in, or to
be paraphrased.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from adapters.http import (
    Concurrent,
    Fault,
    OnFirstUse,
    Seconds,
    entries_at,
    non_null,
    object_of,
    value_at,
    workers_for,
)
from adapters.http.credentials import check_key
from adapters.http.faults import one_line
from adapters.http.jobs import Ended, for_free
from adapters.http.servers import look_at, server_by_address
from adapters.openai_batches import MOST, Batches, Line
from adapters.openai_sdk import OpenAIConnection, OpenAIEndpoint, address_of
from adapters.text_prompts import Asking, Outcome, TextAnswers, answer_of
from adapters.text_settings import WRITTEN, Written
from pe.data.samples import Conditions
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    Failed,
    Finding,
    Generator,
    PluginInfo,
    RandomRequest,
    Refused,
    Seeds,
    Usage,
    VariationRequest,
    count_of,
)
from pe.plugins.settings import Count, Settings, read_settings

_TEXT_PARTS = ("text", "output_text", "", None)
"""Types of the parts of an answer that are text."""
_NO_TEXT = re.compile("[\udc80-\udcff]")
"""Matches bytes that `parse_body` could not decode, which it leaves as lone surrogates."""


class ExpectedTokens(Settings):
    """Tokens of an average request, which `pe probe` tells."""

    text_in: Count = Field(description="of what is sent: the prompt, and in a variation the parent")
    text_out: Count = Field(description="of what the model writes, its thoughts included")


class ChatSettings(OpenAIConnection, Concurrent, Written):
    """Settings of `chat`.

    Attributes:
        model: the model's name at the endpoint; there is no default, because names are retired
            often.
        n: most texts of one request, for one prompt or one parent; above 1 only with variation:
            paraphrase.
        max_tokens_field: the field that takes `max_tokens`; None: max_completion_tokens for OpenAI
            and Azure, else max_tokens.
        seed_field: the field of a request that takes a seed; None: no seed is sent.
        batch: most texts of one batch, to ask by OpenAI's Batch API; None: requests are sent
            without batches.
        poll: seconds before the first look at a batch; the pauses between looks grow, up to ten
            times as long.
        expected_tokens: tokens of a request for one text; with a price of tokens the plan then
            tells a run's cost.
        extra: further fields of a request, sent unchanged (top_k, reasoning_effort,
            chat_template_kwargs …).
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
        """Name of the field that takes `max_tokens`."""
        new = self.azure_api_version is not None or server_by_address(self.url) is not None
        return self.max_tokens_field or ("max_completion_tokens" if new else "max_tokens")

    @model_validator(mode="before")
    @classmethod
    def _send_no_key_elsewhere(cls, value: Any) -> Any:
        """Leave out the default key for hosts other than OpenAI's and Azure's."""
        elsewhere = isinstance(value, dict) and value.get("base_url")
        if elsewhere and "key_env" not in value and server_by_address(str(elsewhere)) is None:
            return {**value, "key_env": None}
        return value

    @model_validator(mode="after")
    def _check_requests(self) -> Self:
        if self.n > 1 and self.variation == "fill_in":
            raise RecipeError(
                f"`n` is {self.n}, but with `variation: fill_in` each text has blanks of its own, "
                "and so a request of its own. Set `n: 1`, or `variation: paraphrase`."
            )
        if self.batch is not None and self.n > 1:
            raise RecipeError(
                f"`n` is {self.n}, but a batch asks for each text by itself. Set `n: 1`."
            )
        if self.batch is not None and self.azure_api_version is not None:
            raise RecipeError(
                "`batch` needs Azure's v1 API. Name it as `base_url` "
                "(https://RESOURCE.openai.azure.com/openai/v1), and remove `azure_api_version`."
            )
        return self


class Chat(Generator):
    """Texts by a chat model, hosted or on a server of yours (OpenAI's chat completions).

    Samples carry their prompt as the condition `prompt`, and the attributes that were drawn for it.
    Degree 0 is the parent itself and makes no call. Nothing is deterministic, even where a seed is
    sent.

    Args:
        settings: see `ChatSettings`.

    Raises:
        RecipeError: a setting is wrong.
    """

    Settings = ChatSettings
    shows_examples: ClassVar[bool] = True
    starter = f"""\
  model: my-model\t# as the endpoint names it: names are retired often
  base_url: http://127.0.0.1:8000/v1\t# null: OpenAI's own
  key_env: null\t# or the environment variable that holds the key; key_file, key_command
{WRITTEN}  concurrency: 8
  # price: {{{{million_tokens: {{{{text_in: 0.4, text_out: 1.6}}}}, currency: USD}}}}\t# yours; or limits.max_images
  # expected_tokens: {{{{text_in: 120, text_out: 150}}}}\t# of a request; `pe probe` tells it
"""  # noqa: E501

    info = PluginInfo(
        modality="texts",
        machine_settings=(
            *Concurrent.model_fields,
            "poll",
            "n",
            "max_tokens",
            "max_tokens_field",
            "seed_field",
            "expected_tokens",
            "azure_api_version",
        ),
        code_settings=("key_command",),
    )

    def __init__(self, **settings: Any) -> None:
        self._config = config = read_settings(
            self.Settings,
            settings,
            "Chat",
        )
        self._asking = Asking.of(config)
        self._answers = TextAnswers(config)
        self._clients = OnFirstUse(self._open)
        expected = config.expected_tokens
        tokens = None if expected is None else Usage(0, **expected.model_dump())
        self.info = replace(
            self.info,
            hosts=(urlsplit(config.url).netloc,),
            by_label=self._asking.prompts.by_label,
            tokens=tokens,
        )

    @classmethod
    def look(cls, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """See `Generator.look`."""
        return look_at(
            cls.Settings,
            settings,
            address_of(settings),
            recognise=False,
        )

    @property
    def capabilities(self) -> Capabilities:
        """A request holds items of one parent or prompt, a batch any.

        The degree is put in words.
        """
        config = self._config
        in_batches = config.batch is not None
        return Capabilities(
            config.batch or config.n,
            workers_for(config.concurrency),
            "nothing" if in_batches else "parent",
            "wording",
            deterministic=False,
            one_by_one=in_batches,
        )

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        return self._asking.describe(degree)

    def describe_wait(self) -> str:
        """Return the reason why requests wait now, or an empty text."""
        endpoint = self._clients.value
        return "" if endpoint is None else endpoint[0].policy.wait or endpoint[1].wait

    def describe_answers(self) -> str:
        """See `Generator.describe_answers`."""
        return self._answers.describe()

    def check_machine(self) -> None:
        """Raise RecipeError if the key is not there: see `check_key`."""
        check_key(self._config)

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if a label has no prompt, or no value of an attribute."""
        self._asking.prompts.check(labels)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """Draw the prompt of each new sample, and the attributes in it."""
        return self._asking.prompts.draw(labels, seeds)

    def random_api(self, request: RandomRequest) -> Answer:
        """Write texts for the request's one prompt, or in a batch for each prompt.

        Errors: see `Policy.call_one_of`.
        """
        return self._ask(request, self._asking.for_new(request))

    def variation_api(self, request: VariationRequest) -> Answer:
        """Vary the request's one parent, or each parent of a batch.

        Degree 0 returns the parents without a call.
        """
        if request.degree == 0:
            return Answer(request.samples, usage=Usage(0))
        return self._ask(request, self._asking.for_variations(request))

    def _ask(self, request: RandomRequest | VariationRequest, prompts: Sequence[str]) -> Answer:
        if self._config.batch is not None:
            return self._ask_by_batch(request, prompts)
        endpoint = self._clients.get()[0]
        count = len(request)
        body = self._body(prompts[0], request.seeds[0], count)
        outcome = endpoint.policy.call(
            lambda: endpoint.ask("POST", "/chat/completions", body=body),
            lambda response: self._read(object_of(response)),
            request.job.check_stop,
        )
        texts, tokens = outcome.result or ([], Usage(0))
        outcomes = outcome.fill(texts, count, "texts")
        usage = Usage(outcome.calls, len(texts)) + tokens
        return answer_of(
            outcomes,
            self._config.longest,
            request.conditions,
            usage,
        )

    def _ask_by_batch(
        self, request: RandomRequest | VariationRequest, prompts: Sequence[str]
    ) -> Answer:
        """Return a batch's answers.

        Raise APIError if they cannot be had now: the run stops, so that none is paid twice.
        """
        endpoint, batches = self._clients.get()
        job = request.job
        bodies = list(map(self._body, prompts, request.seeds))
        # No look at a batch costs anything, so a fault of one never uses up the items.
        try:
            outcome = endpoint.policy.call(
                lambda: for_free(lambda: batches.finish(bodies, job)),
                lambda batch: for_free(lambda: batches.read(batch)),
                job.check_stop,
            )
        except Ended as ended:
            raise APIError(
                f"{endpoint.host}: {ended}. Resume the run, which then submits it again."
            ) from None
        if outcome.result is None:
            batch = f"its batch {job.job}" if job.job else "a batch"
            raise APIError(
                f"{endpoint.host} gives no answers to {batch} ({outcome.fault}). Resume the run "
                "later."
            )
        texts = {
            i: self._text_of_line(line) for i, line in outcome.result.items() if i < len(bodies)
        }
        lacking = Failed(f"the batch {job.job} holds no answer to the request")
        outcomes = [texts[i][0] if i in texts else lacking for i in range(len(bodies))]
        usage = sum((tokens for _, tokens in texts.values()), Usage(job.calls))
        return answer_of(
            outcomes,
            self._config.longest,
            request.conditions,
            usage,
        )

    def _text_of_line(self, line: Line) -> tuple[Outcome, Usage]:
        """Return the outcome of one request of a batch, and the cost of that request."""
        try:
            if isinstance(line, Fault):
                raise line
            texts, tokens = self._read(line)
        except Fault as fault:
            if fault.refusal:
                return Refused(fault.words), Usage(0)
            is_own = fault.heals or fault.whole or fault.rejects
            return Failed(str(fault), is_own, rejected=fault.rejects), Usage(0)
        text = texts[0] if texts else Failed("the endpoint sent no text")
        return text, Usage(0, len(texts)) + tokens

    def _body(self, prompt: str, seed: Any, count: int = 1) -> dict[str, Any]:
        """Return the JSON body of a request for `count` texts."""
        config = self._config
        messages = [{"role": "user", "content": prompt}]
        if config.system is not None:
            messages.insert(0, {"role": "system", "content": config.system})
        fields = non_null(
            temperature=config.temperature, top_p=config.top_p, n=count if count > 1 else None
        )
        fields |= {config.limit_field: config.max_tokens, **(config.extra or {})}
        fields |= {config.seed_field: int(seed % 2**31)} if config.seed_field else {}
        return {"model": config.model, "messages": messages, **fields}

    def _read(self, answer: Mapping[str, Any]) -> tuple[list[Outcome], Usage]:
        choices = answer.get("choices")
        if not isinstance(choices, list) or (not choices and answer.get("error")):
            raise Fault.of_object(answer, "the answer holds no list of choices")
        usage = tokens_of_texts(answer.get("usage"))
        is_full = usage.text_out == self._config.max_tokens * len(choices)
        return [self._text(choice, is_full) for choice in choices], usage

    def _text(self, choice: Any, is_full: bool) -> Outcome:
        """Return the text of a choice, or the reason why it has none.

        `is_full` is true if the answer has all the tokens that it may have. Some servers say `stop`
        even then.
        """
        message = value_at(choice, "message")
        if not isinstance(message, dict):
            return Failed(
                f"the endpoint sent {type(choice).__name__} without a message in place of a text"
            )
        reason = choice.get("finish_reason")
        content = message.get("content")
        # LiteLLM's proxy (1.106.2) puts there all that it has no place for.
        extra = message.get("provider_specific_fields")
        parts = entries_at(message, "content")  # as some servers send it, with thoughts
        refusals = [value_at(one, "refusal") for one in (message, extra, *parts)]
        for refusal in filter(None, refusals):
            return Refused(one_line(str(refusal)))
        if isinstance(content, list):
            kept = [part for part in parts if value_at(part, "type") in _TEXT_PARTS]
            content = "".join(str(value_at(part, "text") or "") for part in kept)
        if content is not None and not isinstance(content, str):
            return Failed(f"the endpoint sent {type(content).__name__} in place of a text")
        if content is not None and _NO_TEXT.search(content):
            return Failed("the endpoint sent bytes that are no UTF-8 in a text")
        return self._answers.take_finished(content or "", "length" if is_full else reason)

    def _open(self) -> tuple[OpenAIEndpoint, Batches]:
        endpoint = OpenAIEndpoint(self._config, self._config.concurrency)
        return endpoint, Batches(endpoint, self._config.poll)


def tokens_of_texts(usage: Any) -> Usage:
    """Return the tokens that an answer's `usage` names.

    Tokens of thoughts count as text that the model wrote.
    """
    text_in = count_of(value_at(usage, "prompt_tokens"))
    text_out = count_of(value_at(usage, "completion_tokens"))
    return Usage(
        calls=0,
        tokens=max(count_of(value_at(usage, "total_tokens")), text_in + text_out),
        text_in=text_in,
        text_out=text_out,
    )
