"""Algorithm 2: what one privacy unit can do to the votes, and what leaves the function."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddings.pixels import Pixels
from pe.data.images import Images
from pe.errors import PrivacyError
from pe.histogram import Voting, count_votes, dp_nn_histogram, histogram_releases
from pe.lookahead import embed
from pe.privacy.ledger import Budget, Ledger, MemoryStore
from pe.privacy.release import FINEST, Relation
from pe.private.embeddings import PrivateEmbeddings, embed_private
from tests.private_data import dataset_of
from tests.seeded_noise import UnsafeSeededNoise

GRID = 2**16


def records(vectors, labels, units=None):
    numbers = np.arange(len(labels)) if units is None else np.array(units, dtype=np.int64)
    shape = (len(labels), 2)
    return PrivateEmbeddings(
        np.array(vectors, np.float32).reshape(shape),
        np.array(labels, np.int32),
        numbers,
        ("a", "b", "c"),
    )


def without(private, gone):
    keep = ~gone
    return PrivateEmbeddings(
        private.vectors[keep], private.labels[keep], private.units[keep], private.classes
    )


CANDIDATES = np.array([[0, 0], [1, 0], [0, 0], [5, 5], [1, 0]], np.float32)
LABELS = np.array([0, 0, 0, 1, 1], np.int32)


def test_each_record_votes_for_the_nearest_candidate_of_its_own_label():
    private = records([[0.9, 0], [0.1, 0], [0.9, 0], [4, 4]], [0, 0, 1, 1])
    assert (count_votes(private, CANDIDATES, LABELS, 1)).tolist() == [1, 1, 0, 1, 1]


def test_duplicate_candidates_share_no_vote_the_first_takes_it():
    assert count_votes(records([[0, 0]] * 3, [0, 0, 0]), CANDIDATES, LABELS, 8).tolist() == [
        24,
        0,
        0,
        0,
        0,
    ]


@pytest.mark.parametrize("grid", [GRID, FINEST])
def test_the_votes_of_q_neighbours_have_norm_one(grid):
    candidates = np.array([[0, 0], [1, 0], [2, 0], [9, 9]], np.float32)
    votes = count_votes(
        records([[0, 0]], [0]), candidates, np.zeros(4, np.int32), grid, Voting(3, "l2")
    )
    assert votes[3] == 0
    assert np.sqrt((votes[:3].astype(float) ** 2).sum()) == pytest.approx(grid, rel=1e-4)
    assert (votes.astype(object) ** 2).sum() <= grid**2


@pytest.mark.parametrize("neighbors", [1, 3])
def test_noise_so_small_that_squared_votes_leave_64_bits_is_refused(neighbors):
    least = 2.0**-15 * 0.9
    with pytest.raises(PrivacyError, match=r"protects nothing. Raise the noise multiplier"):
        histogram_releases(least, 1, neighbors=neighbors)
    assert histogram_releases(2.0**-15, 1, neighbors=neighbors)[0].grid == FINEST


def test_a_record_that_is_not_finite_and_no_record_cast_no_vote():
    private = records([[np.nan, 0], [np.inf, 1], [0, -np.inf]], [0, 0, 1])
    for none in (private, records([], [])):
        assert not count_votes(none, CANDIDATES, LABELS, GRID).any()


@st.composite
def worlds(draw):
    """A small private set with ties, duplicates, odd numbers and users over classes, and candidates
    for it.
    """
    coordinate = st.sampled_from([0.0, 1.0, 2.0, 1e-5, -1.0, np.nan, np.inf, 1e30])
    n, m = draw(st.integers(1, 8)), draw(st.integers(3, 9))
    vectors = draw(st.lists(st.lists(coordinate, min_size=2, max_size=2), min_size=n, max_size=n))
    labels = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    units = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    finite = st.sampled_from([0.0, 1.0, 2.0, 1e-5, -1.0, 3.0])
    candidates = draw(
        st.lists(st.lists(finite, min_size=2, max_size=2), min_size=3 * m, max_size=3 * m)
    )
    by_label = np.repeat(np.arange(3, dtype=np.int32), m)
    q = draw(st.integers(1, 3))
    metric = draw(st.sampled_from(["l2", "cosine"]))
    return records(vectors, labels, units), np.array(candidates, np.float32), by_label, q, metric


def norm(votes):
    return float(np.sqrt((votes.astype(object) ** 2).sum()))


@given(worlds())
@settings(max_examples=30)
def test_removing_a_unit_moves_the_votes_by_at_most_one(world):
    private, candidates, labels, q, metric = world
    votes = count_votes(private, candidates, labels, GRID, Voting(q, metric))
    for unit in np.unique(private.units):
        others = count_votes(
            without(private, private.units == unit), candidates, labels, GRID, Voting(q, metric)
        )
        assert norm(votes - others) <= GRID


@given(worlds(), worlds())
@settings(max_examples=30)
def test_replacing_a_unit_moves_the_votes_by_at_most_root_two(world, other):
    private, candidates, labels, q, metric = world
    rest = without(private, private.units == private.units[0])
    new = other[0].units == other[0].units[0]
    replaced = PrivateEmbeddings(
        np.concatenate([rest.vectors, other[0].vectors[new]]),
        np.concatenate([rest.labels, other[0].labels[new]]),
        np.concatenate([rest.units, np.full(new.sum(), 99)]),
        private.classes,
    )
    votes = count_votes(private, candidates, labels, GRID, Voting(q, metric))
    moved = count_votes(replaced, candidates, labels, GRID, Voting(q, metric))
    assert norm(votes - moved) <= np.sqrt(2) * GRID


def test_votes_normalised_per_label_would_break_the_declared_sensitivity():
    """The fault of the authors' library: a user with records under L labels had sensitivity √L."""
    private = records([[0, 0], [5, 5], [3, 3]], [0, 1, 2], [7, 7, 7])
    candidates, labels = np.zeros((3, 2), np.float32), np.arange(3, dtype=np.int32)

    per_label = sum(
        count_votes(without(private, private.labels != label), candidates, labels, GRID)
        for label in range(3)
    )
    assert norm(per_label) > 1.7 * GRID
    assert norm(count_votes(private, candidates, labels, GRID)) <= GRID


