"""A local model that writes: what it is shown, how it draws, and what it cannot do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from adapters import local_text
from adapters.local_text import CausalLM
from pe.data.texts import Texts
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import Answer, Failed, RandomRequest, VariationRequest
from tests.adapters.language import tiny

SEEDS = np.random.default_rng(1).integers(0, 2**63, 12).astype(np.uint64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.causal(tmp_path_factory.mktemp("causal"))


def made(folder: str, **settings: object) -> CausalLM:
    given = {"model": folder, "prompts": "a {label} review", "max_tokens": 8, "device": "cpu", "batch_size": 4}
    return CausalLM(**given | settings)


def random(api: CausalLM, seeds: np.ndarray = SEEDS) -> Answer:
    labels = ("film",) * len(seeds)
    return api.random_api(RandomRequest(labels, seeds, api.draw_conditions(labels, seeds)))


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the model is shown, as its tokenizer reads it."""
    seen: list[str] = []
    generate = transformers.LlamaForCausalLM.generate

    def watched(self: object, ids: torch.Tensor, **settings: object) -> object:
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.config._name_or_path)  # type: ignore[attr-defined]
        seen.extend(tokenizer.batch_decode(ids))
        return generate(self, ids, **settings)

    monkeypatch.setattr(transformers.LlamaForCausalLM, "generate", watched)
    return seen


def test_a_prompt_is_put_by_the_model_s_chat_template(folder: str, shown: list[str]) -> None:
    random(made(folder, system="Be brief.", template={"mood": "(calm)"}), SEEDS[:1])
    assert shown == ["<system>Be brief.</s><user>a film review</s><assistant>(calm)"]


def test_a_model_without_a_template_continues_the_plain_text(tmp_path: Path, shown: list[str]) -> None:
    random(made(tiny.causal(tmp_path, template=None), system="Be brief."), SEEDS[:1])
    assert shown == ["Be brief.\n\na film review\n\n"]


def test_a_variation_is_asked_for_by_blanks(folder: str, shown: list[str]) -> None:
    api = made(folder, wordings={1.0: "{words}: {text}"}, length_sigma=0, least_words=1)
    parents = Texts.of(["good bad warm cold"])
    api.variation_api(VariationRequest(parents, ("film",), api.draw_conditions(("film",), SEEDS[:1]), SEEDS[:1], 0.5))
    assert shown[0].count("_") == 2
    assert "<user>4: " in shown[0]


def test_tokens_are_drawn_from_the_model_s_own_distribution() -> None:
    scores = torch.log(torch.tensor([[0.5, 0.0, 0.3, 0.2]])).expand(20_000, 4)
    numbers = np.random.default_rng(0).random(20_000)
    counts = np.bincount(local_text.pick(scores, numbers)[:, 0].numpy(), minlength=4) / 20_000
    np.testing.assert_allclose(counts, [0.5, 0, 0.3, 0.2], atol=0.015)
    edges = local_text.pick(scores[:2], np.array([0.0, 1 - 2.0**-53]))[:, 0].tolist()
    assert edges == [0, 3]


def test_a_text_follows_from_its_seed_and_not_from_its_batch(folder: str) -> None:
    prompts = ["a {label} review", "a longer review of a {label}, in warm words"]
    whole = random(made(folder, prompts=prompts)).samples.strings
    alone = [random(made(folder, prompts=prompts), SEEDS[i : i + 1]).samples.strings[0] for i in (0, 5, 11)]
    assert [whole[i] for i in (0, 5, 11)] == alone
    assert len(set(whole)) == len(SEEDS)


def test_a_low_temperature_or_one_token_to_choose_from_leaves_no_choice(folder: str) -> None:
    for settings in ({"temperature": 1e-4}, {"top_k": 1}, {"top_p": 1e-6}):
        assert len(set(random(made(folder, **settings)).samples.strings)) == 1


def test_a_text_that_does_not_end_is_cut_off(folder: str) -> None:
    missing = random(made(folder, cut=False)).missing
    assert len(missing) > 6
    assert missing[0] == Failed("the text was cut off after 8 tokens: raise max_tokens, or set cut: true")


def test_what_does_not_fit_into_the_model_fails_alone(tmp_path: Path) -> None:
    api = made(tiny.causal(tmp_path, longest=128), wordings={1.0: "{text}"})
    parents = Texts.of(["good bad warm", "good " * 200])
    labels = ("film",) * 2
    request = VariationRequest(parents, labels, api.draw_conditions(labels, SEEDS[:2]), SEEDS[:2], 0.5)
    answer = api.variation_api(request)
    assert set(answer.missing) == {1}
    assert "with max_tokens: 8 the model takes 120" in answer.missing[1].reason


def test_a_batch_that_memory_refuses_is_halved(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generate, sizes = transformers.LlamaForCausalLM.generate, []

    def scarce(self: object, ids: torch.Tensor, **settings: object) -> object:
        sizes.append(len(ids))
        if len(ids) > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return generate(self, ids, **settings)

    whole = random(made(folder)).samples.strings
    monkeypatch.setattr(transformers.LlamaForCausalLM, "generate", scarce)
    most = 1
    assert random(made(folder)).samples.strings == whole
    assert sizes[:3] == [4, 2, 1]
    assert set(sizes[3:]) == {1}
    most = 0
    with pytest.raises(APIError, match="cpu refused a single text, most likely for want of memory"):
        random(made(folder))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model": "nowhere/at-all", "offline": True}, r"'nowhere/at-all' cannot be loaded \(.*name a folder"),
        ({"device": "tpu"}, "device"),
        ({"device": "cuda:7"}, "cuda:7"),
        ({"top_k": -1}, "top_k must be at least 0"),
    ],
)
def test_what_cannot_be_is_one_sentence(folder: str, settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        random(made(folder, **settings))


def test_a_model_without_a_head_that_writes_is_refused(tmp_path: Path) -> None:
    folder = tiny.causal(tmp_path)
    whole = transformers.LlamaForCausalLM.from_pretrained(folder)
    whole.model.save_pretrained(folder)
    with pytest.raises(RecipeError, match=r"lacks the weights lm_head\.weight of an AutoModelForCausalLM"):
        random(made(folder))


def test_two_devices_share_the_items(folder: str) -> None:
    whole = random(made(folder)).samples.strings
    api = made(folder, batch_size=1, device=["cpu", "cpu"])
    assert random(api).samples.strings == whole
    assert len([worker for worker in api._engine._workers if worker.model is not None]) == 2
