"""Prompts for language models that write and vary texts, and the texts read from their answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from threading import Lock

import numpy as np

from adapters.prompts import PROMPT, Ladder, Prompts, Shares, prompts_of
from adapters.refusals import REFUSAL
from adapters.text_settings import BLANK, WORDINGS, Drawn, Written, fill_names
from pe.data.markup import unwrap
from pe.data.samples import BETWEEN, EXAMPLES, Conditions, Samples, generator, uniforms
from pe.data.texts import Texts, plain, runs_of_words
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import (
    Answer,
    Failed,
    RandomRequest,
    Refused,
    Seeds,
    Usage,
    VariationRequest,
)

Outcome = str | Refused | Failed

_ALONE_IN_SCRIPT = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
# A run of letters and digits; in scripts without spaces between words (Thai, Chinese, Japanese …),
# one character
_WORD = re.compile(
    rf"[{_ALONE_IN_SCRIPT}]|(?:(?![{_ALONE_IN_SCRIPT}])\w)+(?:['’\-](?:(?![{_ALONE_IN_SCRIPT}])\w)+)*"
)
_COLUMN = re.compile(r"[a-z]\w*")
_TAKEN = ("label", "prompt", "text", "words", "drawn", "generator", "soft_label")


@dataclass(frozen=True)
class TextPrompts:
    """Public prompts and attributes (name → values), which are drawn for each item."""

    prompts: Prompts
    attributes: Mapping[str, Prompts]
    # attribute → shares of its values; other attributes draw evenly
    shares: dict[str, Shares] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Drawn) -> TextPrompts:
        """Read the prompts and attributes of a recipe.

        Raises:
            RecipeError: a list is empty, or an attribute has a name that is not allowed.
        """
        attributes = config.attributes or {}
        for name in attributes:
            if name in _TAKEN or not _COLUMN.fullmatch(name):
                raise RecipeError(
                    f"`attributes`: '{name}' cannot be used as a name. Use small letters, "
                    f"digits and _, and none of {', '.join(_TAKEN)}."
                )
        return cls(
            Prompts.of(config.prompts),
            {name: Prompts.of(values, f"attributes.{name}") for name, values in attributes.items()},
        )

    @property
    def by_label(self) -> bool:
        """True if the prompts, or the values of an attribute, tell a text's label.

        See `Prompts.by_label`.
        """
        return any(each.by_label for each in (self.prompts, *self.attributes.values()))

    def check(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if a label has no prompt, or no value of an attribute."""
        for texts in (self.prompts, *self.attributes.values()):
            texts.check(labels)

    def draw(self, labels: Sequence[str], seeds: Seeds) -> Conditions:
        """Draw the attributes and the prompt of each item by its seed alone.

        Raises:
            RecipeError: see `check`.
        """
        columns = {}
        for name, values in self.attributes.items():
            # other seeds for each, so that attributes are independent
            numbers = (uniforms(seeds, f"attribute/{name}") * 2.0**53).astype(seeds.dtype)
            columns[name] = values.draw(labels, numbers, self.shares.get(name))[PROMPT]
        prompts = [
            fill_names(prompt, {name: str(column[i]) for name, column in columns.items()})
            for i, prompt in enumerate(self.prompts.draw(labels, seeds)[PROMPT].tolist())
        ]
        return Conditions(columns | {PROMPT: np.array(prompts, dtype=np.str_)})

    def of_request(self, request: RandomRequest | VariationRequest) -> Conditions:
        """Return the conditions that a request carries, or draw them if it carries no prompt."""
        return (
            request.conditions
            if PROMPT in request.conditions
            else self.draw(request.labels, request.seeds)
        )


