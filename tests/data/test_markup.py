"""What is kept of a model's answer that comes with its template's markup, and what is no text."""

import time

import pytest

from pe.data.markup import ANSWERS, ENDS, HEADS, THOUGHTS, unwrap

T = "The room was clean.\n\nBreakfast came late, <b>cold</b> & dear: 5 < 7."
"""A text that must come out as it is."""

HARMONY = (
    "<|channel|>analysis<|message|>We need a "
    "review.<|end|><|start|>assistant<|channel|>final<|message|>"
)

KEPT = {
    "DeepSeek-R1": f"<think>\nOkay, a review.\n</think>\n\n{T}",
    "opened in the prompt": f"Okay, a review.\n</think>\n\n{T}",
    "two blocks": f"<think>a</think>\n<think>b</think>\n{T}",
    "Kimi K3": f"<|open|>think<|sep|>hm<|close|>think<|sep|><|open|>response<|sep|>{T}"
    "<|close|>response<|sep|><|end_of_msg|>",
    "Hunyuan-A13B": f"<think>\nA review.\n</think>\n<answer>\n{T}\n</answer>",
    "Granite 3.2": f"Here is my thought process: a review. Here is my response:\n{T}",
    "Command A": f"<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>{T}<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
    "Inkling": f"<|message_model|><|content_thinking|>hm<|end_message|><|message_model|><|content_text|>{T}"
    "<|end_message|><|content_model_end_sampling|>",
    "gpt-oss": f"{HARMONY}{T}<|return|>",
    "gpt-oss without special tokens": f"analysisWe need a review.assistantfinal{T}",
    "Qwen3.6, opened in the prompt": f"Thinking Process:\n\n1. **Analyze the Request:** a "
    f"review.\n</think>\n\n{T}",
    "ChatML with its head": f"<|im_start|>assistant\n{T}<|im_end|>\n<|endoftext|>",
}

TEXTS = (
    T,
    "Was <s>10</s> now <s>5</s>",
    "She wrote <thought>never again</thought> and left.",
    "<answer>yes</answer>",
    "<response id='1'><code>5</code></response>",
    "analysis of the season: poor.",
    "thought of the day: be kind",
    "thoughtful staff, quiet rooms",
    "Thinking Process Mining through: a review",
    "a <| b |> c, <|x|> and x |> f",
)

REFUSED = {
    "thoughts cut off": "<think>Okay, a review. I should",
    "thoughts within": f"{T}<think>more</think>{T}",
    "a tag spoken of": "The tag `</think>` ends thoughts, and so does </think> here.",
    "another turn": f"{T}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nIs there "
    f"anything else?",
    "all struck through, or Llama 2": f"<s>{T}</s>",
    "no final channel": "<|channel|>analysis<|message|>We need a review.<|end|>",
    "a call": f"{HARMONY}{T}<|start|>assistant<|channel|>commentary to=f<|message|>x<|call|>",
    "Granite 3.2, cut off": "Here's my thought process: a review",
    "Gemini 3.5 behind a gateway": f"thought\nThe user wants a review.\n{T}",
    "Gemini 3.5, on one line": f"thought{T}",
    "Gemini 3.5, with brackets": f"thought [] {T}",
    "Qwen3.6, cut off": "Thinking Process:\n\n1. **Analyze the Request:** a review",
    "a token that no table has": f"{T}<|made_up_token|>",
    "a tool": '<tool_call>{"name": "f"}</tool_call>',
    "answer twice": f"<think>a</think><answer>{T}</answer> <answer>b</answer>",
}


@pytest.mark.parametrize("template", KEPT)
def test_of_a_known_template_the_text_is_kept_exactly(template):
    found = unwrap(KEPT[template])
    assert (found.text, found.fault) == (T, "")
    assert found.marks


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_only_looks_like_markup_stays_as_it_is(text):
    assert unwrap(text).text == text
    assert not unwrap(text).marks


@pytest.mark.parametrize("answer", REFUSED)
def test_what_is_not_sure_to_be_a_text_is_none(answer):
    found = unwrap(REFUSED[answer])
    assert found.text == ""
    assert found.fault


def test_every_entry_of_the_tables_is_taken_off_or_refused():
    for opening, closing in THOUGHTS:
        assert unwrap(f"{opening}hm{closing}{T}").text == T
        assert unwrap(f"{opening}hm").fault
    for opening, closing in ANSWERS:
        assert unwrap(f"<think>hm</think>{opening}{T}{closing}").text == T
    for head in HEADS:
        assert unwrap(f"{head}{T}").text == T
        assert unwrap(f"{T}{head}{T}").fault
    for end in ENDS:
        assert unwrap(f"{T}{end}").text == T
        assert unwrap(f"{T}{end}{T}").fault


@pytest.mark.parametrize(
    "piece", ["<think></think>", "<|im_end|>", "<|", "</s>", "[THINK", "`</think>` "]
)
def test_a_hostile_answer_takes_time_in_proportion_to_its_length(piece):
    started = time.process_time()
    unwrap(piece * (200_000 // len(piece)))
    assert time.process_time() - started < 2
