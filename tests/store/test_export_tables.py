"""A table goes out with its columns' types, the label under its own name, and a data dictionary
beside it.
"""

import csv
import json
from datetime import date

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pe
from pe.store.export import examine

FORMULA = '=HYPERLINK("x")'
COLUMNS = {
    "age": {"kind": "integer", "min": 0, "max": 110, "note": "in <b>years</b>"},
    "visits": {"kind": "integer", "min": -3, "max": 2, "missing": True},
    "weight": {"kind": "real", "min": 2, "max": 250, "unit": 0.5},
    "city": {"kind": "category", "values": [FORMULA, "-1", "Köln"]},
    "stage": {"kind": "ordinal", "values": ["I", "II"], "missing": True},
    "smoker": {"kind": "boolean"},
    "@born": {
        "kind": "date",
        "min": "1950-01-01",
        "max": "1950-12-31",
        "format": "%d.%m.%Y",
        "missing": True,
    },
}
DTYPES = ["int64", "Int64", "float64", "category", "category", "bool", "datetime64[s]", "category"]
FEATURES = ["int64", "int64", "float64", "string", "string", "bool", "date32", "string"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    record = "40,,70,Köln,I,yes,01.02.1950"
    lines = [
        ",".join([*COLUMNS, "risk"]),
        *(f"{record},{label}" for label in ("+low", "high") * 30),
    ]
    (folder / "private.csv").write_text("\n".join(lines) + "\n")
    private = pe.RowTable(
        folder / "private.csv",
        columns=COLUMNS,
        label_column="risk",
        classes=["+low", "high"],
        declared_size=60,
    )
    terms = {"epsilon": 20.0, "delta": 1e-3, "population": 40, "iterations": 2, "degree": 0.3}
    return pe.evolve(private, pe.api("mutate"), out=folder / "run", **terms)


@pytest.fixture(scope="module")
def rows(run):
    """The samples as they should come out."""
    labels = [["+low", "high"][label] for label in run.synthetic.labels]
    rows = [
        row | {"risk": label}
        for row, label in zip(run.synthetic.samples.records, labels, strict=True)
    ]
    return [row | {"@born": row["@born"] and date.fromisoformat(row["@born"])} for row in rows]


def same(found, rows):
    clean = [{name: None if pd.isna(cell) else cell for name, cell in row.items()} for row in found]
    return clean == rows


def test_every_form_holds_the_columns_in_their_types(run, rows, tmp_path):
    table = pq.read_table(run.export(tmp_path / "parquet", "parquet") / "synthetic.parquet")
    assert table.to_pylist() == rows
    assert table.schema.types == [pa.type_for_alias(each) for each in FEATURES]
    hub = run.export(tmp_path / "hub", "huggingface")
    loaded = datasets.load_dataset(str(hub), cache_dir=str(tmp_path / "cache"), split="train")
    assert loaded.to_list() == rows
    assert [loaded.features[name].dtype for name in rows[0]] == FEATURES
    lines = (run.export(tmp_path / "jsonl", "jsonl") / "synthetic.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        row | {"@born": row["@born"] and str(row["@born"])} for row in rows
    ]
    csv_file = run.export(tmp_path / "csv", "csv") / "synthetic.csv"
    frame = pd.read_csv(csv_file, parse_dates=["'@born"])
    assert [str(frame[name].dtype) for name in ("age", "weight", "smoker")] == [
        "int64",
        "float64",
        "bool",
    ]
    assert frame["age"].tolist() == [row["age"] for row in rows]
    assert frame["'@born"].isna().tolist() == [row["@born"] is None for row in rows]
    assert examine(tmp_path / "csv")[1] == []


def test_no_text_of_a_csv_file_is_a_formula_and_numbers_stay_numbers(run, rows, tmp_path):
    with (run.export(tmp_path / "csv", "csv") / "synthetic.csv").open(
        newline="", encoding="utf-8"
    ) as file:
        head, *lines = csv.reader(file)
    assert head[-2:] == ["'@born", "risk"]
    assert {line[-1] for line in lines} == {"'+low", "high"}
    assert {line[3] for line in lines} == {f"'{FORMULA}", "'-1", "Köln"}
    assert [line[1] for line in lines] == [
        "" if row["visits"] is None else str(row["visits"]) for row in rows
    ]
    assert any(line[1].startswith("-") for line in lines)


def test_frames_and_data_sets_have_the_columns_in_their_types(run, rows):
    frame = run.to_pandas()
    assert frame.dtypes.astype(str).tolist() == DTYPES
    assert frame["stage"].cat.ordered
    records = frame.to_dict("records")
    assert same(
        [
            row | {"@born": row["@born"] if pd.isna(row["@born"]) else row["@born"].date()}
            for row in records
        ],
        rows,
    )
    loaded = run.to_datasets()
    assert loaded.features["risk"].names == ["+low", "high"]
    assert [loaded.features[name].dtype for name in rows[0]] == [*FEATURES[:-1], "int64"]
    row, label = run.to_torch()[0]
    assert (row["age"].item(), row["city"].item()) == (
        rows[0]["age"],
        COLUMNS["city"]["values"].index(rows[0]["city"]),
    )
    assert run.to_torch().classes[label] == rows[0]["risk"]
    born = [each["@born"].item() for each, _ in run.to_torch()]
    days = [
        np.nan if row["@born"] is None else (row["@born"] - date(1970, 1, 1)).days for row in rows
    ]
    assert np.array_equal(born, days, equal_nan=True)


def test_what_is_declared_stands_in_the_dictionary_the_card_and_croissant(run, tmp_path):
    out = run.export(tmp_path / "out", "huggingface")
    entries = {
        one["name"]: one
        for one in json.loads((out / "data-dictionary.json").read_text())["columns"]
    }
    assert list(entries) == [*COLUMNS, "risk"]
    assert entries["weight"] == {
        "name": "weight", "kind": "real", "min": 2.0, "max": 250.0, "unit": 0.5, "missing": False, "note": "",
        "declared": "in public, by the owner of the records",
    }  # fmt: skip
    assert entries["stage"]["values"] == ["I", "II"]
    card = (out / "README.md").read_text()
    assert "- `age`: integer: 0 to 110, unit 1; in \\<b>years\\</b>" in card
    assert "tabular-classification" in card
    fields = json.loads((out / "croissant.json").read_text())["recordSet"][0]["field"]
    assert [(one["name"], one["dataType"]) for one in fields][-2:] == [
        ("@born", "sc:Date"),
        ("risk", "sc:Text"),
    ]
    assert examine(out)[1] == []
