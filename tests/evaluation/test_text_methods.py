"""Texts are evaluated by their words: lengths, divergence, what of private records stands in
them.
"""

import json

import numpy as np
import pytest

import pe
from embeddings.tfidf import TfIdf
from pe.data.texts import Texts
from pe.evaluation.methods import TextMethods, are_among, runs
from pe.evaluation.metrics import pairs_file
from pe.judgement.classifiers import words
from pe.private.tables import TextTable
from tests.evaluation.conftest import evaluate

TOPICS = {
    "sea": ["ship", "harbour", "wave", "sail", "anchor", "tide"],
    "sky": ["cloud", "wing", "storm", "flight", "wind", "star"],
}
TEXTS = TextMethods()


def draw(seed, known):
    return np.random.default_rng(int(seed)).choice(known, 8).tolist()


def written(seed, count):
    """Texts on the sea and on the sky in turn."""
    return [" ".join(draw(1000 * seed + i, TOPICS[("sea", "sky")[i % 2]])) for i in range(count)]


def table(path, texts):
    path.write_text(
        "".join(
            ["text,label\n", *(f"{text},{('sea', 'sky')[i % 2]}\n" for i, text in enumerate(texts))]
        )
    )
    return path


def test_a_run_over_texts_is_measured_beside_its_controls(tmp_path):
    records = table(tmp_path / "private.csv", ["The code of ward 7 is 4711", *written(1, 80)[1:]])
    private = TextTable(records, classes=["sea", "sky"], label_column="label")
    terms = {"epsilon": 50.0, "delta": 1e-3, "population": 60, "iterations": 2}
    pool = pe.api("public_texts", path=str(table(tmp_path / "pool.csv", written(3, 300))))
    run = pe.evolve(private, pool, embedding=TfIdf(), out=tmp_path / "run", **terms)
    test, canaries = table(tmp_path / "test.csv", written(2, 40)), tmp_path / "canaries.txt"
    canaries.write_text("the code of ward 7 is 4711\n\nnobody wrote this\n")
    values = evaluate(
        run,
        test,
        metrics=None,
        canaries=canaries,
        api=None,
        embedding=TfIdf(),
        one_vote=True,
    )
    assert values["run"]["noun"] == "texts"
    trained = values["judgement"]["trained"]
    assert trained.keys() == {"synthetic", "unevolved", "one_vote", "public", "real"}
    assert trained["real"]["accuracy"] > 0.9
    assert min(trained["real"]["recalls"].values()) > 0.9
    assert trained["synthetic"]["place"]["score"] > trained["unevolved"]["place"]["score"]
    said = dict(values["judgement"]["lines"])
    assert "real texts" in said["show"]
    assert "over the public data" in said["brought"]
    assert values["texts"]["sets"]["synthetic"]["words"] == [8.0] * 7
    assert values["texts"]["sets"]["reference"]["divergence"] == 0
    assert [one["private"] for one in values["memorisation"]["canaries"]] == [1, 0]
    assert [one["generated"] for one in values["memorisation"]["canaries"]] == [0, 0]
    assert values["memorisation"]["nearest_pairs"]["files"] == [pairs_file("json")]
    pairs = json.loads((run.folder / pairs_file("json")).read_text())
    assert pairs[0].keys() == {"generated", "private", "distance"}


def test_texts_that_hold_runs_of_private_words_and_canaries_are_told_of_if_they_are_beyond_chance():
    secret = "the patient in bed nine has a rare fever since monday"
    private = Texts.of([secret, "all is well in the harbour tonight and the wind is low"])
    made = Texts.of(
        [f"News: {secret.upper()}!", f"Again {secret}", *(f"{i} ships sail away" for i in range(8))]
    )
    heldout = Texts.of(
        [f"nothing of it, {i} times over, may stand here today or ever" for i in range(200)]
    )
    found = TEXTS.traces(
        made, private, heldout, ["Bed nine has a rare  fever", "bed ten has a cold"]
    )
    assert (found["overlap"]["with_a_run"], found["overlap"]["heldout_with_a_run"]) == (2, 0)
    assert [one["generated"] for one in found["canaries"]] == [2, 0]
    assert found["canaries"][1]["longest_part"] == pytest.approx(2 / 5)  # "has a"
    overlap, canary = found["warnings"]
    assert overlap.startswith(
        "2 of 10 different generated texts share 8 words in a row with a private record"
    )
    assert canary.startswith("1 of 2 canaries stand in generated texts")
    form = "a copy of a form that everybody fills in by hand"
    found = TEXTS.traces(
        Texts.of([form]), Texts.of([form]), Texts.of([f"{form} {i}" for i in range(30)]), []
    )
    assert (found["overlap"]["with_a_run"], found["warnings"]) == (1, [])


def test_a_text_of_two_words_is_nobody_s_copy_whatever_the_longest_is():
    texts = Texts.of(["thank you", "my name is Ada", "私は猫です"])
    for others in (texts, Texts.of(texts.strings, 900)):
        assert are_among(texts, others).tolist() == [False, True, True]


def test_a_script_without_spaces_has_a_word_for_each_letter():
    assert words("Ärzte sagen: 私は猫 OK_2") == ["ärzte", "sagen", "私", "は", "猫", "ok_2"]
    one, two, short = runs([words("a b c d"), words("x b c d"), words("a")], 3)
    assert (len(one), len(two), len(short)) == (2, 2, 0)
    assert one[1] == two[1]
    assert one[0] != two[0]
