"""A local model that fills in masks: exactly the share of the degree, drawn by the seed."""

import re

import numpy as np
import pytest
import transformers

from adapters.local_text import MaskedLM
from pe.data.samples import Conditions
from pe.data.texts import Texts
from pe.errors import RecipeError
from pe.plugins.protocols import RandomRequest, VariationRequest
from tests.adapters.language import tiny

SEEDS = np.random.default_rng(1).integers(0, 2**63, 10).astype(np.uint64)
PARENT = " ".join(tiny.WORDS[:30])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.masked(tmp_path_factory.mktemp("masked"))


def made(folder, **settings):
    return MaskedLM(
        **{"model": folder, "prompts": PARENT, "device": "cpu", "batch_size": 4} | settings
    )


def varied(api, degree, parents, seeds=SEEDS):
    request = VariationRequest(
        Texts.of(parents), ("a",) * len(parents), Conditions(), seeds[: len(parents)], degree
    )
    return api.variation_api(request)


@pytest.mark.parametrize("degree", [0.1, 0.5, 1.0])
def test_the_degree_is_the_share_of_tokens_that_are_masked(folder, degree, monkeypatch):
    tokenizer, masks = transformers.AutoTokenizer.from_pretrained(folder), []
    forward = transformers.RobertaForMaskedLM.forward

    def watched(self, input_ids, **inputs):
        masks.append(int((input_ids == tokenizer.mask_token_id).sum()))
        return forward(self, input_ids=input_ids, **inputs)

    monkeypatch.setattr(transformers.RobertaForMaskedLM, "forward", watched)
    (text,) = varied(made(folder, passes=3), degree, [PARENT]).samples.strings
    tokens = len(tokenizer(PARENT)["input_ids"]) - 2
    assert masks[0] == round(degree * tokens)
    assert len(masks) == 3
    assert masks == sorted(masks, reverse=True)
    assert masks[2] > 0  # each pass fills in a part
    kept = np.mean([word in text.split() for word in PARENT.split()])
    assert kept >= 1 - 2 * degree
    assert not {"<s>", "</s>", "<pad>", "<mask>"} & set(re.findall("<[^<>]*>", text))


def test_a_new_text_is_a_public_one_with_a_share_of_it_anew(folder):
    prompts = {"a": ["good bad warm cold {tone}"] * 2}
    api = made(folder, prompts=prompts, attributes={"tone": ["slow"]}, random_degree=0.4)
    labels = ("a",) * len(SEEDS)
    answer = api.random_api(RandomRequest(labels, SEEDS, api.draw_conditions(labels, SEEDS)))
    assert set(answer.conditions["prompt"]) == {"good bad warm cold slow"}
    assert len(set(answer.samples.strings)) == len(SEEDS)
    kept = [
        word in text
        for text in answer.samples.strings
        for word in ("good", "bad", "warm", "cold", "slow")
    ]
    assert 0.4 < np.mean(kept) < 0.8


def test_a_text_that_is_too_long_or_empty_fails_alone(folder):
    answer = varied(made(folder), 0.5, ["good bad", "good " * 100, ""])
    assert len(answer.samples) == 1
    assert "but the model takes 63: use shorter texts" in answer.missing[1].reason
    assert answer.missing[2].reason == "the text has no token to mask"
    assert answer.missing[1].rejected
    assert answer.missing[2].rejected


def test_a_model_that_knows_no_mask_is_refused(tmp_path):
    folder = tiny.masked(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(RecipeError, match="has a tokenizer without a mask"):
        varied(made(folder), 0.5, [PARENT])
