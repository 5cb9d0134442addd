"""A local language model that writes: RANDOM_API continues a public prompt, VARIATION_API one with a synthetic text.

All randomness of a text is from its item's seed, which has a number for each token. The order of the items and what
else is in a batch decide nothing, but for the last bits of a batch's arithmetic (`batch_size: 1` is free of them).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from adapters.local_text import REQUESTS, LocalModel, LocalTexts, pick
from adapters.text_answers import TextAnswers
from adapters.text_prompts import Asking, Outcome
from adapters.text_settings import WRITTEN, Written
from pe.data.seeds import uniforms
from pe.errors import RecipeError
from pe.plugins.protocols import Answer, Capabilities, Failed, RandomRequest, Seeds, VariationRequest
from pe.plugins.validation import read_settings

if TYPE_CHECKING:
    import torch


class CausalSettings(LocalModel, Written):
    """What a recipe says of such a model.

    Attributes:
        temperature: of sampling; None: as the model's generation_config.json has it, else 1.
        top_p: sample among the most likely tokens that have this share together; None: likewise.
        top_k: sample among so many of the most likely tokens, 0: among all; None: likewise.
        template: arguments of the model's chat template, such as enable_thinking. A model without one continues the
            system prompt and the prompt as plain text.
    """

    top_k: Annotated[int, Field(ge=0)] | None = None
    template: dict[str, Any] | None = None


class CausalLM(LocalTexts["_Writer"]):
    """RANDOM_API and VARIATION_API by a local causal language model of transformers.

    Samples carry their prompt as the condition `prompt`, and the attributes that were drawn for it. Degree 0 is the
    parent itself.

    Args:
        settings: see `CausalSettings`.

    Raises:
        RecipeError: a setting is wrong.
    """

    Settings = CausalSettings
    starter = f"""\
  model: my-model\t# a folder, or a repository of the Hugging Face hub
{WRITTEN}  batch_size: 32
"""

    def __init__(self, **settings: Any) -> None:
        self._given = given = read_settings(CausalSettings, settings, "CausalLM")
        self._asking, self._answers = Asking.of(given), TextAnswers(given)
        answers = self._answers
        super().__init__(given, given.longest, self._asking.prompts, lambda device: _Writer(given, device, answers))

    @property
    def capabilities(self) -> Capabilities:
        """Any items in a request; what a model makes of the words between blanks is its own."""
        return Capabilities(self._given.chunk, REQUESTS, "nothing", "wording")

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        return self._asking.describe(degree)

    def describe_answers(self) -> str:
        """See `TellsOfAnswers`."""
        return self._answers.describe()

    def random_api(self, request: RandomRequest) -> Answer:
        """New texts of the items' prompts.

        Raises:
            RecipeError: the weights or the device are not there.
            APIError: the device has not enough memory for one text.
        """
        return self._made(request, self._asking.for_new(request), _Writer.write)

    def _vary(self, request: VariationRequest) -> Answer:
        return self._made(request, self._asking.for_variations(request), _Writer.write)


class _Writer:
    """The model on one device."""

    def __init__(self, given: CausalSettings, device: torch.device, answers: TextAnswers) -> None:
        self._given, self._device, self._answers = given, device, answers
        self._model, self._tokenizer = model, tokenizer = given.load("AutoModelForCausalLM", device)
        own = model.generation_config
        ends = own.eos_token_id if own.eos_token_id is not None else tokenizer.eos_token_id
        self._ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
        if tokenizer.pad_token_id is None and not self._ends:
            raise RecipeError(
                f"model: '{given.model}' has neither a token that ends a text nor one that pads: state one of them in "
                "its tokenizer_config.json."
            )
        self._pad = self._ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self._longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._warpers = _warpers(given, own)
        from transformers import GenerationConfig

        model.generation_config = GenerationConfig()  # nothing but what is said below counts

    def write(self, prompts: Sequence[str], seeds: Seeds) -> list[Outcome]:
        """A text for each prompt, each token drawn by its seed."""
        given = self._given
        rows = [self._tokens(prompt) for prompt in prompts]
        most = None if self._longest is None else self._longest - given.max_tokens
        fits = [i for i, row in enumerate(rows) if most is None or len(row) <= most]
        outcomes: dict[int, Outcome] = {
            i: Failed(
                f"the prompt has {len(row)} tokens, and with max_tokens: {given.max_tokens} the model takes {most}: "
                "take fewer max_tokens, shorter texts (longest), or another model",
                retryable=False,
            )
            for i, row in enumerate(rows)
        }
        if fits:
            written = self._generate([rows[i] for i in fits], seeds[fits])
            outcomes |= dict(zip(fits, (self._text(row) for row in written), strict=True))
        return [outcomes[i] for i in range(len(rows))]

    def _tokens(self, prompt: str) -> list[int]:
        """The prompt as the model takes it: by its chat template, if it has one."""
        given, tokenizer = self._given, self._tokenizer
        system = [] if given.system is None else [given.system]
        templated = tokenizer.chat_template is not None
        text = "\n\n".join([*system, prompt]) + "\n\n"
        messages = [{"role": "system", "content": text} for text in system] + [{"role": "user", "content": prompt}]
        if templated:
            more = given.template or {}
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **more)
        found: list[int] = tokenizer(text, add_special_tokens=not templated, verbose=False)["input_ids"]
        return found

    def _generate(self, rows: list[list[int]], seeds: Seeds) -> list[list[int]]:
        """The tokens that follow each row."""
        import torch
        from transformers import GenerationConfig, LogitsProcessorList

        width = max(map(len, rows))
        ids = torch.full((len(rows), width), self._pad)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, width - len(row) :] = torch.tensor(row)
            mask[i, width - len(row) :] = 1
        config = GenerationConfig(
            max_new_tokens=self._given.max_tokens,
            do_sample=False,  # the last processor draws
            eos_token_id=self._ends or None,
            pad_token_id=self._pad,
        )
        found = self._model.generate(
            ids.to(self._device),
            attention_mask=mask.to(self._device),
            generation_config=config,
            logits_processor=LogitsProcessorList([*self._warpers, _Seeded(seeds, width)]),
        )
        new: list[list[int]] = found[:, width:].tolist()
        return new

    def _text(self, tokens: list[int]) -> Outcome:
        places = [place for place, token in enumerate(tokens) if token in self._ends]
        text = self._tokenizer.decode(tokens[: places[0]] if places else tokens, skip_special_tokens=True)
        return self._answers.take(text, ended=bool(places))


class _Seeded:
    """Leaves of each row's scores one token, drawn from them by a number of the row's seed and the step."""

    def __init__(self, seeds: Seeds, start: int) -> None:
        self._seeds, self._start = seeds, start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        import torch

        chosen = pick(scores, uniforms(self._seeds, f"token/{input_ids.shape[1] - self._start}"))
        return torch.full_like(scores, -torch.inf).scatter(1, chosen, 0.0)


def _warpers(given: CausalSettings, own: Any) -> list[Any]:
    """What shapes the distribution that tokens are drawn from."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    temperature = given.temperature or own.temperature or 1.0
    top_k = given.top_k if given.top_k is not None else own.top_k or 0
    top_p = given.top_p or own.top_p or 1.0
    found = [TemperatureLogitsWarper(float(temperature))] if temperature != 1 else []
    found += [TopKLogitsWarper(top_k)] if top_k else []
    return found + ([TopPLogitsWarper(float(top_p))] if top_p < 1 else [])
