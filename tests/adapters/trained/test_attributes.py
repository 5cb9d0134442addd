"""A start by votes: a model's prompts have the topics of the private texts, and one text moves the
counts by little.
"""

import json
import re
from importlib.metadata import EntryPoint

import numpy as np
import pytest

import pe
from adapters.trained.attributes import (
    GRID,
    FittedChat,
    _correct,
    _embed,
    _votes,
    noisy_attribute_votes,
)
from embeddings.tfidf import TfIdf
from embeddings.wordllama import WordLlama
from pe.data.texts import Texts
from pe.errors import PEError, RecipeError
from pe.fit.trainer import FitTerms, Fitting, PrivateRecords
from pe.planning.deadlines import deadlines
from pe.planning.releases import fit_dry_runs, lay_out
from pe.plugins.protocols import PluginInfo
from pe.plugins.registry import plugins
from pe.plugins.specs import PluginSpec
from pe.privacy.ledger import Budget
from pe.privacy.release import Relation
from pe.recipe.schema import Recipe
from tests.adapters.trained.test_max_entropy import Silent
from tests.endpoints.chat_server import ChatServer
from tests.endpoints.serving import serving

TOPICS = [
    "cold soup",
    "slow trains",
    "loud music",
    "old paintings",
    "wet gardens",
    "fast cars",
    "warm bread",
    "blue seas",
]
TONES = ["angry letter", "happy poem"]
SETTINGS = {
    "model": "m",
    "prompts": "A {tone} about {topic}.",
    "attributes": {"topic": TOPICS, "tone": TONES},
}


class OnTopic(ChatServer):
    """A model that writes on the topic it is asked for, in the tone."""

    def _written(self, prompt, seed):
        request = re.search(r"A (.*) about (.*)\.", prompt)
        return (
            f"An {request[1]} about {request[2]} {seed}" if request else prompt.partition("\n\n")[2]
        )


def texts(count):
    """Texts of two topics by label: 3 of 4 the label's first, all in one tone."""
    pairs = [(TOPICS[4 * (i % 2) + (i % 8 > 5)], "ab"[i % 2]) for i in range(count)]
    return [f"{topic} in an angry letter" for topic, _ in pairs], [label for _, label in pairs]


def test_the_first_samples_have_the_private_texts_topics(tmp_path):
    private, labels = texts(800)
    terms = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "population": [300, 100],
        "iterations": 1,
        "degree": 0.0,
        "lookahead": 0,
    }
    data, about = (
        {"text": private, "label": labels},
        {
            "declared_size": 800,
            "classes": ["a", "b"],
            "ledger_file": tmp_path / "l.json",
            "out": tmp_path / "run",
        },
    )
    with serving(OnTopic()) as url:
        model = {"base_url": f"{url}/v1", "key_env": None, "seed_field": "seed", **SETTINGS}
        api = pe.api("fitted_chat", **model)
        run = pe.evolve(data, api, embedding="tfidf", **about, **terms)
    first = run.populations()[0]
    of_a = [
        text for text, label in zip(first.samples.strings, first.labels, strict=True) if label == 0
    ]
    shares = {topic: np.mean([topic in text for text in of_a]) for topic in TOPICS}
    assert shares[TOPICS[0]] == pytest.approx(0.75, abs=0.1)
    assert shares[TOPICS[1]] == pytest.approx(0.25, abs=0.1)
    assert np.mean(["angry" in text for text in of_a]) > 0.9
    model = json.loads((run.folder / "model" / "attributes.json").read_text())
    assert list(model["topic"]["a"]) == TOPICS
    assert "fit/attributes" in (run.folder / "certificate.json").read_text()


def terms(**changes):
    fields = {
        "classes": ("a", "b"),
        "shape": (60,),
        "declared_size": 80,
        "relation": Relation.ADD_REMOVE,
    }
    fields |= {"unit": "record", "budget": Budget(1, 1e-5), "embedding": PluginSpec(kind="tfidf")}
    return FitTerms(**{**fields, **changes})


def test_votes_for_values_like_those_of_the_private_texts_are_put_down_to_these():
    values = Texts.of(
        ["fast red cars", "fast blue cars", "fast green cars", "wet gardens", "warm bread"]
    )
    vectors = _embed(WordLlama(), values)
    votes = np.array([550.0, 190.0, 190.0, 35.0, 35.0])  # as 1,000 texts on red cars would vote
    shares = _correct(votes, vectors)
    assert shares[0] > 0.9
    assert shares.sum() == pytest.approx(1)
    assert (
        _correct(votes, GRID * np.eye(5))[0] < 0.75
    )  # of values that are not alike, fewer votes go astray


def test_one_author_moves_the_votes_by_one_at_most_and_another_in_their_place_by_root_two():
    api = FittedChat(base_url="http://127.0.0.1:9/v1", key_env=None, votes=2, **SETTINGS)
    private, _ = texts(6)
    encoder = api._encoder(terms())
    vectors = [[_embed(encoder, Texts.of(values))] * 2 for values in (TOPICS, TONES)]
    release = api.plan_releases(terms(unit="author"))[0]
    assert release.sensitivity == 1
    assert api.plan_releases(terms(relation=Relation.REPLACE_ONE))[0].sensitivity == 2**0.5

    def sums(private, units):
        labels = np.arange(len(private), dtype=np.int32) % 2
        records = PrivateRecords(
            np.array([text.encode() for text in private], "S60"), labels, np.array(units)
        )
        votes = _votes(encoder, records, vectors, np.array([0, len(TOPICS)]), 2)
        return (
            noisy_attribute_votes(records, votes, 2, len(TOPICS) + len(TONES), release, Silent())
            / release.grid
        )

    others = sums(private, range(6))
    mine = sums([*private, *["warm bread, a happy poem"] * 4], [*range(6), 6, 6, 6, 6])
    yours = sums([*private, *["wet gardens, an angry letter"] * 4], [*range(6), 6, 6, 6, 6])
    assert 0 < np.linalg.norm(mine - others) <= 1
    assert np.linalg.norm(mine - yours) <= 2**0.5
    broken = sums(
        [*private, *["warm bread, a happy poem"] * 4], range(10)
    )  # each text a unit of its own
    assert np.linalg.norm(broken - others) > 2


