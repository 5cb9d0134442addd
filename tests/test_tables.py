"""Tables: declared columns, rows and their codes, a run from a CSV file, and nothing of a record
beyond its columns.
"""

from __future__ import annotations

import json
import math
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pe
from pe.data.columns import Columns
from pe.data.rows import Rows
from pe.errors import BadSample, RecipeError
from pe.private.tables import RowTable

COLUMNS = {
    "age": {"kind": "integer", "min": 0, "max": 110},
    "weight": {"kind": "real", "min": 2, "max": 250, "unit": 0.5, "missing": True},
    "sex": {"kind": "category", "values": ["f", "m"], "other": True},
    "smoker": {"kind": "boolean", "missing": True},
    "stage": {"kind": "ordinal", "values": ["I", "II", "III"], "missing": True},
    "admitted": {"kind": "date", "min": "2020-01-01", "max": "2021-12-31"},
    "born": {
        "kind": "date",
        "min": "1990-01-01",
        "max": "1990-12-31",
        "format": "%Y-%d-%m",
        "missing": True,
    },
}
SIZES = [111, 497, 3, 2, 3, 731, 365]


@given(st.lists(st.tuples(*(st.integers(0, size) for size in SIZES)), min_size=1, max_size=5))
def test_rows_and_codes_are_the_same_thing(codes: list[tuple[int, ...]]) -> None:
    columns = Columns(COLUMNS)
    assert columns.sizes.tolist() == SIZES
    rows = columns.rows(np.array(codes))
    assert columns.codes(rows).tolist() == [list(row) for row in codes]
    assert Rows.check(rows.array)
    assert (Rows.unpack(Rows.pack(rows.array)) == rows.array).all()
    assert all(len(row) <= columns.width for row in rows.array.tolist())


@pytest.mark.parametrize(
    ("values", "row"),
    [
        (
            ["34", "70.2", "f", "yes", "II", "2020-02-03", "1990-31-01"],
            [34, 70.0, "f", True, "II", "2020-02-03", "1990-01-31"],
        ),
        (
            [-3, 9e9, "x", 0, None, date(2030, 1, 1), ""],
            [0, 250, "other", False, None, "2021-12-31", None],
        ),
        (
            [34.0, None, " m ", "", "", "2020-02-03T10:00:00", None],
            [34, None, "m", None, None, "2020-02-03", None],
        ),
    ],
)
def test_a_record_holds_nothing_beyond_its_declared_columns(
    values: list[object], row: list[object]
) -> None:
    columns = Columns(COLUMNS)
    assert json.loads(columns.read(values, "A row")) == dict(zip(columns, row, strict=True))


def test_a_value_that_is_not_there_is_refused_without_telling_it() -> None:
    with pytest.raises(BadSample) as error:
        Columns(COLUMNS).read(["secret", 1, "f", True, "I", "2020-01-01", None], "Row 3")
    assert str(error.value) == "Row 3: column 'age' is no number."
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("column", "fault"),
    [
        ({"kind": "integer", "min": 5}, "need `min` and `max`"),
        ({"kind": "real", "min": 5, "max": 1, "unit": 1}, "`min` is larger than `max`"),
        ({"kind": "real", "min": 0, "max": 1}, "needs a `unit`"),
        ({"kind": "real", "min": 0, "max": 1, "unit": 1e-9}, "steps from `min` to `max`"),
        ({"kind": "real", "min": -math.inf, "max": 1, "unit": 1}, "finite number"),
        ({"kind": "real", "min": 0, "max": 10**400, "unit": 1}, "finite number"),
        ({"kind": "integer", "min": 0, "max": 1.5}, "whole number"),
        ({"kind": "category", "values": [1, 1.0]}, "each once"),
        (
            {"kind": "category", "values": ["NA"], "missing_values": ["NA"]},
            "in both `values` and `missing_values`",
        ),
        ({"kind": "boolean", "missing": False, "missing_values": ["NA"]}, "`missing` is false"),
        ({"kind": "integer", "min": 0, "max": 9, "decimal": ",", "thousands": ","}, "must differ"),
        (
            {"kind": "date", "min": "1900-01-01", "max": "2020-01-01", "format": "%d.%m.%y"},
            "two-digit years",
        ),
        ({"kind": "category"}, "must list its `values`"),
        ({"kind": "category", "values": [True]}, "in quotes"),
        ({"kind": "date", "min": 1, "max": "2020-01-01"}, "such as 2020-12-31"),
    ],
)
def test_a_faulty_declaration_is_refused(column: dict[str, object], fault: str) -> None:
    with pytest.raises(RecipeError, match=fault):
        RowTable("a.csv", columns={"a": column})


