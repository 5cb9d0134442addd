"""A local model that writes: what it is shown, how it draws, and what it cannot do."""

import numpy as np
import pytest
import torch
import transformers

from adapters import local_text
from adapters.local_text import CausalLM
from pe.data.texts import Texts
from pe.errors import RecipeError
from pe.plugins.protocols import Failed, RandomRequest, VariationRequest
from tests.adapters.language import tiny
from tests.flaws import FLAWS, spoil

SEEDS = np.random.default_rng(1).integers(0, 2**63, 12).astype(np.uint64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.causal(tmp_path_factory.mktemp("causal"))


def made(folder, **settings):
    given = {
        "model": folder,
        "prompts": "a {label} review",
        "max_tokens": 8,
        "device": "cpu",
        "batch_size": 4,
    }
    return CausalLM(**given | settings)


def random(api, seeds=SEEDS):
    labels = ("film",) * len(seeds)
    return api.random_api(RandomRequest(labels, seeds, api.draw_conditions(labels, seeds)))


def varied(api, *texts):
    labels, seeds = ("film",) * len(texts), SEEDS[: len(texts)]
    request = VariationRequest(
        Texts.of(list(texts)), labels, api.draw_conditions(labels, seeds), seeds, 0.5
    )
    return api.variation_api(request)


@pytest.fixture
def shown(monkeypatch):
    """What the model is shown, as its tokenizer reads it."""
    seen = []
    generate = transformers.LlamaForCausalLM.generate

    def watched(self, ids, **settings):
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.config._name_or_path)
        seen.extend(tokenizer.batch_decode(ids))
        return generate(self, ids, **settings)

    monkeypatch.setattr(transformers.LlamaForCausalLM, "generate", watched)
    return seen


def test_a_prompt_is_put_by_the_model_s_chat_template_if_it_has_one(folder, tmp_path, shown):
    random(made(folder, system="Be brief.", template={"mood": "(calm)"}), SEEDS[:1])
    random(made(tiny.causal(tmp_path, template=None), system="Be brief."), SEEDS[:1])
    assert shown == [
        "<system>Be brief.</s><user>a film review</s><assistant>(calm)",
        "Be brief.\n\na film review\n\n",
    ]


def test_a_variation_is_asked_for_by_blanks(folder, shown):
    api = made(folder, wordings={1.0: "{words}: {text}"}, length_sigma=0, least_words=1)
    varied(api, "good bad warm cold")
    assert shown[0].count("_") == 2
    assert "<user>4: " in shown[0]


def test_tokens_are_drawn_from_the_model_s_own_distribution():
    scores = torch.log(torch.tensor([[0.5, 0.0, 0.3, 0.2]])).expand(20_000, 4)
    numbers = np.random.default_rng(0).random(20_000)
    counts = np.bincount(local_text.pick(scores, numbers)[:, 0].numpy(), minlength=4) / 20_000
    np.testing.assert_allclose(counts, [0.5, 0, 0.3, 0.2], atol=0.015)
    edges = local_text.pick(scores[:2], np.array([0.0, 1 - 2.0**-53]))[:, 0].tolist()
    assert edges == [0, 3]


def test_a_text_that_does_not_end_is_cut_off(folder):
    missing = random(made(folder, cut=False)).missing
    assert len(missing) > 6
    assert missing[0] == Failed(
        "the text was cut off after 8 tokens: raise `max_tokens`, or set `cut: true`"
    )


def test_what_does_not_fit_into_the_model_fails_alone(tmp_path):
    api = made(tiny.causal(tmp_path, longest=128), wordings={1.0: "{text}"})
    answer = varied(api, "good bad warm", "good " * 200)
    assert set(answer.missing) == {1}
    assert "with `max_tokens: 8` the model takes 120" in answer.missing[1].reason
    assert answer.missing[1].rejected  # so that a run goes on


@pytest.mark.parametrize("flaw", FLAWS)
def test_weights_that_did_not_come_whole_are_named(flaw, tmp_path):
    folder = tiny.causal(tmp_path)
    spoil(tmp_path / "model.safetensors", flaw)
    with pytest.raises(
        RecipeError, match=rf"model\.safetensors is {flaw}.*: download the file itself"
    ):
        random(made(folder))


def test_a_model_that_is_not_there_or_has_no_head_that_writes_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"'nowhere/at-all' cannot be loaded \(.*name a folder"):
        random(made("nowhere/at-all", offline=True))
    folder = tiny.causal(tmp_path)
    whole = transformers.LlamaForCausalLM.from_pretrained(folder)
    whole.model.save_pretrained(folder)
    with pytest.raises(
        RecipeError, match=r"lacks the weights lm_head\.weight of an AutoModelForCausalLM"
    ):
        random(made(folder))