@dataclass(frozen=True)
class Asking:
    """The texts that a language model is sent for new samples and variations."""

    config: Written
    prompts: TextPrompts  # prompts of new samples
    ladder: Ladder  # wordings of the degrees
    form: str  # what is asked for beside: empty, or the request of a structure

    @classmethod
    def of(cls, config: Written) -> Asking:
        """Read a recipe.

        Raises:
            RecipeError: a wording or a list is missing.
        """
        ladder = Ladder.of(
            WORDINGS[config.variation] if config.wordings is None else config.wordings
        )
        form = "" if config.structure is None else f"\n\n{config.structure.request}"
        return cls(config, TextPrompts.of(config), ladder, form)

    @property
    def fills(self) -> bool:
        """True if variations fill in blanks, false if they paraphrase."""
        return self.config.variation == "fill_in"

    def describe(self, degree: float) -> str:
        """Describe `degree` for `pe plan`."""
        if degree == 0:
            return "the parent itself"
        if not self.fills:
            return self.ladder.describe(degree)
        return (
            "a new text of the parent's prompt"
            if degree == 1
            else f"{degree:.3g} of the words are blanks to fill in"
        )

    def for_new(self, request: RandomRequest) -> list[str]:
        """Return the prompt of each new sample."""
        conditions = self.prompts.of_request(request)
        return [f"{prompt}{self.form}" for prompt in prompts_of(conditions, conditions.rows or 0)]

    def for_variations(self, request: VariationRequest) -> list[str]:
        """Return the text that asks for each parent's variation.

        If no word of the parent stays, this is the parent's prompt.
        """
        conditions = self.prompts.of_request(request)
        columns = {
            name: conditions[name]
            for name in (PROMPT, *self.prompts.attributes)
            if name in conditions
        }
        texts = []
        for i, text in enumerate(parents_of(request.samples)):
            values = {name: str(column[i]) for name, column in columns.items()}
            values["label"] = request.labels[i]
            # Examples take the place of the parent. A parent without words, or without one that
            # stays, leaves nothing to vary, so its prompt is asked for again.
            if EXAMPLES in request.conditions:
                values[EXAMPLES] = str(request.conditions[EXAMPLES][i])
                sent = fill_names(self.config.expansion, values)
            elif not text.strip() or (self.fills and request.degree == 1):
                sent = values[PROMPT]
            else:
                sent = self._variation(
                    text,
                    values,
                    request.degree,
                    int(request.seeds[i]),
                )
            texts.append(f"{sent}{self.form}")
        return texts

    def _variation(
        self,
        text: str,
        values: Mapping[str, str],
        degree: float,
        seed: int,
    ) -> str:
        wording = self.ladder.word(degree, "{prompt}", seed >> 8)
        if "{text}" not in wording:
            wording = f"{wording}\n\n{{text}}"
        # no blank takes the place of a key
        keys = () if self.config.structure is None else self.config.structure.keys
        text_sent = blank(text, degree, seed, keys) if self.fills else text
        return fill_names(
            wording, {**values, "text": text_sent, "words": str(self._length(text, degree, seed))}
        )

    def _length(self, text: str, degree: float, seed: int) -> int:
        """Return the number of words to ask for, at least `least_words`.

        It is the parent's number of words plus a normal draw.
        """
        longer = generator(seed, "length").normal(0.0, self.config.length_sigma * degree)
        return max(self.config.least_words, len(find_words(text)) + round(longer))


def find_words(text: str) -> list[re.Match[str]]:
    """Find the words of a text.

    If a text has no letters or digits, its words are the runs of characters between spaces.
    """
    return list(_WORD.finditer(text)) or list(re.finditer(r"\S+", text))


def share_of(count: int, degree: float) -> int:
    """Return how many of `count` pieces the share `degree` is, rounded, at least 1.

    `count` is at least 1, and `degree` lies in (0, 1].
    """
    return min(count, max(1, floor(count * degree + 0.5)))


def blank(text: str, degree: float, seed: int, keys: Sequence[str] = ()) -> str:
    """Return the text with a share `degree` of its words replaced by blanks.

    The seed draws the words, and `keys` stay.
    """
    spans = [one.span() for key in keys for one in re.finditer(re.escape(key), text)]
    words = [
        one
        for one in find_words(text)
        if not any(start < one.start() < end for start, end in spans)
    ]
    picks = generator(seed, "blanks").permutation(len(words))[: share_of(len(words), degree)]
    for place in sorted(picks.tolist(), reverse=True):
        start, end = words[place].span()
        text = f"{text[:start]}{BLANK}{text[end:]}"
    return text


def parents_of(samples: Samples) -> list[str]:
    """Return the parents as strings.

    Raises:
        APIError: they are not texts.
    """
    if not isinstance(samples, Texts):
        raise APIError(f"A language model varies texts, not {samples.kind}.")
    return samples.strings


def answer_of(
    outcomes: Sequence[Outcome], longest: int, conditions: Conditions, usage: Usage | None = None
) -> Answer:
    """Return an answer from one outcome per item of the request.

    Args:
        outcomes: a text for each item, or why there is none.
        longest: most bytes of a text; longer texts are cut.
        conditions: the items' conditions; those of items without a text are left out.
        usage: cost of the answer; None: one call, and as many samples as there are texts.
    """
    if EXAMPLES in conditions:
        shown = conditions[EXAMPLES].tolist()
        outcomes = [
            Failed(_COPY) if _is_copy(one, of) else one
            for one, of in zip(outcomes, shown, strict=True)
        ]
        conditions = Conditions(
            {name: each for name, each in conditions.items() if name != EXAMPLES}
        )
    texts = {i: outcome for i, outcome in enumerate(outcomes) if isinstance(outcome, str)}
    missing = {i: outcome for i, outcome in enumerate(outcomes) if not isinstance(outcome, str)}
    return Answer(
        Texts.of(texts.values(), longest),
        conditions.take(list(texts)),
        missing,
        usage,
    )


_COPY = "the model wrote one of its examples again"


