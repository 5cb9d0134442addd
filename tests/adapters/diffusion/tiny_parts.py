"""Parts of tiny random pipelines: Qwen text encoders and their tokenizer, CLIP image encoders, larger weights."""

from __future__ import annotations

from typing import TypeVar

import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
)

from tests.adapters.diffusion.tiny import SIDE

Model = TypeVar("Model", bound=torch.nn.Module)

MARKS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
VOCABULARY = [*MARKS, *sorted(ByteLevel.alphabet())]
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat_words() -> Qwen2Tokenizer:
    """A tokenizer with a token for each byte and each mark."""
    vocabulary = {word: i for i, word in enumerate(VOCABULARY)}
    return Qwen2Tokenizer(vocabulary, [], additional_special_tokens=list(MARKS[1:]), chat_template=CHAT)


def qwen3(layers: int = 2, width: int = 16, head: bool = False) -> Qwen3Model | Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=len(VOCABULARY),
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config) if head else Qwen3Model(config)


def clip_vision(width: int = 16) -> CLIPVisionModelWithProjection:
    """An image encoder whose embeddings have as many numbers as the text embeddings of `tiny.clip_text`."""
    config = CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=8,
        projection_dim=width,
    )
    return CLIPVisionModelWithProjection(config)


def extractor() -> CLIPImageProcessor:
    return CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})


def bold(model: Model, gain: float) -> Model:
    """Multiply the weights of this model, for a random transformer hardly heeds a parent."""
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim >= 2:
                weights.mul_(gain)
    return model
