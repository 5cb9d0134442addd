"""Lookahead variations that become offspring."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe.data.population import Members
from pe.dispatch.work import NOBODY, lend
from tests.dispatch.runs import LABELS, dispatcher
from tests.generators import Moody, Shades

K = 3
PARENTS = np.array([4, 4, 4, 4, 4, 9, 30, 30, 49, 9])


@given(
    made=st.lists(st.booleans(), min_size=4 * K, max_size=4 * K),
    parents=st.lists(st.integers(0, 3), min_size=1, max_size=20),
)
def test_variations_are_lent_without_replacement_and_as_far_as_they_go(made, parents):
    loan = lend("lookahead/1", np.array(made), K, Members.offspring(np.array(parents)))
    lent = np.flatnonzero(loan.child != NOBODY)
    assert all(made[item] for item in lent)
    assert len(np.unique(loan.children)) == len(loan.children)
    assert [parents[child] for child in loan.child[lent]] == (lent // K).tolist()
    for parent in range(4):
        variations = sum(made[parent * K : (parent + 1) * K])
        assert np.count_nonzero(lent // K == parent) == min(variations, parents.count(parent))


def offspring(folder, api, reuse=K):
    dispatch = dispatcher(folder, api)
    first = dispatch.random(LABELS)
    ahead = list(dispatch.lookahead(1, first, K, 0.5))
    child = dispatch.variations(1, first, Members.offspring(PARENTS), 0.5, reuse)
    return first, child, {member: shades_of(ahead, member) for member in (4, 9, 30, 49)}


def shades_of(ahead, member):
    """The shades of a member's variations, in their order."""
    return [
        shade
        for members, samples in ahead
        for shade in samples.array[members == member, 0, 0, 0].tolist()
    ]


def test_the_first_k_offspring_of_a_parent_are_its_lookahead_and_the_rest_are_asked_for(tmp_path):
    api = Shades()
    first, child, ahead = offspring(tmp_path / "run", api)
    shades = child.samples.array[:, 0, 0, 0]
    assert shades[:3].tolist() == ahead[4]
    assert shades[[5, 9]].tolist() == ahead[9][:2]
    assert shades[[6, 7]].tolist() == ahead[30][:2]
    assert shades[8] == ahead[49][0]
    assert api.asked == 50 + 50 * K + 2
    assert child.parents.tolist() == PARENTS.tolist()
    assert child.labels.tolist() == LABELS[PARENTS].tolist()
    assert child.conditions["name"].tolist() == first.conditions["name"][PARENTS].tolist()
    assert not list(
        (tmp_path / "run" / "confidential" / "chunks").iterdir()
    )  # the lookahead has served
    again = dispatcher(tmp_path / "run", api).variations(
        1, first, Members.offspring(PARENTS), 0.5, K
    )
    assert api.asked == 50 + 50 * K + 2
    np.testing.assert_array_equal(child.samples.array, again.samples.array)


def test_refused_lookahead_is_not_lent(tmp_path):
    first = dispatcher(tmp_path / "run", Shades()).random(LABELS)
    refusing = dispatcher(tmp_path / "run", Moody(refuse=2), retries=0)
    made = sum(len(members) for members, _ in refusing.lookahead(1, first, K, 0.5))
    assert 0 < made < 50 * K
    api = Shades()
    child = dispatcher(tmp_path / "run", api, retries=0).variations(
        1, first, Members.offspring(PARENTS), 0.5, K
    )
    assert len(child) == len(PARENTS)
    assert 2 < api.asked <= len(PARENTS)


@pytest.mark.parametrize(
    "settings", [{"max_chunk": 50, "concurrency": 4}, {"max_chunk": 1, "shares": "parent"}]
)
def test_a_population_does_not_depend_on_how_the_work_is_cut(tmp_path, settings):
    *one, _ = offspring(tmp_path / "a", Shades())
    *other, _ = offspring(tmp_path / "b", Shades(**settings))
    for here, there in zip(one, other, strict=True):
        np.testing.assert_array_equal(here.samples.array, there.samples.array)
        assert here.conditions["name"].tolist() == there.conditions["name"].tolist()


def test_lookahead_that_was_damaged_before_it_could_be_reused_is_asked_for_again(tmp_path):
    dispatch = dispatcher(tmp_path / "run", Shades())
    first = dispatch.random(LABELS)
    assert list(dispatch.lookahead(1, first, K, 0.5))
    chunks = (tmp_path / "run" / "confidential" / "chunks").glob("lookahead-1-*")
    damaged = max(
        chunks, key=lambda path: path.stat().st_size
    )  # of 7 items; the last one has fewer
    damaged.write_bytes(damaged.read_bytes()[:-1])
    api = Shades()
    child = dispatcher(tmp_path / "run", api).variations(
        1, first, Members.offspring(PARENTS), 0.5, K
    )
    assert api.asked == 7 + 2
    np.testing.assert_array_equal(
        child.samples.array, offspring(tmp_path / "whole", Shades())[1].samples.array
    )
