"""Texts with a declared form: a model is asked for it, and no text of another form becomes a
sample.
"""

import json
import re

import pytest

import pe
from adapters.text_prompts import blank
from pe.data.structure import Structure
from pe.errors import RecipeError
from tests.endpoints.chat_server import ChatServer
from tests.endpoints.serving import serving
from tests.evaluation.conftest import evaluate

FIELDS = {
    "age": {"kind": "integer", "min": 18, "max": 99},
    "ward": {"kind": "category", "values": ["A", "B"]},
}
FORM = {"fields": FIELDS, "texts": ["note"]}


def record(seed):
    return json.dumps(
        {"age": 20 + seed % 70, "ward": "AB"[seed % 2], "note": f"slept {seed % 9} h"}
    )


def written(seed):
    """A record, in a block of code or bare; of nine, one is cut off, one has an age too small, and
    one lacks a key.
    """
    odd = {
        0: record(seed)[:-3],
        1: json.dumps({"age": 7, "ward": "A", "note": "a child"}),
        2: json.dumps({"age": 70, "ward": "A"}),
        3: f"```json\n{record(seed)}\n```",
    }
    return odd.get(seed % 9, record(seed))


class Clerk(ChatServer):
    """A model that writes records, of which one in three has not the form."""

    def _written(self, prompt, seed):
        keys = "age (integer from 18 to 99 in steps of 1); ward (one of A, B); note (text)"
        assert prompt.endswith(f"Answer with a JSON object alone, with the keys {keys}.")
        return written(seed)


def test_every_text_has_the_form_and_an_evaluation_counts_those_that_have_not(tmp_path):
    private = [record(seed) for seed in range(60)]
    (tmp_path / "test.jsonl").write_text(
        "".join(json.dumps({"text": one}) + "\n" for one in private)
    )
    about = {
        "classes": [],
        "declared_size": 60,
        "structure": FORM,
        "ledger_file": tmp_path / "l.json",
    }
    terms = {
        "epsilon": 10.0,
        "delta": 1e-3,
        "population": 20,
        "iterations": 1,
        "degree": 1.0,
        "lookahead": 0,
    }
    with serving(Clerk()) as url:
        model = {
            "base_url": f"{url}/v1",
            "key_env": None,
            "seed_field": "seed",
            "prompts": "A record.",
            "model": "m",
        }
        api = pe.api("chat", variation="paraphrase", **model)
        run = pe.evolve(
            {"text": private}, api, embedding="tfidf", out=tmp_path / "run", **about, **terms
        )
    for text in run.synthetic.samples.strings:
        value = json.loads(text)
        assert (value.keys(), 18 <= value["age"] <= 99) == ({"age", "ward", "note"}, True)
    options = {"metrics": ("fidelity",), "api": None, "embedding": None}
    table = evaluate(run, tmp_path / "test.jsonl", **options)["table"]
    assert table["breaks"]["synthetic"] == {"not of the declared form": 0.0}
    assert table["sets"]["synthetic"]["columns"].keys() == {"age", "ward"}
    with pytest.raises(RecipeError, match=r"'masked_lm' does not obey .private.structure"):
        pe.evolve(
            {"text": private},
            pe.api("masked_lm", model="m", path="p"),
            embedding="tfidf",
            **about,
            **terms,
        )


@pytest.mark.parametrize(
    ("form", "text", "why"),
    [
        (FORM, "hello", "it is no JSON"),
        pytest.param(FORM, "[" * 5000, "it is no JSON", id="deep"),
        (FORM, '{"age": 20, "ward": "C", "note": ""}', "its 'ward' is none that is declared"),
        (FORM, '{"age": 20, "ward": "A", "note": 3}', "its 'note' is no text"),
        (
            FORM,
            '{"age": 20, "ward": "A", "note": "", "more": 1}',
            "no object with the keys age, ward, note",
        ),
        ({"line": r"\d\d:\d\d .+"}, "07:30 woke\nlate", "line 2 does not match"),
    ],
)
def test_a_text_of_another_form_is_told_why(form, text, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        Structure(**form).read(text)


def test_an_object_becomes_a_text_that_can_be_stored():
    cat = "\U0001f63a"
    escaped = (
        f'{{"age": 20, "ward": "A", "note": "{json.dumps(cat)[1:-1]} and half of one, \\ud83d"}}'
    )
    assert (
        json.loads(Structure(**FORM).read(escaped).encode())["note"] == f"{cat} and half of one, "
    )


def test_lines_keep_their_form():
    assert Structure(line=r"\d\d:\d\d .+").read("07:30 woke\n08:00 ate") == "07:30 woke\n08:00 ate"


def test_blanks_take_the_place_of_values_and_never_of_keys():
    keys = Structure.model_validate(FORM).keys
    for seed in range(20):
        with_blanks = blank(record(seed), 1.0, seed, keys)
        assert with_blanks == '{"age": _, "ward": "_", "note": "_ _ _"}'
