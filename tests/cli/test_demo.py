"""`pe demo`, whole: the README's first command."""

import json
import re

import pytest
from PIL import Image

from pe.cli.pages import page
from pe.evaluation.sets import ONE_VOTE, REAL, SYNTHETIC_DATA, UNEVOLVED
from tests.cli.typed import pe


@pytest.mark.slow
def test_the_demo_beats_its_controls_and_shows_them(tmp_path):
    shown = pe("demo", "--seed", "0", "--out", "run", "--json", "--quiet", cwd=tmp_path)
    result = json.loads(shown.stdout)
    accuracy = result["accuracy"]
    with Image.open(tmp_path / result["picture"]) as picture:
        assert picture.height == 34 + len(("private", "un-evolved", "evolved")) * 104
    for scores in accuracy.values():
        assert (
            scores["unevolved"]
            < scores["one_vote"] + 0.03
            < scores["synthetic"] + 0.06
            < scores["real"] + 0.03
        )


def told(scores):
    result = {
        "accuracy": {"mlp": scores, "logistic_regression": scores},
        "epsilon": 1,
        "delta": 1e-5,
    }
    return page(
        "demo",
        result | {"run": "r", "picture": "p", "api_calls": 18, "seconds": 15.0, "api": "glyphs"},
    )


def test_its_table_has_a_row_for_each_training_set():
    scores = dict.fromkeys((SYNTHETIC_DATA, UNEVOLVED, ONE_VOTE, REAL), 0.5)
    assert len(re.findall("50.0%", told(scores))) == 2 * len(scores)


@pytest.mark.parametrize(
    ("evolved", "words"), [(0.82, "votes raised the MLP's"), (0.7, "votes did not raise the MLP's")]
)
def test_its_verdict_is_what_the_votes_brought(evolved, words):
    shown = told({SYNTHETIC_DATA: evolved, UNEVOLVED: 0.73, REAL: 0.94})
    assert words in shown
    assert f"{evolved:.0%} with them, 73% without any private data, 94% when" in shown
