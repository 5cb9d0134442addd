"""Pictures of a run, how different its samples are, and which of several generators made those that
were preferred.
"""

import io

import numpy as np
import pytest
from PIL import Image, ImageDraw

from pe.data.fonts import font_for
from pe.data.images import Images
from pe.data.population import NO_PARENT, Population
from pe.data.rows import Rows
from pe.data.samples import Conditions
from pe.privacy.release import Release
from pe.report import pictures
from pe.report.pages import Generation, generator_shares
from pe.report.pictures import Variety, contact_sheet, varieties, whole
from pe.steps import Step
from tests.rows import defined

SIGMA = 3.0


def population(samples, labels=None, **conditions):
    labels = np.zeros(len(samples), np.int32) if labels is None else np.asarray(labels, np.int32)
    return Population(
        samples, labels, Conditions(conditions), np.full(len(samples), NO_PARENT, np.int64)
    )


def grey(shape, shade=0):
    return Images(np.full(shape, shade, np.uint8))


def sheet_of(*classes):
    some = population(grey((2, 8, 8, 1), 128), np.arange(2) % len(classes))
    return np.asarray(Image.open(io.BytesIO(contact_sheet([some], classes))))


def test_an_empty_place_of_the_contact_sheet_is_no_black_tile():
    some = population(grey((7, 32, 32, 1)))
    filled = np.ones((96, 96), dtype=bool)
    filled[64:, 32:] = False
    np.testing.assert_array_equal(
        np.asarray(pictures.mosaic(some, 0))[..., 3], np.where(filled, 255, 0)
    )
    assert pictures.mosaic(some, 1) is None
    sheet = np.asarray(Image.open(io.BytesIO(contact_sheet([some], ["a", "b"]))))[34:130, 56:152]
    np.testing.assert_array_equal(sheet, np.where(filled, 0, 255)[..., None].repeat(3, axis=2))


def test_a_label_is_written_in_a_font_that_has_its_letters():
    latin, greek = font_for("cat", 15), font_for("γάτα", 15)
    assert greek.getname() != latin.getname()  # Pillow's own has none of them, matplotlib's has
    head = Image.new("L", (96, 30), 255)
    ImageDraw.Draw(head).text((48, 15), "γάτα", fill=40, font=greek, anchor="mm")
    np.testing.assert_array_equal(sheet_of("γάτα")[2:32, 56:152, 0], np.asarray(head))


def test_a_label_whose_letters_no_font_has_is_numbered_and_the_sheet_says_so(monkeypatch):
    monkeypatch.setattr("pe.data.fonts.installed_fonts", tuple)
    told, plain = sheet_of("cat", "γάτα"), sheet_of("cat", "label 2")
    height, width = plain.shape[:2]
    np.testing.assert_array_equal(told[:height, :width], plain)
    assert (told[height:] < 128).any()


def shades(*values):
    """2×2 grey images, each of one shade."""
    return Images(np.repeat(np.array(values, np.uint8), 4).reshape(-1, 2, 2, 1))


def step(degree, threshold):
    release = Release("histogram/1", "discrete_gaussian", 1.0, 2.0, grid=64)
    return Step(t=1, sizes=(60,), degree=degree, lookahead=0, threshold=threshold, release=release)


FIRST = population(shades(*range(0, 250, 5)))


def variety_of(*values, labels=None):
    return varieties([FIRST, population(shades(*values), labels)], ["a", "b"], 0)[1]


def test_of_nearly_equal_samples_of_a_label_one_counts():
    usual = pictures.usual_distance(FIRST, 0)
    assert 60 < usual < 100  # of two numbers from 0 to 250: 73 in the median
    assert variety_of(10, 10, 12, 200, 201, 203, 100) == {"a": Variety(7, 6, 7, 3)}
    assert variety_of(10, 10 + 0.9 * pictures.NEAR * usual)["a"].apart == 1
    assert variety_of(10, 10 + 1.2 * pictures.NEAR * usual)["a"].apart == 2
    assert variety_of(10, 10, 10, 10, labels=[0, 1, 0, 1]) == {
        "a": Variety(2, 1, 2, 1),
        "b": Variety(2, 1, 2, 1),
    }
    assert whole(variety_of(10, 10, 200, labels=[0, 0, 1])) == Variety(3, 2, 3, 2)


