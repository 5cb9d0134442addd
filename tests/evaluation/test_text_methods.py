"""Texts are evaluated by their words: classifiers, lengths, what of private records stands in them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from threading import Event

import numpy as np
import numpy.typing as npt
import pytest

import pe
from pe.data.samples import Conditions
from pe.data.texts import Texts
from pe.errors import RecipeError
from pe.evaluation.classifiers import fit_tfidf_regression, words
from pe.evaluation.evaluate import evaluate_run, pairs_file
from pe.evaluation.labelled import Labelled
from pe.evaluation.methods import TextMethods, are_among, runs
from pe.evaluation.sets import Request
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, VariationRequest
from pe.private.tables import TextTable

TOPICS = {
    "sea": ["ship", "harbour", "wave", "sail", "anchor", "tide"],
    "sky": ["cloud", "wing", "storm", "flight", "wind", "star"],
}
TEXTS = TextMethods()
EVERY = sorted({*TOPICS["sea"], *TOPICS["sky"]})


class Topical:
    """Embeds a text as the counts of known words, and its length."""

    info = PluginInfo(modality="texts", hosts=())
    batch_size = 64

    def embed(self, samples: Texts) -> npt.NDArray[np.float32]:
        rows = [[*(text.split().count(word) for word in EVERY), len(text) / 1000] for text in samples.strings]
        return np.array(rows, np.float32)


class Poet:
    """Writes eight words; a variation draws about `degree` of them anew."""

    info = PluginInfo(modality="texts", hosts=())
    capabilities = Capabilities(max_chunk=64)

    def random_api(self, request: RandomRequest) -> Answer:
        return Answer(Texts.of([" ".join(draw(seed, EVERY)) for seed in request.seeds], 200), Conditions())

    def variation_api(self, request: VariationRequest) -> Answer:
        varied = []
        for text, seed in zip(request.samples.strings, request.seeds, strict=True):
            new, rng = draw(seed, EVERY), np.random.default_rng(int(seed))
            pairs = zip(new, text.split(), strict=True)
            varied.append(" ".join(a if rng.random() < request.degree else b for a, b in pairs))
        return Answer(Texts.of(varied, 200))


def draw(seed: int, known: list[str]) -> list[str]:
    return np.random.default_rng(int(seed)).choice(known, 8).tolist()


def table(path: Path, seed: int, count: int, first: str = "") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for i in range(count):
            label = ("sea", "sky")[i % 2]
            rows.writerow([first or " ".join(draw(1000 * seed + i, TOPICS[label])), label])
            first = ""
    return path


@pytest.fixture
def run(tmp_path: Path) -> pe.Run:
    private = TextTable(
        table(tmp_path / "private.csv", 1, 80, "The code of ward 7 is 4711"),
        classes=["sea", "sky"],
        label_column="label",
    )
    terms = {"epsilon": 50.0, "delta": 1e-3, "population": 60, "iterations": 2, "degree": [0.5, 0.2]}
    return pe.evolve(private, Poet(), embedding=Topical(), out=tmp_path / "run", **terms)


def test_a_run_over_texts_is_measured_beside_its_controls(run: pe.Run, tmp_path: Path) -> None:
    test, canaries = table(tmp_path / "test.csv", 2, 40), tmp_path / "canaries.txt"
    canaries.write_text("the code of ward 7 is 4711\n\nnobody wrote this\n")
    request = Request(str(test), seeds=1, api=Poet(), embedding=Topical(), canaries=canaries)
    values = evaluate_run(run, request, pe.progress.Progress(), Event())
    assert values["run"]["noun"] == "texts"
    assert values["utility"].keys() == {"linear_probe on Topical", "tfidf_regression"}
    for by_set in values["utility"].values():
        assert by_set.keys() == {"synthetic", "unevolved", "random_selection", "one_vote", "real"}
        assert by_set["real"]["accuracy"]["mean"] > 0.9
        assert by_set["real"]["macro_f1"]["mean"] > 0.9
        assert by_set["synthetic"]["macro_f1"]["mean"] > by_set["unevolved"]["macro_f1"]["mean"]
    assert "test texts rightly" in values["verdict"]["sentence"]
    assert values["texts"]["sets"]["synthetic"]["words"] == [8.0] * 7
    assert values["texts"]["sets"]["reference"]["divergence"] == 0
    assert [one["private"] for one in values["memorisation"]["canaries"]] == [1, 0]
    assert [one["generated"] for one in values["memorisation"]["canaries"]] == [0, 0]
    assert values["memorisation"]["nearest_pairs"]["files"] == [pairs_file("json")]
    pairs = json.loads((run.folder / pairs_file("json")).read_text())
    assert pairs[0].keys() == {"generated", "private", "distance"}


def test_a_classifier_of_images_is_refused(run: pe.Run, tmp_path: Path) -> None:
    test = table(tmp_path / "test.csv", 2, 40)
    request = Request(str(test), metrics=("utility",), classifiers=("mlp",), api=Poet(), embedding=Topical())
    with pytest.raises(RecipeError, match=r"'mlp' is of images, .* are texts: take linear_probe or tfidf_regression"):
        evaluate_run(run, request, pe.progress.Progress(), Event())


def test_texts_that_hold_runs_of_private_words_and_canaries_are_told_of() -> None:
    secret = "the patient in bed nine has a rare fever since monday"
    private = Texts.of([secret, "all is well in the harbour tonight and the wind is low"])
    made = Texts.of([f"News: {secret.upper()}!", *(f"{i} ships sail away" for i in range(9))])
    heldout = Texts.of([f"nothing of it, {i} times over, may stand here today or ever" for i in range(200)])
    found = TEXTS.traces(made, private, heldout, ["Bed nine has a rare  fever", "bed ten has a cold"])
    assert (found["overlap"]["with_a_run"], found["overlap"]["heldout_with_a_run"]) == (1, 0)
    assert [one["generated"] for one in found["canaries"]] == [1, 0]
    assert found["canaries"][1]["longest_part"] == pytest.approx(2 / 5)  # "has a"
    assert any("1 of 2 canaries" in sentence for sentence in found["warnings"])


def test_chance_runs_are_no_warning() -> None:
    same = "a copy of a form that everybody fills in by hand"
    found = TEXTS.traces(Texts.of([same]), Texts.of([same]), Texts.of([f"{same} {i}" for i in range(30)]), [])
    assert found["overlap"]["with_a_run"] == 1
    assert found["warnings"] == []


def test_a_text_of_two_words_is_nobody_s_copy() -> None:
    texts = Texts.of(["thank you", "my name is Ada", "私は猫です"])
    assert are_among(texts, texts).tolist() == [False, True, True]
    assert are_among(texts, Texts.of(texts.strings, 900)).tolist() == [
        False,
        True,
        True,
    ]  # another width, the same text


def test_a_script_without_spaces_has_a_word_for_each_letter() -> None:
    assert words("Ärzte sagen: 私は猫 OK_2") == ["ärzte", "sagen", "私", "は", "猫", "ok_2"]
    one, two, short = runs([words("a b c d"), words("x b c d"), words("a")], 3)
    assert (len(one), len(two), len(short)) == (2, 2, 0)
    assert one[1] == two[1]
    assert one[0] != two[0]


def test_what_the_words_of_a_set_are_is_measured_against_the_reference() -> None:
    found = TEXTS.contents({"synthetic": Texts.of(["a b", "a", ""])}, Texts.of(["a c c c"]))["texts"]["sets"]
    assert found["synthetic"]["vocabulary"] == 2
    assert found["synthetic"]["covered"] == 0.25
    assert 0 < found["synthetic"]["divergence"] < 1
    assert found["synthetic"]["words"][3] == 1
    assert found["synthetic"]["bytes"][-1] == 3


def test_the_classifier_learns_words_and_bears_texts_without_any() -> None:
    texts = Texts.of([" ".join(draw(i, TOPICS[("sea", "sky")[i % 2]])) for i in range(80)])
    whole = Labelled(texts, np.arange(80, dtype=np.int32) % 2)
    predict = fit_tfidf_regression(whole.take(slice(0, 60)), whole, 3, 0)
    logits = predict(whole.take(slice(60, 80)))
    assert logits.shape == (20, 3)
    assert (logits.argmax(axis=1) == np.arange(20) % 2).all()
    mute = Labelled(Texts.of(["!", "", "?"]), np.array([0, 1, 0], np.int32))
    assert fit_tfidf_regression(mute, mute, 2, 0)(mute).argmax(axis=1).tolist() == [0, 0, 0]


def test_a_test_set_is_read_as_the_run_reads_its_records(tmp_path: Path) -> None:
    private = TextTable(tmp_path / "p.csv", classes=["sea", "sky"], label_column="topic", longest=50, declared_size=9)
    table(tmp_path / "t.csv", 1, 4)
    (tmp_path / "texts").mkdir()
    same = TEXTS.source_at(str(tmp_path / "t.csv"), private)
    assert isinstance(same, TextTable)
    assert (same.label_column, same.longest, same.declared_size) == ("topic", 50, None)
    assert TEXTS.source_at(str(tmp_path / "t.csv"), private, labelled=False).label_column is None
    assert TEXTS.source_at(str(tmp_path / "texts"), private).kind == "text_folder"
    with pytest.raises(RecipeError, match=r"does not exist: name a folder of \.txt files"):
        TEXTS.source_at(str(tmp_path / "no"), private)
    assert TEXTS.equality == "character by character"


def test_canaries_come_from_a_file_with_one_in_each_line(tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("\n \n")
    with pytest.raises(RecipeError, match="holds no canary"):
        _ = Request("t", canaries=tmp_path / "none.txt").planted
    with pytest.raises(RecipeError, match="cannot be read as UTF-8"):
        _ = Request("t", canaries=tmp_path / "missing.txt").planted
