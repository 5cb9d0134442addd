"""What other data sets reached is an interval that holds the next one in four of five cases."""

from collections import defaultdict

import numpy as np
import pytest

from pe.judgement.forecast import (
    FAR,
    FOUR_IN_FIVE,
    POOL,
    Interval,
    Judged,
    expected_share,
    measured,
)

VOTES = 30.0


def runs(
    *shares: float, votes: float = VOTES, kind: str = POOL, measure: str = "AUC"
) -> list[Judged]:
    """A run over each of some data sets."""
    return [Judged(f"set {i}", kind, measure, votes, share) for i, share in enumerate(shares)]


def expected(measured: list[Judged], kind: str = POOL, votes: float = VOTES) -> Interval | None:
    return expected_share(measured, kind, "AUC", votes)


def test_the_interval_is_the_mean_with_t_times_the_spread_between_data_sets():
    # t = 1.8856 for 0.9 and two degrees of freedom; s = 0.1
    assert expected(runs(0.4, 0.5, 0.6)) == Interval(
        pytest.approx(0.5 - 1.8856 * 0.1 * (4 / 3) ** 0.5, abs=1e-4),
        pytest.approx(0.5 + 1.8856 * 0.1 * (4 / 3) ** 0.5, abs=1e-4),
        3,
    )


@pytest.mark.parametrize("sets", [3, 9])
def test_it_holds_the_next_data_set_in_four_of_five_cases(sets: int):
    rng = np.random.default_rng(sets)
    hits = 0
    for _ in range(1000):
        *others, new = rng.normal(0.5, 0.05, sets + 1).tolist()
        found = expected(runs(*others))
        hits += found.low <= new <= found.high
    assert hits / 1000 == pytest.approx(FOUR_IN_FIVE, abs=0.04)


def test_it_stays_between_nothing_and_all():
    found = expected(runs(0.0, 0.5, 1.0))
    assert (found.low, found.high) == (0, 1)


def test_nothing_is_expected_below_three_data_sets():
    two = runs(0.4, 0.5)
    assert expected([]) is None
    assert expected(two) is None
    assert expected(two * 5) is None  # more runs are no more data sets
    assert expected([*two, Judged("another", POOL, "AUC", VOTES, 0.6)]) is not None


def test_nothing_is_expected_of_a_kind_that_was_not_measured():
    measured = runs(0.4, 0.5, 0.6) + runs(0.1, 0.2, kind="glyphs")
    assert expected(measured, "dpdm") is None
    assert expected(measured, "glyphs") is None
    assert expected(measured) == expected(runs(0.4, 0.5, 0.6))


def test_gains_by_another_measure_are_not_looked_at():
    recalls = runs(0.4, 0.5, 0.6, measure="mean recall")
    assert expected(recalls) is None
    assert expected(runs(0.4, 0.5) + recalls) is None
    assert expected_share(recalls, POOL, "mean recall", VOTES) == expected(runs(0.4, 0.5, 0.6))


def test_a_data_set_counts_where_it_has_runs_with_about_as_many_votes():
    near = runs(0.4, 0.5, 0.6)
    within, beyond = (VOTES * np.exp(factor * FAR) for factor in (0.9, 1.1))
    assert expected(near, votes=within) is not None
    assert expected(near, votes=beyond) is None
    far = Judged("far away", POOL, "AUC", 100 * VOTES, 1.0)
    assert expected([*near, far]).sets == 3


def test_of_a_data_set_s_runs_the_nearest_count_most_and_two_bridge_a_gap():
    def middle(votes: float) -> float:
        rising = runs(0.2, 0.2, 0.2) + runs(0.6, 0.6, 0.6, votes=VOTES * 4)
        found = expected(rising, votes=votes)
        assert found.high == pytest.approx(found.low)
        return found.low

    assert middle(VOTES) == pytest.approx(0.2, abs=0.01)
    assert middle(VOTES * 4) == pytest.approx(0.6, abs=0.01)
    assert middle(VOTES * 2) == pytest.approx(0.4)
    assert middle(VOTES * 1.5) < middle(VOTES * 2) < middle(VOTES * 3)


def test_each_data_set_counts_once_however_many_runs_it_has():
    three = runs(0.4, 0.5, 0.6)
    found, many = (expected(each) for each in (three, three + three[:1] * 20))
    assert (many.low, many.high) == pytest.approx((found.low, found.high))
    assert many.sets == found.sets == 3


def test_the_packaged_runs_foretell_each_other_as_often_as_is_said():
    inside = defaultdict(list)
    for run in measured():
        others = [one for one in measured() if one.data != run.data]
        one = expected_share(others, run.kind, run.measure, run.votes)
        if one is not None:
            held = one.low - 0.005 <= run.share <= one.high + 0.005
            inside[run.kind, run.measure].append(held)
    every = [held for each in inside.values() for held in each]
    assert 0.75 <= np.mean(every) <= 0.9
    assert min(np.mean(each) for each in inside.values()) >= 0.6
    assert len({run.data for run in measured()}) >= 9
