import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pe.selection import SelectionRule, descend, parent_weights, select_parents

histograms = arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e6, 1e6))


@pytest.mark.parametrize(
    ("votes", "threshold", "weights"),
    [
        ([5.0, 1.0, -3.0, 2.5], 2, [3, 0, 0, 0.5]),
        ([5.0, 1.0, -3.0], 9, [5, 1, 0]),
        ([-5.0, 0.0, -3.0], 9, [1, 1, 1]),
    ],
)
def test_where_no_vote_is_over_the_threshold_positive_votes_or_else_equal_weights_stand_in(
    votes, threshold, weights
):
    found, stand_in = parent_weights(np.array(votes), threshold)
    assert (found.tolist(), stand_in) == (weights, threshold > max(votes))


@given(histograms, st.integers(0, 100), st.sampled_from(["sample", "systematic", "rank"]))
def test_as_many_parents_as_asked_and_none_without_weight(histogram, count, how):
    weights, _ = parent_weights(histogram, 0)
    parents = select_parents(weights, count, how, np.random.default_rng(0))
    assert len(parents) == count
    assert (weights[parents] > 0).all()
    assert (np.diff(parents) >= 0).all()


def test_sampling_follows_the_weights():
    parents = select_parents(np.array([1.0, 0.0, 3.0]), 100_000, "sample", np.random.default_rng(0))
    counts = np.bincount(parents, minlength=3)
    assert counts[1] == 0
    assert counts[2] == pytest.approx(75_000, abs=700)  # five standard deviations


@given(histograms, st.integers(1, 100), st.integers(0, 9))
def test_systematic_selection_takes_each_as_often_as_its_share(histogram, count, seed):
    weights, _ = parent_weights(histogram, 0)
    parents = select_parents(weights, count, "systematic", np.random.default_rng(seed))
    expected = count * weights / weights.sum()
    taken = np.bincount(parents, minlength=len(weights))
    assert (np.abs(taken - expected) < 1 + 1e-9).all()


def test_systematic_selection_follows_the_weights():
    weights, rng = np.array([1.0, 0.5, 3.0, 2.5]), np.random.default_rng(0)
    for size in (1, 3):
        counts = sum(
            np.bincount(select_parents(weights, size, "systematic", rng), minlength=4)
            for _ in range(4000)
        )
        np.testing.assert_allclose(counts / 4000, size * weights / weights.sum(), atol=0.04)


def test_rank_deals_the_few_over_again():
    parents = select_parents(np.array([1.0, 0.0, 3.0]), 5, "rank", np.random.default_rng(0))
    assert parents.tolist() == [0, 0, 2, 2, 2]


RULES = st.builds(
    SelectionRule,
    selection=st.sampled_from(["sample", "systematic", "rank"]),
    keep=st.sampled_from(["none", "selected", "winners", "all"]),
    offspring=st.integers(1, 4),
)


@given(histograms, st.data(), RULES, st.floats(-10, 10), st.integers(0, 100))
def test_every_rule_gives_as_many_as_asked_and_varies_none_without_weight(
    histogram, data, how, threshold, more
):
    before = data.draw(arrays(np.bool_, len(histogram)))
    size = more + (len(histogram) if how.keep == "all" else 0)
    members = descend(histogram, before, size, threshold, how, np.random.default_rng(0))
    weights, stand_in = parent_weights(histogram, threshold)
    kept, varied = members.parents[members.survives], members.parents[~members.survives]
    assert len(members.parents) == len(members.survives) == size
    assert (weights[varied] > 0).all()
    assert len(np.unique(kept)) == len(kept)
    if how.keep == "none":
        assert not len(kept)
    elif how.keep == "all":
        assert kept.tolist() == list(range(len(histogram)))
    elif how.keep == "selected":
        assert set(varied) <= set(kept)
    else:
        won = before if stand_in else before | (weights > 0)
        assert len(kept) == min(np.count_nonzero(won), size // 2)
        assert won[kept].all()
        if len(kept):
            left_out = np.setdiff1d(np.flatnonzero(won), kept)
            assert histogram[left_out].max(initial=-np.inf) <= histogram[kept].min()


def test_the_default_rule_is_the_paper_s():
    histogram = np.random.default_rng(0).normal(size=30)
    members = descend(
        histogram, np.zeros(30, np.bool_), 50, 0.5, SelectionRule(), np.random.default_rng(1)
    )
    weights, _ = parent_weights(histogram, 0.5)
    assert (
        members.parents.tolist()
        == select_parents(weights, 50, "sample", np.random.default_rng(1)).tolist()
    )
    assert not members.survives.any()


@pytest.mark.parametrize(
    ("offspring", "size", "parents", "kept"),
    [(3, 8, [1, 3, 1, 1, 1, 3, 3, 3], 2), (1, 6, [0, 1, 3, 0, 1, 3], 3)],
)
def test_selected_parents_stand_beside_their_offspring(offspring, size, parents, kept):
    how = SelectionRule("rank", "selected", offspring=offspring)
    histogram = np.array([5.0, 9.0, 1.0, 7.0, 3.0])
    members = descend(histogram, np.zeros(5, np.bool_), size, 0, how, np.random.default_rng(0))
    assert members.parents.tolist() == parents
    assert members.survives.tolist() == [i < kept for i in range(size)]


def test_a_winner_of_an_earlier_vote_stays_until_half_of_the_members_beat_it():
    before = np.array([True, False, False, False, False])
    histogram = np.array([-5.0, 9.0, 1.0, 7.0, -3.0])
    for size, kept in ((8, [0, 1, 2, 3]), (6, [1, 2, 3]), (4, [1, 3])):
        members = descend(
            histogram, before, size, 0, SelectionRule(keep="winners"), np.random.default_rng(0)
        )
        assert members.parents[members.survives].tolist() == kept