def write_table(path: Path, rows: int = 60) -> Path:
    """Write a CSV file in which `y` is whether `a` is above 5."""
    rng = np.random.default_rng(0)
    a = rng.integers(0, 11, rows)
    lines = [
        f"{one},{'hi' if one > 5 else 'lo'},{color}"
        for one, color in zip(a, rng.choice(["r", "g"], rows), strict=True)
    ]
    path.write_text("a,y,color\n" + "\n".join(lines) + "\n")
    return path


def test_a_run_over_a_table_evolves_rows_of_its_columns(tmp_path: Path) -> None:
    private = RowTable(
        write_table(tmp_path / "a.csv"),
        columns={
            "a": {"kind": "integer", "min": 0, "max": 10},
            "color": {"kind": "category", "values": ["r", "g"], "missing": True},
        },
        label_column="y",
        classes=["lo", "hi"],
        declared_size=60,
    )
    settings = {"epsilon": 20.0, "delta": 1e-3, "iterations": 3, "population": 40, "degree": 0.2}
    run = pe.evolve(private, pe.api("mutate"), **settings, out=tmp_path / "run")
    rows = run.synthetic.samples
    assert isinstance(rows, Rows)
    means = [
        np.mean([row["a"] for row in rows.take(run.synthetic.labels == k).records]) for k in (0, 1)
    ]
    assert means[0] < 5 < means[1]
    assert "color" in (run.folder / "recipe.yaml").read_text()
    again = pe.evolve(private, pe.api("mutate"), **settings, out=run.folder, resume=True)
    assert (again.synthetic.samples.array == rows.array).all()


def test_votes_choose_among_a_public_tables_rows_whether_or_not_one_is_private(
    tmp_path: Path,
) -> None:
    private = RowTable(
        write_table(tmp_path / "a.csv"),
        columns={"a": {"kind": "integer", "min": 0, "max": 1000}},
        label_column="y",
        classes=["lo", "hi"],
        declared_size=60,
    )
    pool = tmp_path / "pool" / "b.csv"
    pool.parent.mkdir()
    pool.write_text("\n".join(["a", *map(str, range(11, 100))]))
    run = pe.evolve(
        private, pe.api("public_table", path=pool), epsilon=80.0, delta=1e-3, out=tmp_path / "run"
    )
    assert isinstance(run.synthetic.samples, Rows)
    assert {row["a"] for row in run.synthetic.samples.records} <= set(range(11, 100))
    assert 11 in {row["a"] for row in run.synthetic.samples.take(run.synthetic.labels == 1).records}
    pool.write_text("a\n5\n200\n")
    pe.evolve(
        private, pe.api("public_table", path=pool), epsilon=20.0, delta=1e-3, out=tmp_path / "other"
    )
    pool.unlink()
    pool.hardlink_to(tmp_path / "a.csv")
    with pytest.raises(RecipeError, match=r"b\.csv (share a file with|are) the private records"):
        pe.evolve(
            private,
            pe.api("public_table", path=pool),
            epsilon=20.0,
            delta=1e-3,
            out=tmp_path / "third",
        )
