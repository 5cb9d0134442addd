"""Take off markup that a chat template certainly wraps around a model's text.

An answer for which this is in doubt counts as no text.

The templates come from these sources, as of November 2026: [S] sglang,
python/sglang/srt/parser/reasoning_parser.py (002e9bf); [V] vllm, vllm/reasoning; [W] open-webui,
its default reasoning tags; [M] mlx-lm, its tokenizer_utils.py; [H] openai/harmony, docs/format.md;
[T] the chat template and tokenizer_config.json of the models named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pe.errors import ContractError

THOUGHTS = (
    (
        "<think>",
        "</think>",
    ),  # DeepSeek-R1, Qwen3, GLM-4.5, Kimi K2, Nemotron, Granite 3.3, Hunyuan-A13B … [S, V]
    ("<think:opensource>", "</think:opensource>"),  # Hunyuan 3 [S: pull 29920]
    ("<seed:think>", "</seed:think>"),  # Seed-OSS [V: seedoss]
    ("<mm:think>", "</mm:think>"),  # MiniMax-M3 [S]
    ("<longcat_think>", "</longcat_think>"),  # LongCat [M]
    ("[THINK]", "[/THINK]"),  # Magistral, Mistral Small 4 [S, V]
    ("◁think▷", "◁/think▷"),  # Kimi-VL [S, W]
    ("<|channel>", "<channel|>"),  # Gemma 4 [S, V]
    ("<|think:start|>", "<|think:end|>"),  # Solar Open 2 [V]
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus [S, V]
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A [V: cohere_command]
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker, Sky-T1 [W]
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),  # Kimi K3 [S]
    ("<|content_thinking|>", "<|end_message|>"),  # Inkling [S]
    ("[unused16]", "[unused17]"),  # openPangu [V: pangu]
    ("<unused94>", "<unused95>"),  # MedGemma 1.5 [T]
    ("<thinking>", "</thinking>"),  # asked for by prompts [W]; so are the next two
    ("<reasoning>", "</reasoning>"),
    ("<thought>", "</thought>"),  # and Gemini's OpenAI-style endpoint
)
"""Tags around thoughts. The last three are plain words: as balanced pairs within an answer, they
may be text."""

ANSWERS = (
    ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),  # Command A [V]
    ("<|begin_of_solution|>", "<|end_of_solution|>"),  # OpenThinker, Sky-T1
    ("<|open|>response<|sep|>", "<|close|>response<|sep|>"),  # Kimi K3 [S]
    ("<|content_text|>", "<|end_message|>"),  # Inkling [S]
    ("<answer>", "</answer>"),  # Hunyuan-A13B [V], behind thoughts alone; so is the next one
    ("<response>", "</response>"),  # Granite 3.3 [T]
)
"""Tags around the answer itself."""

HEADS = (
    "<|im_start|>assistant\n",  # ChatML: Qwen, Yi, Hermes [T]
    "<|start_header_id|>assistant<|end_header_id|>",  # Llama 3 [T]
    "<|header_start|>assistant<|header_end|>",  # Llama 4 [T]
    "<|start_of_role|>assistant<|end_of_role|>",  # Granite [T]
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",  # Command [T]
    "<start_of_turn>model\n",  # Gemma [T]
    "<|turn>model\n",  # Gemma 4 [T]
    "<|assistant|>",  # GLM, Phi-3 [T]
    "<|assistant_start|>",  # Apertus [T]
    "[|assistant|]",  # EXAONE [T]
    "<|message_model|>",  # Inkling [S]
    "<｜Assistant｜>",  # DeepSeek [T]
    "<｜begin▁of▁sentence｜>",
    "<|begin_of_text|>",
    "<bos>",
)
"""Beginnings of a model's turn."""

ENDS = (
    "<|im_end|>",  # ChatML; the others as above
    "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|end_of_text|>",  # Llama 3 and 4, Granite
    "<end_of_turn>", "<turn|>", "<eos>",  # Gemma
    "</s>",  # Llama 2, Mistral
    "<|endoftext|>",  # GPT-2, Qwen, Phi, GLM
    "<|return|>", "<|end|>", "<|call|>",  # gpt-oss [H]; Phi-3
    "<｜end▁of▁sentence｜>",
    "<|END_OF_TURN_TOKEN|>", "<|end_of_turn|>", "<|endofturn|>", "[|endofturn|]",
    "<|assistant_end|>",
    "<|end_message|>", "<|content_model_end_sampling|>", "<|close|>message<|sep|>",
    "<|end_of_msg|>",
    "<seed:eos>", "</longcat_s>", "<|user|>", "<|observation|>", "[EOS]", "[EOT]",
)  # fmt: skip
"""Ends of a model's turn."""

