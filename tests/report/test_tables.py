"""A run over a table shows its columns beside the public start, their associations, and rows to
page through.
"""

import json
import re

import numpy as np
import pytest
from selenium.webdriver.common.by import By

import pe
from pe.data.columns import Column, Columns
from pe.engine.report import write_report
from pe.engine.viewing import ViewServer
from pe.report.compare import compare, comparison_page
from tests.report.conftest import check_readable, show
from tests.report.test_browser import displayed

COLUMNS = {
    "a<b": {"kind": "integer", "min": 0, "max": 99, "note": "of <i>what</i>"},
    "city": {"kind": "category", "values": ["Köln", "Bonn"], "other": True, "missing": True},
    "born": {"kind": "date", "min": "1950-01-01", "max": "1999-12-31"},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    lines = [
        "a<b,city,born,risk",
        *(f"1234567,SECRET,1700-03-04,{label}" for label in ("low", "high") * 30),
    ]
    (folder / "private.csv").write_text("\n".join(lines) + "\n")
    private = pe.RowTable(
        folder / "private.csv",
        columns=COLUMNS,
        label_column="risk",
        classes=["low", "high"],
        declared_size=60,
    )
    terms = {"epsilon": 20.0, "delta": 1e-3, "population": 60, "iterations": 2, "degree": 0.3}
    return pe.evolve(private, pe.api("mutate"), out=folder / "run", **terms)


def test_the_page_has_every_column_beside_the_start_and_no_record(run):
    page = write_report(run.folder).read_text()
    assert all(secret not in page for secret in ("SECRET", "1234567", "1700"))
    heads = re.findall(r"<figcaption><b>(.*?)</b>(.*?)</figcaption>", page)
    assert heads == [("a&lt;b", " of &lt;i&gt;what&lt;/i&gt;"), ("city", ""), ("born", "")]
    assert page.count('<th scope="col">S0</th><th scope="col">S2</th>') == 3
    assert page.count('class="matrix"') == 2
    assert page.count("<tr><td>") >= 60
    assert "<b>" not in comparison_page(compare([run, run]))


def test_the_owner_s_page_has_what_an_evaluation_counted_in_real_rows(run):
    shares = {name: [[f"of {name}", 0.5]] for name in COLUMNS}
    matrix = [[*COLUMNS], [[1.0, 0.25, 0.25, 0.25]] * 4]
    metrics = {
        "version": 2,
        "table": {"sets": {}, "reference": {"shares": shares, "associations": matrix}},
    }
    (run.confidential / "metrics.json").write_text(json.dumps(metrics))
    page = write_report(run.folder, confidential=True).read_text()
    assert page.count('<th scope="col">real</th>') == 3
    assert "50.0%" in page
    assert page.count('class="matrix"') == 3
    assert '<th scope="col">real</th>' not in write_report(run.folder).read_text()


def test_bins_follow_from_the_declaration_and_hold_every_row():
    column = Column(kind="integer", min=1, max=40, missing=True)
    shares = column.shares(np.array([0, 0, 39, 40]))
    assert (shares[0], shares[-2], shares[-1]) == (
        ("1 – 3", 0.5),
        ("39 – 40", 0.25),
        ("(missing)", 0.25),
    )
    assert len(shares) == 17
    column = Column(kind="category", values=[str(i) for i in range(40)])
    assert [name for name, _ in column.shares(np.array([7]))] == list(column.values)


def test_an_association_is_1_for_a_copy_and_0_for_an_independent_column():
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 16, (2, 5000))
    column = {"kind": "integer", "min": 0, "max": 15}
    codes = np.stack([one, 15 - one, other], axis=1)
    names, matrix = Columns({"a": column, "b": column, "c": column}).associations(
        codes, np.zeros(5000, np.int64)
    )
    assert names == ["a", "b", "c"]
    assert matrix[0][1] == pytest.approx(1, abs=1e-3)
    assert matrix[0][2] < 0.05
    assert matrix[0][3] == 0


@pytest.mark.slow
def test_rows_are_paged_and_every_page_can_be_read_by_all(browser, run):
    show(browser, write_report(run.folder))
    assert len(displayed(browser, "#rows tbody tr")) == 20
    later, place = browser.find_element(By.ID, "later"), browser.find_element(By.ID, "place")
    assert not browser.find_element(By.ID, "earlier").is_enabled()
    for _ in range(2):
        later.click()
    assert place.text == "Rows 41 to 60 of 60"
    assert not later.is_enabled()
    check_readable(browser)
    show(browser, write_report(run.folder, confidential=True))
    check_readable(browser)
    with ViewServer([run.folder]) as server:
        show(browser, server.address)
        check_readable(browser)
