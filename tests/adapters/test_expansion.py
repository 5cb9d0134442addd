"""`pe extend --examples` shows a model texts of the label, and takes no copy of them for a
new one.
"""

import re

import numpy as np
import pytest

import pe
from adapters.text_prompts import answer_of
from pe.data.population import Population
from pe.data.samples import BETWEEN, EXAMPLES, Conditions
from pe.data.texts import Texts, runs_of_words
from pe.engine.execution import RunContext
from pe.engine.extend import novelty, with_examples
from pe.errors import APIError, RecipeError
from tests.endpoints.chat_server import ChatServer
from tests.endpoints.serving import serving

COUNT, SHOWN = 40, 3


class Follower(ChatServer):
    """A model that goes on as its examples do, with numbers of its own, and by some seeds repeats
    the first one.
    """

    copying = (0,)  # last digits, to the base of five, of these seeds

    def _written(self, prompt, seed):
        request = re.fullmatch(r"About (\w+)\.", prompt)
        if request:
            return " ".join(f"{request[1]}{seed % 1000 + i}" for i in range(20))
        examples = prompt.partition("\n\n")[2].split("\n\n---\n\n")
        assert len(set(examples)) == SHOWN
        repeats = seed % 5 in self.copying
        self.repeats = getattr(self, "repeats", 0) + repeats
        kind = re.match("[a-z]+", examples[0])[0]
        assert all(example.startswith(kind) for example in examples)
        return (
            examples[0]
            if repeats
            else " ".join(f"{kind}{seed % 10_000 + 2000 + i}" for i in range(20))
        )


class Copier(Follower):
    """A model that repeats an example four times of five."""

    copying = (0, 1, 2, 3)


CLASSES = ["cats", "dogs"]


def evolve(place, url):
    """Return a run over a chat model, with 12 texts of two labels."""
    model = {
        "model": "m",
        "key_env": None,
        "seed_field": "seed",
        "prompts": "About {label}.",
        "longest": 400,
    }
    data = {
        "text": ["cats1 cats2"] * 20 + ["dogs1 dogs2"] * 20,
        "label": ["cats"] * 20 + ["dogs"] * 20,
    }
    about = {"classes": CLASSES, "declared_size": 40, "ledger_file": place / "l.json"}
    terms = {
        "epsilon": 10.0,
        "delta": 1e-3,
        "population": 12,
        "iterations": 1,
        "degree": 1.0,
        "lookahead": 0,
    }
    api = pe.api("chat", base_url=f"{url}/v1", **model)
    return pe.evolve(data, api, embedding="tfidf", out=place / "run", **about, **terms)


def test_new_texts_are_of_the_label_and_none_repeats_an_example(tmp_path):
    server = Follower()
    with serving(server) as url:
        run = evolve(tmp_path, url)
        path = pe.extend(run, COUNT, examples=SHOWN)
    (more,) = run.extensions()
    assert len(more) == COUNT
    assert server.repeats > 0
    assert "examples" not in more.conditions
    older = [runs_of_words(text) for text in run.synthetic.samples.strings]
    for text, label in zip(more.samples.strings, more.labels, strict=True):
        assert text.startswith(CLASSES[label])
        assert not any(runs_of_words(text) & one for one in older)
    assert novelty(path) == 1.0


def test_a_model_that_mostly_copies_is_asked_as_often_as_the_owner_says(tmp_path):
    with serving(Copier()) as url:
        run = evolve(tmp_path, url)
        with pytest.raises(
            APIError, match=r"in 5 attempts: .* again\. `.*'evolution\.attempts': ….*` asks"
        ):
            pe.extend(run, COUNT, examples=SHOWN)
        pe.extend(run, COUNT, examples=SHOWN, changes={"evolution.attempts": 200})
    assert len(run.extensions()[0]) == COUNT


def test_a_pool_shows_nothing(tmp_path):
    (tmp_path / "public.txt").write_text("\n".join(f"cats {i} sleep" for i in range(40)))
    data = {"text": ["cats sleep"] * 20}
    about = {
        "classes": [],
        "declared_size": 20,
        "ledger_file": tmp_path / "l.json",
        "out": tmp_path / "run",
    }
    terms = {"epsilon": 10.0, "delta": 1e-3, "population": 8, "iterations": 1, "degree": 0.5}
    run = pe.evolve(
        data,
        pe.api("public_texts", path=tmp_path / "public.txt"),
        embedding="tfidf",
        **about,
        **terms,
    )
    with pytest.raises(
        RecipeError, match="`--examples` is for generators that ask a language model"
    ):
        pe.extend(run, 4, examples=2)


def test_degree_0_asks_for_no_new_text(tmp_path):
    population = Population(
        Texts.of(["a b"]), np.zeros(1, np.int32), Conditions(), np.zeros(1, np.int64)
    )
    with pytest.raises(RecipeError, match="`--degree 0` copies texts"):
        with_examples(population, 2, 0.0, object(), 0)


def test_what_is_to_be_typed_again_names_the_examples(tmp_path):
    around = RunContext()
    assert (
        around.hint("extend", tmp_path, "", count=9, degree=1.0, examples=3)
        == f"pe extend {tmp_path} -n 9 --degree 1.0 --examples 3"
    )


@pytest.mark.parametrize(
    ("text", "is_copy"), [("Cats sleep.", True), ("cats sleep long", False), ("dogs sleep", False)]
)
def test_a_short_text_is_a_copy_if_an_example_has_its_words(text, is_copy):
    conditions = Conditions({EXAMPLES: np.array([f"a b c{BETWEEN}cats sleep"])})
    assert bool(answer_of([text], 100, conditions).missing) is is_copy