_MOST = 8
"""Most blocks of thoughts, or tokens at the ends, that are taken off an answer. One with more is no
text."""

_PLAIN = tuple(pair for pair in THOUGHTS if pair[0][1:-1] in ("thinking", "reasoning", "thought"))
_BEHIND_THOUGHTS = ANSWERS[-2:]
_FINAL = "<|channel|>final<|message|>"  # gpt-oss [H]
_BEFORE_FINAL = re.compile(
    r"(?:\A|<\|(?:end|call)\|>)\s*(?:<\|start\|>)?(?:assistant)?\Z|<\|start\|>assistant\Z"
)
_BARE_ANALYSIS = re.compile(
    r"analysis(?=[^\W\d_a-z])"
)  # gpt-oss whose special tokens were left out
_BARE_FINAL = "assistantfinal"
_WORDED = re.compile(
    r"Here(?:'s| is) my thought process:"  # Granite 3.2 [V]
    # Gemini 3.5, Gemma 4 without their tokens [livekit/agents: issue 6942]
    r"|thought(?=\n|[A-Z]| ?(?:\[\]|\(\)))"
    # Qwen3.5, Qwen3.6, whose tag stood in the prompt [kekzl/imp: pull 509]
    r"|Thinking Process:(?=\s)"
)
_GRANITE_ANSWER = re.compile(r"Here(?:'s| is) my response:")
_STRUCK = re.compile(r"<s[ >]")
_TOKENS = {*ENDS, *HEADS, *(token for pair in (*THOUGHTS, *ANSWERS) for token in pair)}
_TOKENS -= {"</s>", *(token for pair in (*_PLAIN, *_BEHIND_THOUGHTS) for token in pair)}
_TOKEN = re.compile(
    "|".join(re.escape(token.strip()) for token in sorted(_TOKENS, key=len, reverse=True))
    + r"|(?i:</?think>)|<\|[A-Za-z][\w:./-]{2,40}\|>|<｜[^<>｜\n]{1,40}｜>"
    + r"|\[/?INST\]|<</?SYS>>|</?tool_calls?>|</?start_of_turn>"
)
"""A token of a template, listed above or not, which no text holds."""


@dataclass(frozen=True)
class Unwrapped:
    """A model's answer without the markup that certainly wraps it.

    Attributes:
        text: the text exactly as it stood in the answer, without white space around it; empty if
            there is none.
        marks: the markup that was taken off.
        fault: a clause on why the answer is no text; empty if it is a text.
    """

    text: str
    marks: tuple[str, ...] = ()
    fault: str = ""


def unwrap(answer: str) -> Unwrapped:
    """Return a model's text without the markup that certainly wraps it.

    White space at its ends is taken off, too. Where nothing in the answer is certainly a text, the
    result says why.

    Args:
        answer: the text as the model wrote it.

    Raises:
        ContractError: `answer` is no string.
    """
    if not isinstance(answer, str):
        raise ContractError(
            f"An answer is a {type(answer).__name__}, not a string: hand over the model's text."
        )
    work = _Answer(answer.strip())
    work.trim()
    fault = work.strip_harmony() or work.strip_thoughts() or work.strip_worded()
    if fault:
        return Unwrapped("", fault=fault)
    has_thoughts = any("…" in one for one in work.tokens)
    work.strip_tags(has_thoughts)
    work.trim()
    tokens = tuple(dict.fromkeys(work.tokens))
    token = work.stray_token(has_thoughts)
    if token:
        return Unwrapped("", fault=f"{token}, of a chat template, is left in the text")
    if tokens and not work.text:
        return Unwrapped("", fault=f"it holds nothing but {' and '.join(tokens)}")
    return Unwrapped(work.text, tokens)


