"""What the chat adapter asks of a real server on loopback, through the official SDK, and what it
makes of answers.
"""

import numpy as np
import pytest

from adapters.chat import Chat, ChatSettings, tokens_of_texts
from adapters.http import Rejected
from adapters.text_prompts import Asking, TextPrompts, blank, find_words, share_of
from adapters.text_settings import Drawn, Written
from pe.data.samples import Conditions
from pe.data.texts import Texts
from pe.errors import RecipeError
from pe.plugins.protocols import Failed, RandomRequest, Refused, Usage, VariationRequest
from tests.endpoints.asking import CANARY, impatient, serve
from tests.endpoints.chat_server import ChatServer
from tests.endpoints.faults import Script

__all__ = ["impatient", "serve"]  # fixtures

PARENT = "the film was long and dull but the night was warm"


@pytest.fixture
def make(serve):
    """An adapter, and the script of the server that it talks to."""

    def made(*faults, **settings):
        script = Script(first=faults)
        given = {
            "model": "m",
            "prompts": "a review of a {label}",
            "timeout": 2.0,
            "key_env": "THE_KEY",
        }
        return Chat(**given | {"base_url": f"{serve(ChatServer(script))}/v1"} | settings), script

    return made


def random(api, count=1, seed=1 << 40):
    seeds = np.arange(count, dtype=np.uint64) + np.uint64(seed)
    labels = ("film",) * count
    return api.random_api(RandomRequest(labels, seeds, api.draw_conditions(labels, seeds)))


def varied(api, degree=0.5, text=PARENT, count=1, **columns):
    conditions = Conditions({name: np.array([each] * count) for name, each in columns.items()})
    seeds = np.arange(count, dtype=np.uint64)
    return api.variation_api(
        VariationRequest(Texts.of([text] * count), ("film",) * count, conditions, seeds, degree)
    )


def test_a_new_text_is_the_answer_to_its_prompt_without_quotation_marks(make):
    api, script = make(
        system="You write reviews.", temperature=1.2, top_p=0.9, max_tokens=99, extra={"top_k": 5}
    )
    answer = random(api)
    (text,) = answer.samples.strings
    assert len(text.split()) == 30
    assert not set('"\n') & set(text)
    (body,) = script.requests
    system, user = body["messages"]
    assert (system["content"], user["content"]) == ("You write reviews.", "a review of a film")
    wanted = {"model": "m", "temperature": 1.2, "top_p": 0.9, "max_tokens": 99, "top_k": 5}
    assert {name: body[name] for name in wanted} == wanted
    assert not {"n", "seed", "max_completion_tokens"} & body.keys()
    assert script.keys == {f"Bearer {CANARY}"}
    assert answer.usage == Usage(1, 1, tokens=40, text_in=10, text_out=30)


def test_a_variation_fills_the_blanks_of_its_parent(make):
    api, script = make(length_sigma=0)
    (text,) = varied(api, 0.5).samples.strings
    instruction, blanks = script.requests[0]["messages"][-1]["content"].split("\n\n")
    assert blanks.split().count("_") == 6  # of 11 words
    assert "about 11 words" in instruction
    assert "_" not in text
    assert (
        api.capabilities.degree == "wording"
    )  # the blanks are exact, and what becomes of the rest is the model's


def test_a_paraphrase_puts_the_degree_in_words_and_the_whole_parent_below_them(make):
    wordings = {
        0.5: "Say it anew, {tone}, as of '{prompt}', in {words} words: {text}",
        1: "Another {label} text.",
    }
    given = {
        "variation": "paraphrase",
        "attributes": {"tone": ["warm"]},
        "wordings": wordings,
        "length_sigma": 0,
    }
    api, script = make(**given, prompts="a {tone} one")
    varied(api, 0.4, prompt="a cold one", tone="cold")
    varied(api, 0.6)
    first, second = (body["messages"][-1]["content"] for body in script.requests)
    assert first == f"Say it anew, cold, as of 'a cold one', in 11 words: {PARENT}"
    assert second == f"Another film text.\n\n{PARENT}"


def test_degree_0_is_the_parent_without_a_call_and_degree_1_a_new_text_of_its_prompt(make):
    api, script = make()
    same = varied(api, 0.0)
    assert (same.samples.strings, same.usage) == ([PARENT], Usage(0))
    varied(api, 1.0, prompt="a review of a comedy")
    varied(api, 1.0)  # of parents without conditions
    varied(api, 0.5, text="")  # nothing to vary
    asked = [body["messages"][-1]["content"] for body in script.requests]
    assert asked == ["a review of a comedy", *["a review of a film"] * 2]
    assert api.describe_degree(0.25).startswith("0.25 of the words")


