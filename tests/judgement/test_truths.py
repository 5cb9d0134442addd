"""What is known of a set, the judgement finds: a table that is made up, with known dependencies."""

import numpy as np
import pytest

from pe.data.columns import Columns
from pe.judgement.heldout import compare_populations
from pe.judgement.judge import Compared, Judgement, judge
from pe.judgement.labelled import Labelled
from pe.judgement.scale import BEST, Scale, measure_for
from pe.judgement.views import Viewed, views_of
from pe.judgement.words import lines
from pe.progress import Progress

COLUMNS = Columns(
    {
        "age": {"kind": "integer", "min": 18, "max": 99},
        "sex": {"kind": "category", "values": ["f", "m"]},
        "weight": {"kind": "integer", "min": 30, "max": 160},
        "smoker": {"kind": "boolean"},
        "stage": {"kind": "ordinal", "values": ["I", "II", "III"]},
        "stay": {"kind": "integer", "min": 0, "max": 365},
        "cost": {"kind": "integer", "min": 0, "max": 4000},
    }
)
STAY, COST = 5, 6
LABELS = ("recovered", "readmitted")


def patients(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows as codes, and their labels: a label depends on age and smoker together."""
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 82, count)
    sex, smoker = rng.integers(0, 2, count), rng.random(count) < 0.3
    weight = np.clip(np.rint(rng.normal(35 + 13 * sex, 12)), 0, 130)
    stage = np.minimum(rng.integers(0, 3, count) + (age > 32), 2)
    stay = np.clip(np.rint(rng.exponential(1 + 2 * stage + 2 * (age > 47))), 0, 365)
    cost = np.clip(stay * 10 + rng.integers(0, 10, count), 0, 4000)
    likely = np.where((age > 47) != smoker, 0.9, 0.1)
    rows = np.stack([age, sex, weight, smoker, stage, stay, cost], axis=1).astype(np.int64)
    return rows, (rng.random(count) < likely).astype(np.int32)


PRIVATE, TEST, FRESH = patients(2000, 1), patients(1000, 2), patients(2000, 3)


def seen(rows: np.ndarray, labels: np.ndarray) -> Viewed:
    whole = Labelled(COLUMNS.rows(rows), labels)

    def embed(samples: object) -> np.ndarray:
        return COLUMNS.vectors(COLUMNS.codes(samples), 1.0, 1 / 3).astype(np.float32)

    return views_of(whole, embed, whole, COLUMNS)


def judged(rows: np.ndarray, labels: np.ndarray, **controls: Viewed) -> Judgement:
    generated = {"synthetic": seen(rows, labels)} | controls
    return judge(
        Compared("table", "rows", LABELS, generated, seen(*PRIVATE), seen(*TEST), COLUMNS),
        Progress(),
    )


def test_fresh_rows_are_as_good_as_the_records_for_all_purposes():
    found = judged(*FRESH)
    assert found.train.score >= 9.5
    assert found.analyse >= 9.5
    assert found.variety.score >= 9.5
    assert found.shown.noticed.after is None


def test_shuffled_labels_are_worth_nothing_for_training_and_all_for_statistics():
    rows, labels = patients(8000, 3)
    found = judged(rows, np.random.default_rng(0).permutation(labels))
    assert found.train.score <= 1
    assert found.analyse >= 9.5


def test_a_broken_dependency_is_named():
    rows, labels = FRESH
    rows = rows.copy()
    rows[:, COST] = np.random.default_rng(0).permutation(rows[:, COST])
    found = judged(rows, labels)
    assert found.analyse <= 4
    assert {found.pairs[0].column, found.pairs[0].source} == {"stay", "cost"}
    assert "stay from cost" in dict(lines(found, {}))["analyse"]


def test_stays_that_are_14_times_too_long_are_named_with_their_mean():
    rows, labels = FRESH
    rows = rows.copy()
    rows[:, STAY] = np.minimum(rows[:, STAY] * 14, 365)
    found = judged(rows, labels)
    assert found.analyse <= 4
    assert found.means[0].column == "stay"
    assert found.means[0].ours > 10 * found.means[0].real
    assert "What gives the data away: stay" in dict(lines(found, {}))["show"]


def test_twenty_rows_a_hundred_times_are_found_by_variety():
    rows, labels = FRESH
    found = judged(np.repeat(rows[:20], 100, axis=0), np.repeat(labels[:20], 100))
    assert found.variety.score <= 2
    assert found.variety.ours <= 20


def test_a_control_that_is_the_data_itself_shows_that_the_records_brought_nothing():
    found = judged(*FRESH, unevolved=seen(*FRESH))
    assert found.brought["unevolved"].score == 0
    assert found.brought["unevolved"].low == found.brought["unevolved"].high == 0


def test_controls_do_not_move_the_scale():
    rows, labels = FRESH
    alone = judged(rows, labels)
    beside = judged(rows, labels, unevolved=seen(rows[:50], labels[:50]))
    assert alone.train == beside.train


@pytest.mark.parametrize("classes", [2, 5])
def test_the_interval_holds_the_truth_in_four_of_five_draws(classes: int):
    rng = np.random.default_rng(0)
    means = rng.normal(0, 0.9, (classes, 4))
    labels = rng.integers(0, classes, 20_000).astype(np.int32)
    x = means[labels] + rng.normal(0, 1, (len(labels), 4))

    def guess(centres: np.ndarray) -> np.ndarray:
        return -np.square(x[:, None] - centres).sum(axis=2)

    measure, ones = measure_for(classes), np.ones((1, len(labels)))
    real = guess(means)
    hits = 0
    for draw in range(60):
        ours = guess(means + rng.normal(0, 0.5, means.shape))
        low, high = (
            float(measure.of(one, labels, ones)[0]) - measure.floor for one in (ours, real)
        )
        truth = BEST * min(max(low / high, 0), 1)
        rows = rng.choice(len(labels), 1000, replace=False)
        scale = Scale.of(classes, labels[rows], {"a": [real[rows]]}, draw)
        place, _ = scale.place({"a": [ours[rows]]})
        hits += place.low <= truth <= place.high
    assert 0.68 <= hits / 60 <= 0.95


def test_populations_are_told_apart_by_the_column_that_differs():
    (private, _), (test, _) = PRIVATE, TEST
    names = [*COLUMNS]
    assert compare_populations(names, private * 1.0, test * 1.0, 0) is None
    unreadable = test.copy()
    unreadable[:, COST] = 4001
    found = compare_populations(names, private * 1.0, unreadable * 1.0, 0)
    assert found is not None
    assert found.column == "cost"
