"""Turn the texts that a language model wrote into samples, and count what was taken off or failed."""

from __future__ import annotations

from collections import Counter
from threading import Lock

from adapters.text_settings import Written
from pe.data.markup import unwrap
from pe.data.texts import plain
from pe.plugins.protocols import Failed, Refused

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
