"""Tiny language models of random weights, built from configurations, with tokenizers trained on a
few sentences.
"""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from tests.endpoints.chat_server import WORDS

SENTENCES = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}<assistant>{{ mood }}"
)
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def causal(folder, *, template=TEMPLATE, longest=512):
    """A model that writes, saved in `folder`."""
    tokenizer = _tokenizer(["<s>", "</s>"])
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=longest, **SIZES
    )
    config.bos_token_id, config.eos_token_id = 0, 1
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    model.generation_config.do_sample = True  # which transformers' own server draws by
    model.save_pretrained(folder)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = template
    fast.save_pretrained(folder)
    return str(folder)


def masked(folder, longest=66):
    """A model that fills in masks, saved in `folder`."""
    tokenizer = _tokenizer(["<s>", "</s>", "<pad>", "<mask>"])
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 1), ("<s>", 0), trim_offsets=False
    )
    sizes = SIZES | {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": longest}
    torch.manual_seed(0)
    RobertaForMaskedLM(RobertaConfig(pad_token_id=2, **sizes)).save_pretrained(folder)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=longest - 3, **names
    )
    fast.save_pretrained(folder)
    return str(folder)


def _tokenizer(special):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(SENTENCES, trainer)
    return made
