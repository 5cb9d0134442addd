"""Private rows: the same in whatever file or object they are, and nothing of a record beyond its
declared columns.
"""

import datasets
import pandas as pd
import pyarrow as pa
import pytest

from pe.data.columns import Column
from pe.errors import RecipeError
from pe.private.memory import source_of
from tests.private.records import arrow, read, refused
from tests.private.test_texts import WRITERS

COLUMNS = {
    "age": {"kind": "integer", "min": 0, "max": 99},
    "sex": {"kind": "category", "values": ["f", "m"], "other": True, "missing": True},
    "seen": {"kind": "date", "min": "2020-01-01", "max": "2020-12-31", "missing": True},
    "dose": {"kind": "real", "min": 0, "max": 3, "unit": 0.5, "missing": True},
    "grade": {"kind": "ordinal", "values": [1, 2, 3]},
    "fever": {"kind": "boolean", "missing": True},
}
DATA = {
    "age": [34, 120, None, 61],  # too old; missing, where a row may not lack it
    "sex": ["f", None, "m", "x"],
    "patient": ["a", "b", "b", "a"],
    "seen": ["2020-02-03", "2019-05-05", None, "2020-03-04"],
    "dose": [1.5, None, 2.5, 99],
    "grade": [1, 2, 3, 3],
    "fever": ["true", "false", None, "true"],
    "out": ["dead", "home", "home", "dead"],
    "note": ["not declared"] * 4,
}
ROWS = [
    '{"age":34,"sex":"f","seen":"2020-02-03","dose":1.5,"grade":"1","fever":true}',
    '{"age":99,"sex":null,"seen":"2020-01-01","dose":null,"grade":"2","fever":false}',
    '{"age":61,"sex":"other","seen":"2020-03-04","dose":3.0,"grade":"3","fever":true}',
]
FRAME = pd.DataFrame(DATA).astype({"sex": "category", "dose": "float32", "grade": "float32"})
FRAME["seen"] = pd.to_datetime(FRAME["seen"])
FRAME["fever"] = pd.array([True, False, None, True], "boolean")
TYPED = datasets.Features(
    {name: datasets.Value("string") for name in ("sex", "patient", "seen", "fever", "note")}
    | {name: datasets.Value("float32") for name in ("age", "dose", "grade")}
    | {"out": datasets.ClassLabel(names=["home", "dead"])}
)
SETTINGS = {
    "columns": COLUMNS,
    "label": "out",
    "classes": ["home", "dead"],
    "privacy_unit": "patient",
}
FORMS = {
    "a data frame": FRAME,
    "a data frame of objects": FRAME.astype(object),
    "arrays by name": {name: FRAME[name].to_numpy() for name in FRAME},
    "dicts": [
        {name: value for name, value in row.items() if value is not None}
        for row in pd.DataFrame(DATA).to_dict("records")
    ],
    "a table of pyarrow": pa.Table.from_pandas(FRAME),
    "a data set of Hugging Face": datasets.Dataset.from_dict(DATA, features=TYPED),
}


def write_file(place, suffix):
    columns = {
        name: ["" if one is None else one for one in values] for name, values in DATA.items()
    }
    if suffix in (".parquet", ".arrow"):
        columns = pa.table(DATA).to_pydict()
    (WRITERS | {".arrow": lambda path, data: arrow(path, pa.table(data))})[suffix](
        place / f"a{suffix}", columns
    )
    return place / f"a{suffix}"


@pytest.mark.parametrize("form", [*FORMS, ".csv", ".tsv", ".jsonl", ".parquet", ".arrow"])
def test_rows_labels_and_units_are_the_same_in_every_form(tmp_path, form):
    private = write_file(tmp_path, form) if form[0] == "." else FORMS[form]

    def source(**changes):
        return source_of(
            private, SETTINGS | {"ledger_file": tmp_path / "l.json"} | changes, "t", ()
        )

    data = source(on_bad_record="skip").open()
    samples, valid = read(data)
    assert [row.decode() for row in samples.tolist()] == ROWS
    assert valid.tolist() == [True, True, False, True]
    assert (data.labels.tolist(), data.units.tolist()) == ([1, 0, 0, 1], [0, 1, 1, 0])
    (bad,) = data.check()
    assert "column 'age' is empty" in bad.reason
    refused(source(), r"^(Row|Record) 3", "column 'age'", "set on_bad_record: skip")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "if they are rows of a table, declare its columns by columns={'age': "),
        ({"columns": COLUMNS, "text": "note"}, "`text` cannot be used with `columns`"),
        (
            {"columns": {"agee": COLUMNS["age"]}},
            "`columns` names 'agee', but the records have the columns 'age'",
        ),
        (
            {"columns": {"age": None}},
            "columns.age must be a mapping of keys to values, not empty: declare it",
        ),
        ({"columns": {"age": {"kind": "int"}}}, "columns.age.kind must be 'category', 'ordinal'"),
        ({"columns": COLUMNS, "label": "sex"}, "`label` is 'sex', which is also among `columns`"),
    ],
)
def test_a_frame_that_is_no_table_as_declared_is_refused(settings, sentence):
    with pytest.raises(RecipeError) as error:
        source_of(FRAME, settings | {"ledger_file": "l.json"}, "t", ())
    assert sentence in str(error.value)


def test_a_real_column_with_a_unit_of_1_is_handed_on_with_it():
    column = Column(kind="real", min=0, max=10, unit=1)
    handed_on = column.model_dump(mode="json", exclude_defaults=True)
    assert Column(**handed_on) == column
