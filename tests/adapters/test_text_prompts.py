"""Prompts with attributes, and texts with blanks: what is drawn by an item's seed, and how much."""

import numpy as np
import pytest

from adapters.text_prompts import Asking, TextPrompts, blanked, share_of, words_of
from adapters.text_settings import Drawn, Written
from pe.data.samples import Conditions
from pe.data.texts import Texts
from pe.plugins.protocols import VariationRequest

SEEDS = np.random.default_rng(3).integers(0, 2**63, 400).astype(np.uint64)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Not that great, terrible egg-rolls; don't go.", 7),
        ("很好吃", 3),
        ("味はgoodです", 5),
        ("", 0),
    ],
)
def test_a_word_is_a_run_of_letters_or_a_character_of_scripts_without_spaces(text, words):
    assert len(words_of(text)) == words


@pytest.mark.parametrize(
    ("count", "degree", "share"), [(10, 0.5, 5), (10, 0.25, 3), (3, 0.01, 1), (7, 1, 7), (1, 1, 1)]
)
def test_a_share_is_the_nearest_whole_number_and_never_none(count, degree, share):
    assert share_of(count, degree) == share


def test_blanks_are_exactly_the_share_and_all_else_stays_in_place():
    text = "The food,\nI must say: was (very) good — and so cheap!"
    for degree in (0.1, 0.4, 0.9, 1.0):
        shown = blanked(text, degree, 5)
        assert len(words_of(shown)) == 11
        assert [each[0] for each in words_of(shown)].count("_") == share_of(11, degree)
        assert shown.count("\n") == 1
        assert shown.endswith("!")
    assert blanked(text, 0.4, 5) == blanked(text, 0.4, 5)
    assert len({blanked(text, 0.4, seed) for seed in range(20)}) > 15


def test_a_greater_degree_blanks_the_same_words_and_more():
    text = " ".join(f"w{i}" for i in range(50))
    less, more = (np.array(blanked(text, degree, 9).split()) == "_" for degree in (0.3, 0.6))
    assert (more | ~less).all()


def test_each_attribute_is_drawn_by_the_item_s_seed_alone_and_independently():
    lists = {"topic": ["a", "b"], "tone": {"film": ["x", "y"], "food": ["z"]}}
    prompts = TextPrompts.of(Drawn(prompts=["{label} {topic} {tone}", "{tone}!"], attributes=lists))
    labels = ["film"] * 200 + ["food"] * 200
    drawn = prompts.draw(labels, SEEDS)
    some = prompts.draw(labels[190:210], SEEDS[190:210])
    assert all((drawn[name][190:210] == some[name]).all() for name in ("topic", "tone", "prompt"))
    assert set(drawn["tone"][200:]) == {"z"}
    pairs = np.unique(np.stack([drawn["topic"][:200], drawn["tone"][:200]]), axis=1, return_counts=True)[1]
    assert len(pairs) == 4
    assert pairs.min() > 30
    for row in zip(drawn["prompt"], drawn["topic"], drawn["tone"], labels, strict=True):
        assert row[0] in (f"{row[3]} {row[1]} {row[2]}", f"{row[2]}!")


def test_a_parent_s_own_braces_are_no_names():
    asking = Asking.of(Written(prompts="a", variation="paraphrase", wordings={1: "{label}: {text}"}))
    request = VariationRequest(Texts.of(["{label} {words}"]), ("film",), Conditions(), SEEDS[:1], 0.5)
    assert asking.for_variations(request) == ["film: {label} {words}"]


def test_the_length_varies_with_the_degree_and_has_a_least():
    asking = Asking.of(Written(prompts="a", wordings={1: "{words}{text}"}, length_sigma=20, least_words=95))
    parents = Texts.of([" ".join(["w"] * 100)] * len(SEEDS))

    def lengths(degree):
        request = VariationRequest(parents, ("film",) * len(SEEDS), Conditions(), SEEDS, degree)
        return np.array([int(text.split("_")[0].split("w")[0]) for text in asking.for_variations(request)])

    for degree in (0.1, 0.5):
        found = lengths(degree)
        assert found.min() >= 95
        assert 0.7 < (np.abs(found - 100) <= 20 * degree).mean() / 0.68 < 1.8
    assert lengths(0.5).max() > lengths(0.1).max() > 100
