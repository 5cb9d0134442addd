"""Columns that only some samples have."""

import numpy as np
import pytest

from pe.data.population import ColumnWriter, load_columns
from pe.data.samples import Conditions
from pe.errors import ContractError

ONE = {"condition.who": np.array(["a", "a"]), "condition.a.font": np.array(["x", "long"])}
OTHER = {"condition.who": np.array(["b"]), "condition.b.place": np.array([[1.5, 2.5]])}


def test_a_column_of_some_samples_is_zero_or_empty_in_the_others(tmp_path):
    writer = ColumnWriter(tmp_path, 3)
    writer.put(np.array([0, 2]), ONE)
    writer.put(np.array([1]), OTHER)
    writer.close()
    found = load_columns(tmp_path)
    assert found["condition.who"].tolist() == ["a", "b", "a"]
    assert found["condition.a.font"].tolist() == ["x", "", "long"]
    assert found["condition.b.place"].tolist() == [[0, 0], [1.5, 2.5], [0, 0]]


def test_rows_come_in_any_order_and_as_slices(tmp_path):
    rng = np.random.default_rng(0)
    whole = {
        "images": rng.integers(0, 256, (20, 4, 4, 3)),
        "condition.turned": rng.normal(size=(20, 2)),
    }
    writer = ColumnWriter(tmp_path, 20)
    for rows in (
        np.array([7, 3, 5]),
        slice(8, 20),
        np.array([6]),
        np.array([], np.int64),
        [0, 1, 2, 4],
    ):
        writer.put(rows, {name: np.asfortranarray(column[rows]) for name, column in whole.items()})
    writer.close()
    for name, column in load_columns(tmp_path).items():
        np.testing.assert_array_equal(column, whole[name])


def test_all_other_columns_are_of_all_samples(tmp_path):
    writer = ColumnWriter(tmp_path, 3)
    writer.put(np.array([0, 2]), ONE)
    with pytest.raises(ContractError, match=r"differ in their columns: \['condition\.what'\]"):
        writer.put(np.array([1]), OTHER | {"condition.what": np.array([1])})


def test_tables_are_put_together_likewise():
    first = Conditions({"who": np.array(["a", "a"]), "a.font": np.array(["x", "y"])})
    parts = [first, Conditions({"who": np.array(["b"])})]
    whole = Conditions.concatenate(parts)
    assert whole["a.font"].tolist() == ["x", "y", ""]
    with pytest.raises(ContractError, match="differ between answers"):
        Conditions.concatenate(
            [*parts, Conditions({"who": np.array(["b"]), "more": np.array([1])})]
        )