@pytest.mark.parametrize(
    ("relation", "sensitivity"), [("add_remove", 1.0), ("zero_out", 1.0), ("replace_one", 2**0.5)]
)
def test_the_release_declares_the_sensitivity_of_its_relation(relation, sensitivity):
    release = histogram_releases(2.0, 1, relation=Relation(relation))[0]
    assert release.sensitivity == sensitivity
    assert release.mechanism == "discrete_gaussian"


def test_shared_votes_are_counted_on_a_fine_grid():
    for unit, neighbors, grid in (("record", 1, 1), ("patient", 1, GRID), ("record", 2, GRID)):
        assert histogram_releases(1e6, 1, unit=unit, neighbors=neighbors)[0].grid == grid


def histogram(private, sigma):
    release = histogram_releases(sigma, 1)[0]
    ledger = Ledger(Budget(1e6, 1e-5), Relation.ADD_REMOVE, "record", [release], MemoryStore())
    return dp_nn_histogram(lambda: private, lambda: CANDIDATES, LABELS, release, ledger)


def test_the_noise_is_as_large_as_declared():
    private = records([[0, 0]] * 40, [0] * 40)
    draws = np.array([histogram(private, 3.0) for _ in range(100)])
    assert draws.mean(axis=0) == pytest.approx([40, 0, 0, 0, 0], abs=5.5 * 3 / 10)
    # 500 normal draws: the standard deviation's standard error is 3.2 %, so ⅔σ and 1.5σ lie over 10
    # of them off
    assert (draws - [40, 0, 0, 0, 0]).std() == pytest.approx(3.0, rel=0.2)


def test_only_the_noisy_votes_reach_the_store():
    release = histogram_releases(3.0, 1)[0]
    store = MemoryStore()
    ledger = Ledger(
        Budget(1e6, 1e-5), Relation.ADD_REMOVE, "record", [release], store, UnsafeSeededNoise(0)
    )
    private = records([[0, 0]] * 9, [0] * 9)
    noisy = dp_nn_histogram(lambda: private, lambda: CANDIDATES, LABELS, release, ledger)
    noise = UnsafeSeededNoise(0).discrete_gaussian(5, release.scale)
    clean = count_votes(private, CANDIDATES, LABELS, release.grid)
    np.testing.assert_array_equal(store.find("histogram/1").array, clean + noise)
    np.testing.assert_array_equal(noisy, (clean + noise) / release.grid)


@pytest.mark.parametrize("gone", [[0], [15], [16], [31, 32], [39], [3, 15, 16, 30]])
def test_votes_of_the_others_are_bit_identical_when_records_leave(gone):
    """From pixels to votes: padded blocks, neighbour search and all, at the edges of blocks too."""
    rng = np.random.default_rng(4)
    pixels = rng.integers(0, 256, (40, 12, 12, 3)).astype(np.uint8)
    labels = rng.integers(0, 2, 40)
    embedding = Pixels(size=12, batch_size=16)
    candidates = embed(embedding, Images(rng.integers(0, 256, (30, 12, 12, 3)).astype(np.uint8)))
    candidates[1::2] = candidates[::2] + np.float32(1e-6)  # near-ties
    by_label = np.repeat(np.arange(2, dtype=np.int32), 15)
    stay = np.setdiff1d(np.arange(40), gone)

    def embedded(records):
        images = Images(pixels[records])
        return embed_private(
            dataset_of(images, labels[records], classes=("a", "b")), embedding, None
        )

    def vote(private, record):
        alone = PrivateEmbeddings(
            private.vectors[[record]],
            private.labels[[record]],
            private.units[[record]],
            private.classes,
        )
        return count_votes(alone, candidates, by_label, GRID, Voting(2, "l2"))

    everyone, others = embedded(np.arange(40)), embedded(stay)
    np.testing.assert_array_equal(everyone.vectors[stay], others.vectors)
    left = sum(vote(everyone, record) for record in gone)
    together = count_votes(everyone, candidates, by_label, GRID, Voting(2, "l2"))
    np.testing.assert_array_equal(
        together - left, count_votes(others, candidates, by_label, GRID, Voting(2, "l2"))
    )