def test_several_texts_of_one_prompt_or_parent_come_in_one_request_where_n_says_so(make):
    api, script = make(n=3, variation="paraphrase")
    assert len(random(api, 3).samples) == len(varied(api, 0.5, count=3).samples) == 3
    assert [body["n"] for body in script.requests] == [3, 3]
    short, _ = make("fewer", n=3, variation="paraphrase")
    answer = random(short, 3)
    assert answer.missing[2] == Failed("the endpoint sent 2 texts where 3 were asked for")
    assert answer.usage.images == 2


def test_a_seed_and_the_limit_of_tokens_go_into_the_fields_that_the_server_takes(make):
    api, script = make(seed_field="random_seed", max_tokens_field="max_completion_tokens")
    random(api, seed=7)
    assert (script.requests[0]["random_seed"], script.requests[0]["max_completion_tokens"]) == (
        7,
        512,
    )
    assert ChatSettings(model="m", prompts="a").limit_field == "max_completion_tokens"
    assert (
        ChatSettings(model="m", prompts="a", base_url="http://127.0.0.1:8000/v1").limit_field
        == "max_tokens"
    )


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (
            "filter",
            Refused(
                "the endpoint's content filter withheld the text (finish_reason: content_filter)"
            ),
        ),
        ("moved refusal", Refused("I can't.")),
        ("refusal parts", Refused("I can't.")),
        ("policy", Refused("The response was filtered")),
        ("named policy", Refused("litellm.ContentPolicyViolationError: OpenAIException - No.")),
        ("empty", Failed("the model wrote nothing")),
        ("fewer", Failed("the endpoint sent 0 texts where 1 were asked for")),
        ("no message", Failed("the endpoint sent dict without a message in place of a text")),
    ],
)
def test_refusals_are_outcomes_and_answers_without_a_text_are_failures(make, fault, outcome):
    api, script = make(fault)
    answer = random(api)
    assert answer.missing == {0: outcome}
    assert len(answer.samples) == 0
    assert (answer.usage.calls, len(script.requests)) == (1, 1)


def test_a_template_s_markup_is_taken_off_or_makes_no_text_and_both_are_counted(make):
    api, _ = make("thoughts", "reasoning parts", "only thoughts", "finish error")
    assert [len(random(api).samples.strings[0].split()) for _ in range(2)] == [30, 30]
    for reason in ("its thoughts begin with <think> and do not end", "broke off the text"):
        missing = random(api).missing[0]
        assert reason in missing.reason
        assert missing.retryable
    assert not random(api).missing
    assert api.describe_answers() == (
        "Of 5 answers: 1 × <|im_end|> taken off; 1 × …</think> taken off; 1 × no text, because its "
        "thoughts begin with <think> and do not end; 1 × no text, because the endpoint broke off "
        "the text (finish_reason: 'error')."
    )


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        *(dict.fromkeys(("STOP", "end_turn", "", "MAX_TOKENS"), True).items()),
        *(dict.fromkeys(("error", "insufficient_system_resource"), Failed).items()),
        *(dict.fromkeys(("SAFETY", "refusal"), Refused).items()),
    ],
)
def test_a_text_is_whole_cut_withheld_or_broken_off_as_its_server_says(make, reason, kept):
    answer = random(make(f"finish {reason}")[0])
    assert len(answer.samples) if kept is True else isinstance(answer.missing[0], kept)


def test_a_text_that_was_cut_off_is_kept_unless_the_recipe_says_otherwise(make):
    assert len(random(make("cut")[0]).samples) == 1
    assert len(random(make(longest=20)[0]).samples.strings[0]) == 20
    api, _ = make("cut", cut=False)
    assert random(api).missing[0].reason.startswith("the text was cut off after 512 tokens")
    api, _ = make(cut=False, longest=20)
    assert random(api).missing[0].reason.startswith("the text has more than 20 bytes")


