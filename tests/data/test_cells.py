"""Cells of tables: each spelling has its right value, or is refused with a reason; none is silently
missing.
"""

import datetime
import decimal
import json

import numpy as np
import pandas as pd
import pytest

from pe.data.cells import BadCell
from pe.data.columns import Column, Columns
from pe.data.structure import Structure
from pe.errors import BadRow

NUMBER = {"kind": "real", "min": -9999, "max": 9999, "unit": 0.01, "missing": True}
COMMA = NUMBER | {"decimal": ",", "thousands": "."}
WHOLE = {"kind": "integer", "min": -999, "max": 99999, "missing": True}
FLAG = {"kind": "boolean", "missing": True}
DAY = {"kind": "date", "min": "1930-01-01", "max": "2024-12-31", "missing": True}
GERMAN = DAY | {"format": "%d.%m.%Y"}
SHORT = DAY | {"min": "1930-01-01", "max": "2024-12-31", "format": "%d.%m.%y"}
CODE = {"kind": "category", "values": [1, 50667, 0.1, "true", "male", "Müller"], "missing": True}
OTHER = CODE | {"other": True}

READ = [
    (NUMBER, "72.5", 72.5),
    (NUMBER, " -3 ", -3.0),
    (NUMBER, "1e2", 100.0),
    (NUMBER, ".5", 0.5),
    (NUMBER, "7.", 7.0),
    (NUMBER, decimal.Decimal("1.50"), 1.5),
    (NUMBER, np.float32(0.1), 0.1),
    (COMMA, "72,5", 72.5),
    (COMMA, "1.234,5", 1234.5),
    (NUMBER | {"thousands": ","}, "1,234.5", 1234.5),
    (NUMBER | {"thousands": " "}, "1\u202f234.5", 1234.5),
    (NUMBER | {"thousands": "'"}, "1\u2019234", 1234.0),
    (WHOLE, "12.0", 12),
    (WHOLE, 12.0, 12),
    (WHOLE, "007", 7),
    (WHOLE | {"thousands": "."}, "1.234", 1234),
    (WHOLE | {"missing_values": [-999]}, "-999.0", None),
    (WHOLE | {"missing_values": ["NA", "."]}, ".", None),
    (FLAG, "Yes", True),
    (FLAG, "1.0", True),
    (FLAG, False, False),
    (FLAG, 0.0, False),
    (DAY, "2020-01-31", "2020-01-31"),
    (DAY, "2020-01-31T23:59:59+02:00", "2020-01-31"),
    (DAY, 20200131, "2020-01-31"),
    (DAY, datetime.datetime(2020, 1, 31, 12), "2020-01-31"),
    (DAY, np.datetime64("2020-01-31T05"), "2020-01-31"),
    (GERMAN, "31.1.2020", "2020-01-31"),
    (SHORT, "01.02.31", "1931-02-01"),
    (SHORT, "29.02.24", "2024-02-29"),
    (DAY | {"missing_values": ["9999-12-31"]}, "9999-12-31", None),
    (CODE, "1.0", "1"),
    (CODE, decimal.Decimal("50667.00"), "50667"),
    (CODE, np.float32(0.1), "0.1"),
    (CODE, float(np.float32(0.1)), "0.1"),
    (CODE, True, "true"),
    (CODE, b"male", "male"),
    (CODE, "Mu\u0308ller", "Müller"),
    (OTHER, "Meier", "other"),
    (CODE | {"missing_values": ["NA"]}, "NA", None),
    (CODE | {"values": ["NA", "DE"]}, "NA", "NA"),
    *(
        (column, cell, None)
        for column in (NUMBER, WHOLE, FLAG, DAY, OTHER)
        for cell in ("", None, np.nan, pd.NA)
    ),
    (DAY, pd.NaT, None),
    (WHOLE, np.ma.masked, None),
]

REFUSED = [
    (NUMBER, "72,5", "set `decimal: ','`"),
    (NUMBER, "1,234", "set `thousands`"),
    (NUMBER, "1.234.567", "set `thousands`"),
    (NUMBER, "$5", "keep the number alone"),
    (NUMBER, "12 %", "keep the number alone"),
    (NUMBER, "5 kg", "keep the number alone"),
    (NUMBER, "1_000", "number"),
    (NUMBER, "0x10", "number"),
    (NUMBER, "inf", "infinite"),
    (NUMBER, "1e999", "infinite"),
    (NUMBER, -np.inf, "infinite"),
    (NUMBER, "NaN", "list that word in `missing_values`"),
    (NUMBER, "2020-01-01", "looks like a date"),
    (NUMBER, True, "bool"),
    (NUMBER, 10**5000, "many hundred digits"),
    (NUMBER, decimal.Decimal("1e999999"), "many hundred digits"),
    (COMMA, "1.5", "number"),
    (WHOLE, "1.234", "has a fraction"),
    (WHOLE, "?", "list that word in `missing_values`"),
    (FLAG, "ja", "Declare a category"),
    (FLAG, "on", "Declare a category"),
    (FLAG, "2", "Declare a category"),
    (FLAG, "none", "list that word in `missing_values`"),
    (DAY, "31.01.2020", "set `format`"),
    (DAY, "01/31/2020", "set `format`"),
    (DAY, "2020-01-31x", "date"),
    (DAY, "20200101.0", "date"),
    (DAY, 43861, "day number of a spreadsheet"),
    (DAY, "2020-13-01", "date"),
    (GERMAN, "2020-01-31", "date"),
    (DAY, datetime.timedelta(3), "timedelta"),
    (CODE, "2", "list it, or declare `other: true`"),
    (CODE, "01", "list it"),
    (OTHER, "Male", "small and capital letters"),
    (OTHER, "NA", "list that word in `missing_values`"),
    (OTHER, "M\udcfcller", "Declare `encoding`"),
    (OTHER, b"M\xfcller", "Declare `encoding`"),
    (OTHER, [1], "list"),
    (OTHER, {"a": 1}, "dict"),
    (OTHER, "M\x00uller", None),
]


