"""What generators of texts share: public prompts, and how a text is put to a model that varies it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from threading import Lock

import numpy as np

from adapters.prompts import PROMPT, Ladder, Prompts, prompts_of
from adapters.text_settings import BLANK, WORDINGS, Drawn, Written, fill_names
from pe.data.markup import unwrap
from pe.data.samples import Conditions, Samples, generator, uniforms
from pe.data.texts import Texts, plain
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import Answer, Failed, RandomRequest, Refused, Seeds, Usage, VariationRequest

Outcome = str | Refused | Failed

_ALONE_IN_SCRIPT = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_ALONE_IN_SCRIPT}]|(?:(?![{_ALONE_IN_SCRIPT}])\w)+(?:['’\-](?:(?![{_ALONE_IN_SCRIPT}])\w)+)*")
"""A run of letters and digits; of scripts that put no spaces between words (Thai, Chinese, Japanese …), a character."""
_COLUMN = re.compile(r"[a-z]\w*")
_TAKEN = ("label", "prompt", "text", "words", "drawn", "generator", "soft_label")


@dataclass(frozen=True)
class TextPrompts:
    """Public prompts, each with attributes drawn for it.

    Attributes:
        prompts: that labels draw from.
        attributes: name → what its value is drawn from.
    """

    prompts: Prompts
    attributes: Mapping[str, Prompts]

    @classmethod
    def of(cls, given: Drawn) -> TextPrompts:
        """From a recipe.

        Raises:
            RecipeError: a list is empty, or a name cannot be that of an attribute.
        """
        attributes = given.attributes or {}
        for name in attributes:
            if name in _TAKEN or not _COLUMN.fullmatch(name):
                raise RecipeError(
                    f"attributes: '{name}' cannot be a name: take small letters, digits and _, and none of "
                    f"{', '.join(_TAKEN)}."
                )
        return cls(
            Prompts.of(given.prompts),
            {name: Prompts.of(values, f"attributes.{name}") for name, values in attributes.items()},
        )

    @property
    def by_label(self) -> bool:
        """Whether a prompt, or an attribute of it, says of which label the text is to be."""
        return any(each.by_label for each in (self.prompts, *self.attributes.values()))

    def check(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if a label has no prompt, or no value of an attribute."""
        self.prompts.check(labels)
        for values in self.attributes.values():
            values.check(labels)

    def draw(self, labels: Sequence[str], seeds: Seeds) -> Conditions:
        """The prompt of each item and what it was made of: each drawn by the item's seed alone.

        Raises:
            RecipeError: see `check`.
        """
        columns = {name: values.draw(labels, _numbers(seeds, name))[PROMPT] for name, values in self.attributes.items()}
        prompts = self.prompts.draw(labels, seeds)[PROMPT].tolist()
        filled = [
            fill_names(text, {n: str(column[i]) for n, column in columns.items()}) for i, text in enumerate(prompts)
        ]
        return Conditions(columns | {PROMPT: np.array(filled, dtype=np.str_)})

    def of_request(self, request: RandomRequest | VariationRequest) -> Conditions:
        """The conditions that the items of a request carry; drawn for items that carry none."""
        return request.conditions if PROMPT in request.conditions else self.draw(request.labels, request.seeds)


@dataclass(frozen=True)
class Asking:
    """How a language model is asked for a variation.

    Attributes:
        prompts: of new samples.
        ladder: of wordings.
        fills: by blanks.
        length_sigma: see `Written`.
        least_words: see `Written`.
    """

    prompts: TextPrompts
    ladder: Ladder
    fills: bool
    length_sigma: float
    least_words: int

    @classmethod
    def of(cls, given: Written) -> Asking:
        """From a recipe.

        Raises:
            RecipeError: a wording or a list is missing.
        """
        ladder = Ladder.of(WORDINGS[given.variation] if given.wordings is None else given.wordings)
        fills = given.variation == "fill_in"
        return cls(TextPrompts.of(given), ladder, fills, given.length_sigma, given.least_words)

    def describe(self, degree: float) -> str:
        """What `pe plan` says of `degree`."""
        if degree == 0:
            return "the parent itself"
        if not self.fills:
            return self.ladder.describe(degree)
        return (
            "a new text of the parent's prompt" if degree == 1 else f"{degree:.3g} of the words are blanks to fill in"
        )

    def for_new(self, request: RandomRequest) -> list[str]:
        """What is asked for each new sample: its prompt."""
        return _prompts(self.prompts.of_request(request))

    def for_variations(self, request: VariationRequest) -> list[str]:
        """What is asked for a variation of each parent; where no word of it would stay, its own prompt.

        Raises:
            APIError: the parents are no texts.
        """
        carried = self.prompts.of_request(request)
        columns = {name: carried[name] for name in (PROMPT, *self.prompts.attributes) if name in carried}
        asked = []
        for i, (text, label) in enumerate(zip(strings_of(request.samples), request.labels, strict=True)):
            values = {name: str(column[i]) for name, column in columns.items()} | {"label": label}
            if not text.strip() or (self.fills and request.degree == 1):
                asked.append(values[PROMPT])
            else:
                asked.append(self._variation(text, values, request.degree, int(request.seeds[i])))
        return asked

    def _variation(self, text: str, values: Mapping[str, str], degree: float, seed: int) -> str:
        wording = self.ladder.word(degree, "{prompt}", seed >> 8)
        if "{text}" not in wording:
            wording = f"{wording}\n\n{{text}}"
        shown = blanked(text, degree, seed) if self.fills else text
        return fill_names(wording, {**values, "text": shown, "words": str(self._length(text, degree, seed))})

    def _length(self, text: str, degree: float, seed: int) -> int:
        """Words to write: the parent's and a normal draw."""
        longer = generator(seed, "length").normal(0.0, self.length_sigma * degree)
        return max(self.least_words, len(words_of(text)) + round(longer))


