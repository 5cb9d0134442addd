"""Tiny sentence encoders of random weights, in folders as the libraries that make them
write them.
"""

import json

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from tests.endpoints.chat_server import WORDS

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LIMIT = 48
"""Tokens that the encoder takes."""
_WIDTH = 24
_TYPE = "sentence_transformers.models."


def encoder(folder, *, pooling="mean", modules=True):
    """A BERT with a pooling layer, as sentence-transformers saves them; without `modules` as
    transformers does.
    """
    torch.manual_seed(0)
    tokenizer = _tokenizer(["[CLS] $A [SEP]"])
    sizes = {
        "hidden_size": _WIDTH,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=LIMIT, **sizes
    )
    config.initializer_range = 0.3  # so that the text tells
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=LIMIT, **names
    ).save_pretrained(folder)
    if modules:
        _write(folder / "modules.json", _modules("Transformer", "Pooling", "Normalize"))
        _write(
            folder / "1_Pooling" / "config.json",
            {"embedding_dimension": _WIDTH, "pooling_mode": pooling},
        )
    return str(folder)


def static(folder):
    """A table with a vector for each token, as model2vec saves it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer([])
    rows = (
        np.random.default_rng(0)
        .normal(size=(tokenizer.get_vocab_size(), _WIDTH))
        .astype(np.float32)
    )
    save_file({"embeddings": rows}, folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "config.json", {"normalize": True, "embedding_dtype": "float32"})
    _write(folder / "modules.json", _modules("StaticEmbedding", "Normalize"))
    return str(folder)


def prompted(folder, prompt):
    """An encoder that puts a prompt before each text unless another is given."""
    place = encoder(folder)
    content = {"prompts": {"query": prompt}, "default_prompt_name": "query"}
    _write(folder / "config_sentence_transformers.json", content)
    return place


def incomplete(folder):
    """An encoder of whose weights some are missing."""
    place, file = encoder(folder), folder / "model.safetensors"
    kept = {
        name: value for name, value in load_file(file).items() if "layer.1.attention" not in name
    }
    save_file(kept, file, metadata={"format": "pt"})
    return place


def with_code(folder, told):
    """An encoder with a module of its own, whose code writes to `told` when it is run."""
    place = encoder(folder)
    (folder / "own.py").write_text(f"open({str(told)!r}, 'w').close()\nclass Own: pass\n")
    _write(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": "own.Own"}])
    return place


def _tokenizer(template):
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    trainer = trainers.WordPieceTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=list("abcdefghijklmnopqrstuvwxyz"),
        show_progress=False,
    )
    made.train_from_iterator([" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))], trainer)
    if template:
        ends = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
        made.post_processor = processors.TemplateProcessing(single=template[0], special_tokens=ends)
    return made


def _modules(*kinds):
    return [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": _TYPE + kind}
        for i, kind in enumerate(kinds)
    ]


def _write(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")