@pytest.mark.parametrize(("column", "cell", "value"), READ, ids=repr)
def test_a_cell_has_its_value(column, cell, value):
    column = Column.model_validate(column)
    assert column.value(column.code(cell)) == value


@pytest.mark.parametrize(("column", "cell", "reason"), REFUSED, ids=map(str, range(len(REFUSED))))
def test_a_cell_that_cannot_be_read_is_never_missing(column, cell, reason):
    column = Column.model_validate(column)
    if (
        reason is None
    ):  # a control character is part of the text: it is another value, and none of those listed
        assert column.value(column.code(cell)) == "other"
        return
    with pytest.raises(BadCell) as error:
        column.code(cell)
    assert reason in str(error.value)
    assert not isinstance(cell, str) or len(cell) < 4 or cell not in str(error.value)


def test_a_cell_out_of_range_is_counted_and_one_that_is_rounded_is_not():
    columns = Columns({"a": WHOLE | {"unit": 5}, "b": NUMBER})
    for cells in (["7", "1.005"], ["99999", "9999.004"], ["123456", "1e5"]):
        columns.read(cells, "A row")
    with pytest.raises(BadRow):
        columns.read(["x", "-1e5"], "A row")
    assert columns.clipped == {"a": 1, "b": 1}


def test_whole_numbers_beyond_2_to_the_53_are_exact():
    first = 2**53 + 1
    column = Column(kind="integer", min=first, max=first + 9)
    assert [column.value(column.code(cell)) for cell in (str(first), first + 2)] == [
        first,
        first + 2,
    ]


@pytest.mark.parametrize(
    ("cells", "settings"),
    [
        (["02116", "01234"], {"kind": "category", "values": ["01234", "02116"]}),
        (["007.1", "008.45"], {"kind": "category", "values": ["007.1", "008.45"]}),
        (["250.0", "250.00"], {"kind": "category", "values": ["250.0", "250.00"]}),
        (["NA", "DE"], {"kind": "category", "values": ["DE", "NA"]}),
        (["F", "N"], {"kind": "category", "values": ["F", "N"]}),
        (["yes", "Yes"], {"kind": "category", "values": ["Yes", "yes"]}),
        ([2**53 + 1, 2**53 + 3], {"kind": "category", "values": [str(2**53 + 1), str(2**53 + 3)]}),
        (["2020-01-01 10:30"], {"kind": "category", "values": ["2020-01-01 10:30"]}),
        (["18", "93"], {"kind": "integer", "min": 10, "max": 100}),
        (["0", "100"], {"kind": "integer", "min": -100, "max": 200}),
        (["1.0", "5.0", ""], {"kind": "integer", "min": 0, "max": 6, "missing": True}),
        (["0.12", "0.98"], {"kind": "real", "min": 0.1, "max": 1.0, "unit": 0.01}),
        (
            ["1.5", "NA"],
            {
                "kind": "real",
                "min": 1.4,
                "max": 1.6,
                "unit": 0.1,
                "missing": True,
                "missing_values": ("NA",),
            },
        ),
        (["2020-01-01", "2020-12-31"], {"kind": "date", "min": "2019-01-01", "max": "2021-12-31"}),
        ([True, False], {"kind": "boolean"}),
        ([f"{i}.{i:09}" for i in range(99)], None),
        ([[1], [2]], None),
    ],
    ids=repr,
)
def test_what_is_proposed_keeps_every_cell_apart_and_tells_no_extreme(cells, settings):
    proposed = Column.of(cells)
    assert proposed == (settings and Column.model_validate(settings))
    if proposed is not None:
        codes = [proposed.code(cell) for cell in cells]
        assert len(set(codes)) == len(set(cells))
        if proposed.min is not None:
            present = [code for code in codes if code < proposed.size]
            assert min(present) > 0
            assert max(present) < proposed.size - 1


def test_many_listed_values_take_no_time():
    column = Column(kind="category", values=[f"v{i}" for i in range(100_000)])
    assert len(column.texts(np.arange(100_000))) == 100_000
    assert [column.value(code) for code in range(99_990, 100_000)] == [
        f"v{i}" for i in range(99_990, 100_000)
    ]


@pytest.mark.parametrize("stars", ["3", 3.0, 3])
def test_a_field_is_written_as_it_is_declared(stars):
    structure = Structure(fields={"stars": {"kind": "integer", "min": 1, "max": 5}}, texts=["why"])
    assert json.loads(structure.read(json.dumps({"stars": stars, "why": "so"}))) == {
        "stars": 3,
        "why": "so",
    }
    assert '"stars": 3' in structure.read(json.dumps({"why": "so", "stars": stars}))
