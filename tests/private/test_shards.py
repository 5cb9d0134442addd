"""All records of a unit vote together, whoever chooses the units' names, and nobody is left out."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pe.histogram import InThisProcess, Voting, count_votes
from pe.private.embeddings import PrivateEmbeddings, place, shards

KEYS = st.integers(0, 2**64 - 1)


@settings(max_examples=30)
@given(st.lists(st.integers(-1, 6), max_size=40), st.integers(1, 5), st.integers(1, 3), KEYS)
def test_the_votes_of_all_shards_are_the_votes_of_all(units, count, q, key):
    rng = np.random.default_rng(0)
    n = len(units)
    vectors = rng.standard_normal((n, 3)).astype(np.float32)
    private = PrivateEmbeddings(vectors, rng.integers(0, 2, n).astype(np.int32), np.array(units, np.int64), ("a", "b"))
    candidates, labels = rng.standard_normal((9, 3)).astype(np.float32), np.array([0, 1, 0] * 3, np.int32)
    parts = list(shards(private, count, key))
    assert len(parts) == count
    assert sorted(np.concatenate([part.vectors[:, 0] for part in parts])) == sorted(vectors[:, 0])
    for unit in set(units):
        assert sum(unit in part.units for part in parts) == 1
    whole = count_votes(private, candidates, labels, 2**16, Voting(q))
    np.testing.assert_array_equal(
        InThisProcess(batch=5).count_votes(private, candidates, labels, 2**16, Voting(q)), whole
    )
    np.testing.assert_array_equal(sum(count_votes(part, candidates, labels, 2**16, Voting(q)) for part in parts), whole)


def test_records_that_are_their_own_units_are_read_in_order_and_evenly():
    private = PrivateEmbeddings(np.eye(10, dtype=np.float32), np.zeros(10, np.int32), np.arange(10), ("a",))
    parts = list(shards(private, 3, 1))
    assert np.concatenate([part.units for part in parts]).tolist() == list(range(10))
    assert [len(part) for part in parts] == [3, 3, 4]


@given(KEYS)
def test_a_key_spreads_units_that_lie_in_a_row(key):
    assert np.bincount(place(np.arange(4000), 4, key), minlength=4).min() > 800
