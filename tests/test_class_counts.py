import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pe.data.images import Images
from pe.errors import PrivacyError
from pe.histogram import class_counts_release, count_labels, dp_class_counts
from pe.privacy.ledger import Budget, Ledger, MemoryStore
from pe.privacy.release import Relation
from pe.private.dataset import NOBODY
from tests.private_data import dataset_of

GRID = 2**16
CLASSES = ("a", "b", "c")
rows = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=12)


def records(pairs):
    images = Images(np.zeros((len(pairs), 2, 2, 1), np.uint8))
    units, labels = ([pair[i] for pair in pairs] for i in (0, 1))
    return dataset_of(images, labels, classes=CLASSES, units=units, unit_name="patient")


def test_counts_of_records_are_whole():
    assert count_labels(records([(0, 0), (1, 0), (2, 2)]), 1).tolist() == [2, 0, 1]


@given(rows)
def test_a_unit_moves_the_counts_by_at_most_one_in_all(pairs):
    whole = count_labels(records(pairs), GRID)
    for unit in {unit for unit, _ in pairs}:
        rest = count_labels(records([pair for pair in pairs if pair[0] != unit]), GRID)
        assert 0 < np.abs(whole - rest).sum() <= GRID


@given(rows, st.lists(st.integers(0, 2), max_size=5))
def test_records_of_unknown_units_are_counted_nowhere(pairs, labels):
    """A unit may have several of them: counted each by itself, they would move the counts by more
    than one.
    """
    unknown = [(NOBODY, label) for label in labels]
    assert (
        count_labels(records([*pairs, *unknown]), GRID).tolist()
        == count_labels(records(pairs), GRID).tolist()
    )


@pytest.mark.parametrize(("unit", "size"), [("record", 0.851), ("patient", 1)])
def test_the_noise_is_laplace_of_the_share(unit, size):
    release = class_counts_release(0.5, 2.0, Relation.ADD_REMOVE, unit)
    private = records([(i, 0) for i in range(7)])
    draws = []
    for _ in range(300):
        ledger = Ledger(Budget(2.0, 1e-6), Relation.ADD_REMOVE, unit, [release], MemoryStore())
        draws.append(dp_class_counts(lambda: private, release, ledger))
    errors = np.array(draws) - [7, 0, 0]
    # Laplace of scale 1: E|x| = 1, or on whole numbers 2e^-1/(1-e^-2) = 0.851, with a standard
    # error of 0.034
    assert np.abs(errors).mean() == pytest.approx(size, abs=0.22)


def test_replacing_a_record_may_move_two_counts():
    assert class_counts_release(0.1, 1, Relation.REPLACE_ONE, "record").sensitivity == 2
    with pytest.raises(PrivacyError, match="between 0 and 1"):
        class_counts_release(1.0, 1, Relation.ADD_REMOVE, "record")