def words_of(text: str) -> list[re.Match[str]]:
    """The words of a text; of one without letters and digits, its runs of other characters."""
    return list(_WORD.finditer(text)) or list(re.finditer(r"\S+", text))


def share_of(count: int, degree: float) -> int:
    """The whole number nearest to the share `degree`, in (0, 1], of `count` ≥ 1 pieces; at least 1."""
    return min(count, max(1, floor(count * degree + 0.5)))


def blanked(text: str, degree: float, seed: int) -> str:
    """The text with the share `degree` of its words, drawn by the seed, replaced by blanks; all else as it is."""
    words = words_of(text)
    chosen = generator(seed, "blanks").permutation(len(words))[: share_of(len(words), degree)]
    for place in sorted(chosen.tolist(), reverse=True):
        start, end = words[place].span()
        text = f"{text[:start]}{BLANK}{text[end:]}"
    return text


def strings_of(samples: Samples) -> list[str]:
    """The parents as strings.

    Raises:
        APIError: they are no texts.
    """
    if not isinstance(samples, Texts):
        raise APIError(f"A language model varies texts, not {samples.kind}.")
    return samples.strings


def answer_of(outcomes: Sequence[Outcome], longest: int, conditions: Conditions, usage: Usage | None = None) -> Answer:
    """The answer that these outcomes are.

    Args:
        outcomes: one per item of the request.
        longest: bytes of the longest text.
        conditions: one row per item of the request; those of items without a text are left out.
        usage: what it cost; None: a call, and as many samples as there are.
    """
    written = {i: outcome for i, outcome in enumerate(outcomes) if isinstance(outcome, str)}
    missing = {i: outcome for i, outcome in enumerate(outcomes) if not isinstance(outcome, str)}
    return Answer(Texts.of(written.values(), longest), conditions.take(list(written)), missing, usage)


def _prompts(conditions: Conditions) -> list[str]:
    return [str(prompt) for prompt in prompts_of(conditions, conditions.rows or 0)]


def _numbers(seeds: Seeds, name: str) -> Seeds:
    """Other seeds for each attribute, so that attributes are independent."""
    return (uniforms(seeds, f"attribute/{name}") * 2.0**53).astype(seeds.dtype)


# Turn the texts that a language model wrote into samples, and count what was taken off or failed.


_WHOLE = ("", "stop", "eos", "eos_token", "stop_sequence", "end_turn", "complete")
_CUT = ("length", "max_tokens", "max_output_tokens", "model_length")
_WITHHELD = ("content_filter", "safety", "recitation", "blocklist", "prohibited_content", "sensitive", "refusal")
"""Values of finish_reason: OpenAI's, and those of text-generation-inference, Together, Anthropic, Cohere, Gemini,
Mistral and Zhipu, as gateways pass them on."""


class TextAnswers:
    """The answers of one model; any thread may hand them over.

    Args:
        given: says what is kept of a text that was cut off.
    """

    def __init__(self, given: Written) -> None:
        self._given = given
        self._taken, self._faults, self._answers = Counter[str](), Counter[str](), 0
        self._lock = Lock()

    def take(self, answer: str, ended: bool) -> str | Failed:
        """An answer as a sample, or why it is none.

        Args:
            answer: as it came; white space, a template's markup and quotation marks around all of it are taken off.
            ended: the model ended it; else it was cut off.
        """
        answer_text, given = unwrap(plain(answer)), self._given
        with self._lock:
            self._answers += 1
            self._taken.update(answer_text.taken)
            self._faults.update([answer_text.fault] if answer_text.fault else [])
        if answer_text.fault:
            return Failed(
                f"{answer_text.fault}: have the server keep thoughts and control tokens apart, switch thinking off, or "
                "raise max_tokens"
            )
        text = _unquoted(answer_text.text)
        if not text:
            spent = "" if ended else f": its {given.max_tokens} tokens went elsewhere (thoughts?), so raise max_tokens"
            return Failed(f"the model wrote nothing{spent}")
        if not given.cut and not ended:
            return Failed(f"the text was cut off after {given.max_tokens} tokens: raise max_tokens, or set cut: true")
        if not given.cut and len(text.encode()) > given.longest:
            return Failed(f"the text has more than {given.longest:,} bytes: raise longest, or set cut: true")
        return text

    def take_finished(self, answer: str, reason: object) -> str | Failed | Refused:
        """Do the same for an answer with a finish_reason."""
        word = str(reason or "").lower()
        if word in _WITHHELD:
            return Refused(f"the endpoint's content filter withheld the text (finish_reason: {reason})")
        if word not in (*_WHOLE, *_CUT):
            fault = f"the endpoint broke off the text (finish_reason: {word[:40]!r})"
            with self._lock:
                self._answers += 1
                self._faults[fault] += 1
            return Failed(fault)
        return self.take(answer, ended=word not in _CUT)

    def describe(self) -> str:
        """Count the answers with markup and those that were no text, in a sentence; empty if there are none."""
        with self._lock:
            parts = [f"{count:,} × {what} taken off" for what, count in self._taken.most_common()]
            parts += [f"{count:,} × no text, because {why}" for why, count in self._faults.most_common()]
            return f"Of {self._answers:,} answers: {'; '.join(parts)}." if parts else ""


def _unquoted(text: str) -> str:
    """The text without quotation marks around all of it."""
    if len(text) > 1 and (text[0], text[-1]) in (('"', '"'), ("“", "”")) and not {'"', "“", "”"} & set(text[1:-1]):
        return text[1:-1].strip()
    return text
