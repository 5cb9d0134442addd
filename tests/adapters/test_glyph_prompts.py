"""Glyphs by prompts: the text that a prompt quotes, drawn as its words tell; so the simulator draws captions."""

import numpy as np
import pytest

from adapters.glyphs import SHAPE, WORDS, Glyphs, read_quote
from pe.data.samples import Conditions
from pe.errors import RecipeError
from pe.plugins.protocols import DrawsConditions, RandomRequest, Refused, VariationRequest

pytest.importorskip("matplotlib")

SEEDS = np.random.default_rng(0).integers(0, 2**64, 40, dtype=np.uint64)


def drawn(*prompts):
    asked = Conditions({"prompt": np.array(prompts)})
    return Glyphs(prompts='"{label}"').random_api(RandomRequest(("3",) * len(prompts), SEEDS[: len(prompts)], asked))


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ('the digit "7", bold', "7"),
        ("„Ab c“ und “x”", "Ab c"),
        ("«é»", "é"),
        ('""', ""),
        (f'"{"x" * 41}"', ""),
        ('an open "', ""),
    ],
)
def test_the_first_text_in_quotation_marks_is_drawn(prompt, text):
    assert read_quote(prompt) == text


def test_prompts_are_drawn_whatever_the_label_and_stay_with_the_sample():
    new = drawn('a "7"', 'a "8"')
    assert new.conditions["text"].tolist() == ["7", "8"]
    request = VariationRequest(new.samples, ("3", "3"), new.conditions, SEEDS[2:4], 1.0)
    varied = Glyphs(prompts='"{label}"').variation_api(request)
    assert varied.conditions["text"].tolist() == ["7", "8"]
    assert varied.conditions["prompt"].tolist() == ['a "7"', 'a "8"']


@pytest.mark.parametrize(("word", "told"), WORDS.items())
def test_a_word_names_half_of_a_range(word, told):
    name, side = told
    scores = drawn(*[f'A {word.upper()} "7"'] * 40).conditions["parameters"]
    free = drawn(*['a "7"'] * 40).conditions["parameters"]
    place = SHAPE.index(name)
    assert (side * scores[:, place] > 0).all()
    assert 8 < np.count_nonzero(free[:, place] > 0) < 32
    np.testing.assert_array_equal(np.delete(scores, place, 1), np.delete(free, place, 1))


def test_a_prompt_that_quotes_nothing_that_can_be_drawn_is_refused():
    answer = drawn('a "7"', "a seven", '"中文"', '"8"')
    assert answer.conditions["text"].tolist() == ["7", "8"]
    assert answer.missing == {
        1: Refused("the prompt has no text of 1 to 40 characters in quotation marks"),
        2: Refused("no font draws the text '中文', which the prompt quotes"),
    }


def test_labels_draw_from_their_prompts():
    assert not isinstance(Glyphs(), DrawsConditions)
    api = Glyphs(prompts={"three": ['a thin "3"', 'a bold "3"'], "four": '"4"'})
    assert isinstance(api, DrawsConditions)
    found = api.draw_conditions(("three", "four") * 20, SEEDS)["prompt"]
    assert set(found.tolist()) == {'a thin "3"', 'a bold "3"', '"4"'}
    api.check_labels(["three", "four"])
    with pytest.raises(RecipeError, match="there is none for the label 'five'"):
        api.check_labels(["five"])
    with pytest.raises(RecipeError, match="texts and prompts are given"):
        Glyphs(prompts="7", texts={"three": ["3"]})