@pytest.mark.parametrize(
    ("taken", "remedy"),
    [
        (step(0.5, 2.0), "more candidates, a lower threshold or a higher last degree"),
        (step(0.5, 0.0), "more candidates or a higher last degree"),
        (step(1.0, -1.0), "more candidates"),
        (None, "a generator that varies more"),
    ],
)
def test_a_remedy_against_collapse_can_be_followed(taken, remedy):
    samples = population(shades(7)).samples
    (warning,) = pictures.collapse_warnings(3, samples, {"a": Variety(90, 2, 90, 2)}, taken)
    assert warning.startswith(
        "S_3 has collapsed: of 90 samples that were compared, only 2 differ clearly"
    )
    assert warning.endswith(f". Take {remedy}.")
    assert pictures.collapse_warnings(3, samples, {"a": Variety(90, 20, 90, 20)}, taken) == []


def test_copies_of_enough_that_one_vote_chose_have_not_collapsed():
    for apart, warned in ((9, True), (12, False)):
        one = {label: Variety(500, apart, 500, apart) for label in "ab"}
        samples = population(shades(7)).samples
        assert bool(pictures.collapse_warnings(1, samples, one, step(0.0, 2.5))) == warned
        assert pictures.collapse_warnings(1, samples, one, step(0.5, 2.5))


@pytest.mark.parametrize("taken", [None, step(0.0, 2.5), step(0.5, 2.5)])
def test_few_different_rows_of_a_table_are_no_collapse(taken):
    rows = Rows(np.array([b'{"sex":"f"}', b'{"sex":"m"}']))
    for few in (
        {"a": Variety(1000, 2, 1000, 2)},
        {"a": Variety(500, 400, 500, 400), "rare": Variety(500, 1, 500, 1)},
    ):
        assert pictures.collapse_warnings(0, rows, few, taken) == []


def test_alone_or_among_equal_first_samples_only_equal_ones_are_nearly_equal():
    alone = population(shades(7))
    assert varieties([alone, population(shades(7, 8, 8))], ["a"], 0)[1]["a"] == Variety(3, 2, 3, 2)
    assert varieties([population(shades(7, 7, 7))], ["a"], 0) == [{"a": Variety(3, 1, 3, 1)}]
    assert varieties([], ["a"], 0) == []


def test_other_modalities_are_compared_by_their_own_distance():
    rows = defined("Rows")
    spread, same = (
        population(rows(np.array(each, float)[:, None]))
        for each in ([0, 9, 30, 70], [0, 0, 70, 70])
    )
    assert [whole(each) for each in varieties([spread, same], ["a"], 0)] == [
        Variety(4, 4, 4, 4),
        Variety(4, 2, 4, 2),
    ]


def shares_of(makers, votes):
    """By two iterations of such samples, of which the first had these votes."""
    made = population(grey((len(makers), 1, 1, 1)), generator=makers)
    return generator_shares(
        [made, made],
        [Generation(1, 0.5, votes, 0.0, SIGMA, None, 0.5, 1.0, None, None, None, None)],
    )


def test_the_noise_beside_a_share_is_what_the_noise_does_to_it():
    makers = np.array(["a"] * 300 + ["b"] * 100)
    true, rng = np.where(makers == "a", 20.0, 40.0), np.random.default_rng(0)
    found = [shares_of(makers, true + rng.normal(scale=SIGMA, size=400))[0] for _ in range(400)]
    shares = [one.votes for one in found]
    assert found[0].part_of_all == 0.75
    assert np.mean(shares) == pytest.approx(0.6, abs=0.001)
    assert found[0].noise == pytest.approx(np.std(shares), rel=0.1)


def test_without_votes_above_zero_and_without_makers_nothing_is_claimed():
    told = shares_of(np.array(["a", "b"]), np.array([-3.0, 1.0]))
    assert [(one.t, one.name, one.part_of_all, one.votes) for one in told[:2]] == [
        (1, "a", 0.5, None),
        (1, "b", 0.5, None),
    ]
    assert [one.votes for one in told[2:]] == [None, None]
    assert generator_shares([population(grey((2, 1, 1, 1)))], []) == []
