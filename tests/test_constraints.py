"""Constraints between a table's columns: every synthetic row obeys them, and what cannot be met is
refused at once.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pe
from adapters.tables import Mutate
from pe.data.columns import Columns
from pe.data.constraints import Allowed, Constraints
from pe.errors import RecipeError
from pe.plugins.protocols import RandomRequest, VariationRequest
from tests.evaluation.conftest import evaluate

COLUMNS: dict[str, Any] = {
    "admitted": {"kind": "date", "min": "2020-01-01", "max": "2021-12-31", "missing": True},
    "discharged": {"kind": "date", "min": "2020-01-01", "max": "2021-12-31"},
    "net": {"kind": "real", "min": 0, "max": 100, "unit": 0.5},
    "tax": {"kind": "integer", "min": 0, "max": 20},
    "gross sum": {"kind": "real", "min": 0, "max": 150, "unit": 0.25},
    "zip": {"kind": "category", "values": ["50667", "53111", "52062"]},
    "city": {"kind": "category", "values": ["Köln", "Bonn", "Aachen"]},
}
TEN = {"kind": "integer", "min": 0, "max": 10}
CITIES = {
    "columns": ["zip", "city"],
    "allowed": [["50667", "Köln"], ["53111", "Bonn"], ["52062", "Aachen"]],
}
CONSTRAINTS: list[Any] = [
    "admitted < discharged",
    "net + tax = `gross sum`",
    "tax <= net - 1",
    CITIES,
]


def breaks(row: dict[str, Any]) -> bool:
    """Return whether a row breaks one of them, by Python's own arithmetic."""
    return not (
        (row["admitted"] is None or row["admitted"] < row["discharged"])
        and row["net"] + row["tax"] == row["gross sum"]
        and row["tax"] <= row["net"] - 1
        and [row["zip"], row["city"]] in CITIES["allowed"]
    )


def read(constraints: list[Any]) -> Constraints:
    return Constraints(Columns(COLUMNS), parts(constraints))


def parts(constraints: list[Any]) -> tuple[Any, ...]:
    return tuple(one if isinstance(one, str) else Allowed(**one) for one in constraints)


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.1, 0.6, 1.0]), st.integers(1, 40))
@settings(max_examples=25, deadline=None)
def test_every_row_obeys_and_is_the_same_whatever_is_beside_it(
    seed: int, degree: float, count: int
) -> None:
    api = Mutate(columns=dict(Columns(COLUMNS)), constraints=parts(CONSTRAINTS))
    seeds, labels = np.random.default_rng(seed).integers(0, 2**63, count, np.uint64), ("",) * count
    new = api.random_api(RandomRequest(labels, seeds)).samples
    varied = api.variation_api(
        VariationRequest(new, labels, {}, seeds + np.uint64(1), degree)
    ).samples  # type: ignore[arg-type]
    assert not any(map(breaks, [*new.records, *varied.records]))
    assert degree or (varied.array == new.array).all()
    assert (
        api.random_api(RandomRequest(labels[-1:], seeds[-1:])).samples.array == new.array[-1:]
    ).all()