def test_a_host_that_times_requests_does_not_learn_how_long_the_votes_took(tmp_path):
    (tmp_path / "private.txt").write_text("wet gardens\n")
    content = {
        "private": {"kind": "text_folder", "path": str(tmp_path), "declared_size": 5000},
        "api": {
            "kind": "fitted_chat",
            "base_url": "http://127.0.0.1:9/v1",
            "key_env": None,
            **SETTINGS,
        },
        "embedding": {"kind": "tfidf"},
        "privacy": {"epsilon": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": 100},
    }
    recipe = Recipe.parse(content, "the test")
    plan = lay_out(recipe)
    seconds, without = deadlines(recipe, plan, TfIdf(), fit_dry_runs(recipe))
    assert seconds["fit"] > 0.4
    assert not without
    assert deadlines(recipe, plan, TfIdf())[1] == ["fit"]


def test_what_cannot_be_voted_on_is_refused_before_anything_is_read():
    with pytest.raises(RecipeError, match="attributes` is missing"):
        FittedChat(
            base_url="http://127.0.0.1:9/v1", key_env=None, model="m", prompts="x"
        ).plan_releases(terms())
    twice = SETTINGS | {"attributes": {"topic": ["soup", "soup"], "tone": TONES}}
    with pytest.raises(RecipeError, match="topic` lists 'soup' more than once"):
        FittedChat(base_url="http://127.0.0.1:9/v1", key_env=None, **twice).plan_releases(terms())
    with pytest.raises(RecipeError, match="no attribute has more than 8 values"):
        FittedChat(
            base_url="http://127.0.0.1:9/v1", key_env=None, votes=8, **SETTINGS
        ).plan_releases(terms())
    unasked = SETTINGS | {"prompts": "A text about {topic}."}
    with pytest.raises(RecipeError, match="tone` is in no prompt"):
        FittedChat(base_url="http://127.0.0.1:9/v1", key_env=None, **unasked).plan_releases(terms())


@pytest.mark.parametrize("share", [-1, float("nan"), None])
def test_damaged_shares_are_refused(tmp_path, share):
    settings = SETTINGS | {"attributes": {"topic": ["soup", "trains"]}, "prompts": "{topic}"}
    model = {"topic": {"a": {"soup": 1.0, "trains": share}, "b": {"soup": 0.5, "trains": 0.5}}}
    (tmp_path / "attributes.json").write_text(json.dumps(model))
    with pytest.raises(RecipeError, match="holds no shares of attributes"):
        FittedChat(base_url="http://127.0.0.1:9/v1", key_env=None, **settings).load(tmp_path)


class Undeclared(WordLlama):
    """An encoder that does not say where it sends texts."""

    info = PluginInfo(modality="texts")


class Centred(WordLlama):
    """An encoder under which a text's vector depends on the others of its block."""

    def embed(self, samples):
        vectors = super().embed(samples)
        return vectors - vectors.mean(axis=0)


MINE = (Undeclared, Centred)


@pytest.mark.parametrize(
    ("encoder", "why"),
    [
        (
            {"kind": "openai_embeddings", "model": "e", "trusted_with_private_data": True},
            "send private texts to api",
        ),
        ({"kind": "Undeclared"}, "send private texts to hosts that it does not declare"),
        ({"kind": "pixels"}, "embeds images. Use an encoder of texts"),
        ({"kind": "Centred"}, "another vector when the others in its block change"),
    ],
)
def test_an_encoder_of_private_texts_runs_here_and_takes_each_text_by_itself(
    monkeypatch, tmp_path, encoder, why
):
    mine = {
        one.__name__: EntryPoint(one.__name__, f"{__name__}:{one.__name__}", "pe.embeddings")
        for one in MINE
    }
    monkeypatch.setattr("pe.plugins.registry.plugins", lambda group: mine | plugins(group))
    api = FittedChat(base_url="http://127.0.0.1:9/v1", key_env=None, encoder=encoder, **SETTINGS)
    with pytest.raises(PEError, match=why):
        api.fit(Fitting(terms(), private=pytest.fail, ledger=None, folder=tmp_path))


def test_the_public_texts_of_an_encoder_are_not_the_private_file(tmp_path):
    private, _ = texts(40)
    (tmp_path / "private.jsonl").write_text(
        "\n".join(json.dumps({"text": text}) for text in private)
    )
    encoder = {"kind": "wordllama", "public": str(tmp_path / "private.jsonl")}
    api = pe.api(
        "fitted_chat", base_url="http://127.0.0.1:9/v1", key_env=None, encoder=encoder, **SETTINGS
    )
    source = pe.TextTable(tmp_path / "private.jsonl", declared_size=40)
    terms = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "population": 20,
        "iterations": 1,
        "degree": 0.0,
        "max_images": 99,
    }
    with pytest.raises(RecipeError, match=r"public texts .*private\.jsonl are the private records"):
        pe.evolve(source, api, embedding="tfidf", out=tmp_path / "run", **terms)