def test_what_passes_is_asked_again_and_what_does_not_ends_in_the_server_s_words(make):
    api, script = make("429", "500", "503 html", "other json", tries=4)
    assert random(api).usage.calls == 5
    assert script.seen[""] == 1
    wrong, _ = make()
    with pytest.raises(Rejected, match="404"):
        random(
            Chat(
                model="m",
                prompts="a",
                base_url=wrong._config.url.replace("/v1", "/v9"),
                key_env=None,
            )
        )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"n": 2}, r"`n` is 2, but with `variation: fill_in` each text has blanks of its own"),
        ({"wordings": {1: "make {it} new"}}, r"wordings has \{it\}, which nothing replaces"),
        ({"attributes": {"tone": []}}, r"attributes\.tone holds an empty text"),
        ({"attributes": {"Tone": ["a"]}}, r"'Tone' cannot be used as a name"),
        (
            {"attributes": {"tone": {"food": ["a"]}}},
            r"attributes\.tone: there is none for the label 'film'",
        ),
    ],
)
def test_settings_out_of_range_are_one_sentence(settings, sentence):
    with pytest.raises(RecipeError, match=sentence):
        Chat(**{"model": "m", "prompts": "a"} | settings).check_labels(["film"])


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        (None, Usage(0)),
        ({"total_tokens": 9, "prompt_tokens": "3"}, Usage(0, tokens=9)),
        ({"prompt_tokens": -3, "completion_tokens": [4]}, Usage(0)),
    ],
)
def test_tokens_are_counted_as_far_as_the_server_tells_them(told, counted):
    assert tokens_of_texts(told) == counted


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
    assert len(find_words(text)) == words


@pytest.mark.parametrize(
    ("count", "degree", "share"), [(10, 0.5, 5), (10, 0.25, 3), (3, 0.01, 1), (7, 1, 7), (1, 1, 1)]
)
def test_a_share_is_the_nearest_whole_number_and_never_none(count, degree, share):
    assert share_of(count, degree) == share


def test_blanks_are_exactly_the_share_and_all_else_stays_in_place():
    text = "The food,\nI must say: was (very) good — and so cheap!"
    for degree in (0.1, 0.4, 0.9, 1.0):
        shown = blank(text, degree, 5)
        assert len(find_words(shown)) == 11
        assert [each[0] for each in find_words(shown)].count("_") == share_of(11, degree)
        assert shown.count("\n") == 1
        assert shown.endswith("!")
    assert blank(text, 0.4, 5) == blank(text, 0.4, 5)
    assert len({blank(text, 0.4, seed) for seed in range(20)}) > 15


def test_a_greater_degree_blanks_the_same_words_and_more():
    text = " ".join(f"w{i}" for i in range(50))
    less, more = (np.array(blank(text, degree, 9).split()) == "_" for degree in (0.3, 0.6))
    assert (more | ~less).all()


def test_each_attribute_is_drawn_by_the_item_s_seed_alone_and_independently():
    lists = {"topic": ["a", "b"], "tone": {"film": ["x", "y"], "food": ["z"]}}
    prompts = TextPrompts.of(Drawn(prompts=["{label} {topic} {tone}", "{tone}!"], attributes=lists))
    labels = ["film"] * 200 + ["food"] * 200
    drawn = prompts.draw(labels, SEEDS)
    some = prompts.draw(labels[190:210], SEEDS[190:210])
    assert all((drawn[name][190:210] == some[name]).all() for name in ("topic", "tone", "prompt"))
    assert set(drawn["tone"][200:]) == {"z"}
    pairs = np.unique(
        np.stack([drawn["topic"][:200], drawn["tone"][:200]]), axis=1, return_counts=True
    )[1]
    assert len(pairs) == 4
    assert pairs.min() > 30
    for row in zip(drawn["prompt"], drawn["topic"], drawn["tone"], labels, strict=True):
        assert row[0] in (f"{row[3]} {row[1]} {row[2]}", f"{row[2]}!")


def test_a_parent_s_own_braces_are_no_names():
    asking = Asking.of(
        Written(prompts="a", variation="paraphrase", wordings={1: "{label}: {text}"})
    )
    request = VariationRequest(
        Texts.of(["{label} {words}"]), ("film",), Conditions(), SEEDS[:1], 0.5
    )
    assert asking.for_variations(request) == ["film: {label} {words}"]


def test_the_length_varies_with_the_degree_and_has_a_least():
    asking = Asking.of(
        Written(prompts="a", wordings={1: "{words}{text}"}, length_sigma=20, least_words=95)
    )
    parents = Texts.of([" ".join(["w"] * 100)] * len(SEEDS))

    def lengths(degree):
        request = VariationRequest(parents, ("film",) * len(SEEDS), Conditions(), SEEDS, degree)
        return np.array(
            [int(text.split("_")[0].split("w")[0]) for text in asking.for_variations(request)]
        )

    for degree in (0.1, 0.5):
        found = lengths(degree)
        assert found.min() >= 95
        assert 0.7 < (np.abs(found - 100) <= 20 * degree).mean() / 0.68 < 1.8
    assert lengths(0.5).max() > lengths(0.1).max() > 100