def _is_copy(text: Outcome, examples: str) -> bool:
    """Return true if at least half of a text's runs of eight words are in its examples.

    A shorter text is a copy if all its words are there.
    """
    runs = runs_of_words(text) if isinstance(text, str) else set()
    older = set[tuple[str, ...]]().union(*map(runs_of_words, examples.split(BETWEEN)))
    return len(runs & older) * 2 >= len(runs) > 0


# values of finish_reason: OpenAI's, and those of text-generation-inference, Together, Anthropic,
# Cohere, Gemini, Mistral and Zhipu, as gateways pass them on
_WHOLE = ("", "stop", "eos", "eos_token", "stop_sequence", "end_turn", "complete")
_CUT = ("length", "max_tokens", "max_output_tokens", "model_length")
_WITHHELD = (
    "content_filter",
    "safety",
    "recitation",
    "blocklist",
    "prohibited_content",
    "sensitive",
    "refusal",
)


class TextAnswers:
    """Turns the answers of a model into samples, and counts their faults.

    Several threads may use it at once.
    """

    def __init__(self, config: Written) -> None:
        self._config = config
        self._answers = 0
        self._marks = Counter[str]()  # what was taken off
        self._faults = Counter[str]()  # why there is no text
        self._openings = Counter[str]()  # the first 16 characters
        self._lock = Lock()

    def take(self, answer: str, is_whole: bool) -> Outcome:
        """Turn an answer into a sample, or return the reason why it is none.

        Args:
            answer: as it came; white space, a template's markup and quotation marks around all of
                it are taken off.
            is_whole: true if the model ended the answer; false if a limit cut it off.
        """
        unwrapped = unwrap(plain(answer))
        text = unwrapped.text
        # Many models put all of an answer in quotation marks. A dialogue has more of them inside.
        if re.fullmatch(r'"[^"“”]*"|“[^"“”]*”', text):
            text = text[1:-1].strip()
        fault = unwrapped.fault or ("the model declines" if REFUSAL.match(text) else "")
        marks = unwrapped.marks if is_whole else (*unwrapped.marks, "the end, beyond max_tokens,")
        with self._lock:
            self._answers += 1
            self._marks.update(marks)
            self._faults.update([fault] if fault else [])
            self._openings[text[:16]] += not fault
        if unwrapped.fault:
            return Failed(
                f"{fault}: let the server separate thoughts and control tokens, switch thinking "
                "off, or raise `max_tokens`"
            )
        if fault:
            return Refused(f"{fault}: {text[:100]}")
        return self._checked(text, is_whole)

    def _checked(self, text: str, is_whole: bool) -> Outcome:
        """Return a text in the declared form, or why it is not a sample."""
        config = self._config
        if not text:
            reason = (
                f": its {config.max_tokens} tokens went elsewhere (thoughts?), so raise "
                "`max_tokens`"
            )
            hint = "" if is_whole else reason
            return Failed(f"the model wrote nothing{hint}")
        if not config.cut and not is_whole:
            return Failed(
                f"the text was cut off after {config.max_tokens} tokens: raise `max_tokens`, or "
                "set `cut: true`"
            )
        remedy = "" if config.cut else ", or set `cut: true`"
        if config.structure is not None:
            try:
                text = config.structure.read(text)
            except ValueError as why:
                return Failed(f"the text does not have the declared form: {why}")
            remedy = ", because a text that is cut loses its form"
        # A text that may be cut is cut where the answer is made.
        if remedy and len(text.encode()) > config.longest:
            return Failed(
                f"the text has more than {config.longest:,} bytes: raise `longest`{remedy}"
            )
        return text

    def take_finished(self, answer: str, reason: object) -> Outcome:
        """Turn an answer with a finish_reason into a sample, as `take` does.

        Return the reason if there is no sample.
        """
        word = str(reason or "").lower()
        if word in _WITHHELD:
            return Refused(
                f"the endpoint's content filter withheld the text (finish_reason: {reason})"
            )
        if word not in (*_WHOLE, *_CUT):
            fault = f"the endpoint broke off the text (finish_reason: {word[:40]!r})"
            with self._lock:
                self._answers += 1
                self._faults[fault] += 1
            return Failed(fault)
        return self.take(answer, is_whole=word not in _CUT)

    def describe(self) -> str:
        """Return a sentence that counts faults of the answers, and those that begin alike.

        The faults are markup around a text, and answers without a text. Answers begin alike if a
        fifth of them, and four or more, share their first 16 characters, as all JSON may.
        """
        with self._lock:
            parts = [f"{count:,} × {what} taken off" for what, count in self._marks.most_common()]
            parts += [
                f"{count:,} × no text, because {why}" for why, count in self._faults.most_common()
            ]
            parts += [
                f"{count:,} × begun with {words!r}, so look if these are texts that you want"
                for words, count in self._openings.most_common(self._config.structure is None)
                if count >= max(4, self._answers / 5)
            ]
            return f"Of {self._answers:,} answers: {'; '.join(parts)}." if parts else ""