@pytest.mark.parametrize("kind", ["max_entropy", "independent"])
def test_a_fit_and_its_variations_obey_though_the_private_rows_do_not(
    kind: str, tmp_path: Any
) -> None:
    columns = Columns(COLUMNS)
    rows = columns.rows(np.random.default_rng(0).integers(0, columns.sizes, (400, 7))).records
    terms = {
        "epsilon": 5.0,
        "delta": 1e-5,
        "declared_size": 400,
        "population": 300,
        "iterations": 2,
        "degree": 0.3,
    }
    about = {
        "constraints": CONSTRAINTS,
        "ledger_file": tmp_path / "l.json",
        "out": tmp_path / "run",
    }
    run = pe.evolve(
        rows, pe.api(kind, fit={"budget_share": 0.7}), columns=COLUMNS, **about, **terms
    )
    assert any(map(breaks, rows))
    assert not any(map(breaks, [row for one in run.populations() for row in one.samples.records]))
    run.export(tmp_path / "out", "csv")
    assert (
        json.loads((tmp_path / "out" / "data-dictionary.json").read_text())["constraints"]
        == CONSTRAINTS
    )
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows[:100])))
    table = evaluate(
        run,
        tmp_path / "test.jsonl",
        metrics=("fidelity",),
        api=None,
        embedding=None,
    )["table"]
    assert set(table["breaks"]["synthetic"].values()) == {0.0}
    assert table["breaks"]["reference"]["net + tax = `gross sum`"] > 0.5


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ("admited <= discharged", "names no column 'admited'; did you mean 'admitted'"),
        ("admitted", "is no comparison"),
        ("net <= tax <= 5", "is no comparison"),
        ("net <= 2 * tax", r"cannot be read at '\* tax'"),
        ("net >", "cannot be read at ''"),
        ("admitted > 2020-13-01", "2020-13-01 in .* is not a date"),
        ("zip = city", "compares a column of the kind category"),
        ("tax > 20", "'tax > 20' is broken most often"),
        ("net + tax = 150", "'net [+] tax = 150' is broken most often"),
        (CITIES | {"allowed": [["50667", "Berlin"]]}, "does not have a declared value for each"),
        (
            {"columns": ["tax", "city"], "allowed": [[21, "Bonn"]]},
            "does not have a declared value for each",
        ),
    ],
)
def test_what_is_not_meant_or_cannot_be_met_is_refused_when_the_recipe_is_read(
    constraint: Any, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        pe.RowTable("private.csv", columns=COLUMNS, constraints=[constraint])


@pytest.mark.parametrize(
    ("constraint", "holds"),
    [
        ("admitted >= 2020-06-01", lambda row: row["admitted"] >= "2020-06-01"),
        ("net > 40.3", lambda row: row["net"] > 40.3),
        ("tax + 0.3 < `gross sum`", lambda row: row["tax"] + 0.3 < row["gross sum"]),
        ("`gross sum` < tax", lambda row: row["gross sum"] < row["tax"]),
    ],
)
def test_a_comparison_means_what_it_says_off_the_columns_steps_too(
    constraint: str, holds: Any
) -> None:
    columns, constraints = Columns(COLUMNS), read([constraint])
    codes = np.random.default_rng(0).integers(0, columns.sizes, (500, 7))
    assert constraints.breaks(codes)[:, 0].tolist() == [
        not holds(row) for row in columns.rows(codes).records
    ]
    assert all(map(holds, columns.rows(constraints.obey(codes, codes)).records))


def test_values_of_a_combination_are_written_as_in_a_recipe_whatever_the_records_write() -> None:
    columns = Columns(
        {
            "born": {
                "kind": "date",
                "min": "1950-01-01",
                "max": "1950-12-31",
                "format": "%d.%m.%Y",
            },
            "c": TEN,
        }
    )
    one = Constraints(columns, [Allowed(columns=("born", "c"), allowed=(("1950-02-03", 4),))])
    assert one.breaks(np.array([[33, 4], [33, 5]])).tolist() == [[False], [True]]


def test_no_variation_breaks_a_constraint_though_its_parent_does() -> None:
    columns, count = Columns(dict.fromkeys("abcde", TEN)), 300
    constraints = (
        "a + b = c",
        "c + d = e",
        "a < b",
        "d > 5",
    )  # which a repair seldom meets together
    parents = columns.rows(np.random.default_rng(0).integers(0, 11, (count, 5)))
    request = VariationRequest(parents, ("",) * count, {}, np.arange(count, dtype=np.uint64), 0.3)  # type: ignore[arg-type]
    answer = Mutate(columns=dict(columns), constraints=constraints).variation_api(request).samples
    assert all(
        row["a"] + row["b"] == row["c"] and row["a"] < row["b"] and row["d"] > 5
        for row in answer.records
    )


def test_a_pool_s_rows_obey_and_a_generator_that_cannot_is_refused(tmp_path: Any) -> None:
    rows = (
        Columns(COLUMNS)
        .rows(np.random.default_rng(0).integers(0, Columns(COLUMNS).sizes, (400, 7)))
        .records
    )
    (tmp_path / "pool.jsonl").write_text("\n".join(map(json.dumps, rows[200:])))
    pool = pe.api("public_table", path=tmp_path / "pool.jsonl")
    about = {"columns": COLUMNS, "constraints": ["tax <= net"], "ledger_file": tmp_path / "l.json"}
    terms = {
        "epsilon": 5.0,
        "delta": 1e-5,
        "declared_size": 400,
        "population": 20,
        "iterations": 1,
        "degree": 0.0,
    }
    run = pe.evolve(rows[:200], pool, out=tmp_path / "run", **about, **terms)
    assert any(row["tax"] > row["net"] for row in rows[200:])
    assert all(row["tax"] <= row["net"] for one in run.populations() for row in one.samples.records)
    with pytest.raises(RecipeError, match=r"'trained' does not obey .private.constraints"):
        pe.evolve(
            rows, pe.api("trained", path=tmp_path / "run"), out=tmp_path / "b", **about, **terms
        )


def test_constraints_that_cannot_be_met_together_are_refused() -> None:
    with pytest.raises(RecipeError, match="no row was found that obeys all"):
        read(["net < tax", "tax < net"])