class _Answer:
    """The text of an answer, and the tokens that were taken off it.

    Methods named `strip_…` return a fault, or an empty text.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []

    def cut(self, text: str, token: str) -> None:
        """Note that `token` was taken off, and go on with the `text` that is left."""
        self.tokens.append(token.strip())
        self.text = text.strip()

    def trim(self) -> None:
        """Take off tokens that begin or end a turn.

        A `</s>` stays where it may close struck-through text (`<s>`).
        """
        for _ in range(_MOST):
            head = next((head for head in HEADS if self.text.startswith(head)), "")
            end = next((end for end in ENDS if self.text.endswith(end)), "")
            if end == "</s>" and _STRUCK.search(self.text):
                end = ""
            if head:
                self.cut(self.text[len(head) :], head)
            elif end:
                self.cut(self.text[: -len(end)], end)
            else:
                break

    def strip_harmony(self) -> str:
        """Keep the text of gpt-oss' channel `final`."""
        before, marker, behind = self.text.partition(_FINAL)
        if marker and _BEFORE_FINAL.search(before):
            self.cut(behind, f"…{_FINAL}")
            return ""
        if "<|channel|>" in self.text:
            return "its channels (<|channel|>) do not come to the final one"
        if _BARE_ANALYSIS.match(self.text) is None and not self.text.startswith(_BARE_FINAL):
            return ""
        before, marker, behind = self.text.partition(_BARE_FINAL)
        if not marker or _BARE_FINAL in behind:
            return "its thoughts begin with analysis and do not end"
        self.cut(behind, f"analysis…{_BARE_FINAL}")
        return ""

    def strip_worded(self) -> str:
        """Keep the text behind the words with which Granite 3.2 begins its response.

        Other models write no such words, so their thoughts never end.
        """
        opening = _WORDED.match(self.text)
        if opening is None:
            return ""
        parts = _GRANITE_ANSWER.split(self.text)
        if len(parts) != 2:
            return f"its thoughts begin with '{opening[0]}' and do not end"
        self.cut(parts[1], f"{opening[0]}…")
        return ""

    def strip_thoughts(self) -> str:
        """Keep the text behind thoughts, whose opening tag may have stood in the prompt."""
        for _ in range(_MOST):
            pair = next(
                (pair for pair in THOUGHTS if _search(f"\\A{re.escape(pair[0])}", self.text)),
                None,
            )
            if pair is None:
                break
            closing = _search(re.escape(pair[1]), self.text)
            if closing is None:
                return f"its thoughts begin with {pair[0]} and do not end"
            self.cut(self.text[closing.end() :], "…".join(pair))
            self.trim()
        # A closing tag alone: the opening one stood in the prompt.
        for pair in THOUGHTS:
            opening, closing = (_search(re.escape(token), self.text) for token in pair)
            if (
                closing is None
                or pair[1] in ENDS
                or (opening and opening.start() < closing.start())
            ):
                continue
            before = self.text[: closing.start()]
            behind = self.text[closing.end() :]
            if _ends_thoughts(before, behind):
                self.cut(behind, f"…{pair[1]}")
                self.trim()
        return ""

    def strip_tags(self, has_thoughts: bool) -> None:
        """Cut the tags in ANSWERS from the ends of the text.

        The last two are cut only after thoughts, except that a final `</answer>` is always cut.
        """
        for opening, closing in ANSWERS:
            is_sure = has_thoughts or (opening, closing) not in _BEHIND_THOUGHTS
            if is_sure and self.text.startswith(opening):
                self.cut(self.text[len(opening) :], opening)
            if (
                (is_sure or closing == "</answer>")
                and self.text.endswith(closing)
                and opening[:-1] not in self.text
            ):
                self.cut(self.text[: -len(closing)], closing)

    def stray_token(self, has_thoughts: bool) -> str:
        """Return a token of a template that is left in the text, or an empty text."""
        text = self.text
        token = _TOKEN.search(text)
        if token:
            return token[0]
        for opening, closing in _PLAIN + _BEHIND_THOUGHTS if has_thoughts else _PLAIN:
            openings = text.count(opening[:-1])
            closings = text.count(closing)
            if openings != closings or (has_thoughts and openings):
                return opening if openings else closing
        marks = len(_STRUCK.findall(text))
        ends = text.count("</s>")
        is_begun = text.startswith("<s>")  # as by Llama 2's tokens
        if ends > marks or (is_begun and ends == 1 and text.endswith("</s>")):
            return "</s>"
        return "<s>" if is_begun and not ends else ""


def _search(pattern: str, text: str) -> re.Match[str] | None:
    """Return a tag's first match in a text.

    `<…>` matches in any case (<Think>), [THINK] only as it stands.
    """
    return re.search(pattern, text, re.IGNORECASE if "<" in pattern else 0)


def _ends_thoughts(before: str, behind: str) -> bool:
    """Return True if a closing tag between these texts ends thoughts.

    A tag that a sentence merely mentions does not.
    """
    if before[-1:] in ("", "\n") or re.match(r"[ \t]*(\n|\Z)", behind):
        return True
    return before[-1] not in "\"'`(" and re.match(r"[^\s\"'`)\].,;:!?]", behind) is not None
