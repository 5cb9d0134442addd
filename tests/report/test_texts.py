"""A run over texts is shown as text: escaped, each in its own direction, folded, searchable."""

import csv
import json

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import pe
from adapters.pools import PublicTexts
from embeddings.tfidf import TfIdf
from pe.engine.report import write_report
from pe.private.tables import TextTable
from pe.report.compare import compare, comparison_page
from tests.report.conftest import check_readable, show
from tests.report.test_browser import displayed

TOLD = [
    "<script>document.title = 'broken'</script> & <b>bold</b>",
    "שלום לכולם, זה טקסט בעברית.",
    "これは日本語の文章です。" * 40,
    "Naïve café\nwith a second line",
    "safe \u202eevil",
]
SECRET = "PRIVATE <i>record</i> number"
LENGTHS = {
    "samples": 2,
    "words": [1, 2, 3],
    "bytes": [1, 2, 3],
    "vocabulary": 7,
    "covered": 0.5,
    "divergence": 0.25,
}
METRICS = {
    "version": 2,
    "run": {"noun": "texts", "images": 20, "finished": True, "iteration": 2},
    "test": {"images": 9, "path": "t.csv"},
    "texts": {"levels": [0.05, 0.5, 0.95], "sets": {"synthetic": LENGTHS}},
    "memorisation": {
        "nearest_pairs": {"files": ["confidential/nearest_pairs.json"]},
        "overlap": {
            "run": 8,
            "generated": 20,
            "with_a_run": 3,
            "heldout": 9,
            "heldout_with_a_run": 1,
        },
        "canaries": [
            {"canary": "<u>planted</u>", "private": 1, "generated": 0, "longest_part": 0.5}
        ],
    },
}


def table(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    records = table(folder / "private.csv", [(f"{SECRET} {i}", "ab"[i % 2]) for i in range(40)])
    private = TextTable(records, classes=["a", "b"], label_column="label", declared_size=40)
    pool = PublicTexts(path=table(folder / "pool.csv", [(text, "") for text in TOLD]))
    terms = {"epsilon": 5.0, "delta": 1e-3, "population": 20, "iterations": 2, "degree": [0.5, 0.2]}
    run = pe.evolve(private, pool, embedding=TfIdf(), out=folder / "run", **terms)
    pairs = [{"generated": TOLD[0], "private": f"{SECRET} 1", "distance": 0.5}]
    for name, content in (("nearest_pairs", pairs), ("metrics", METRICS)):
        (run.confidential / f"{name}.json").write_text(json.dumps(content))
    return run


def test_texts_are_escaped_on_every_page_and_private_ones_on_the_confidential_one_alone(run):
    page, internal = (
        write_report(run.folder, confidential=owner).read_text() for owner in (False, True)
    )
    assert "PRIVATE" not in page
    for escaped in ("PRIVATE &lt;i&gt;record&lt;/i&gt; number 1", "&lt;u&gt;planted&lt;/u&gt;"):
        assert escaped in internal
    assert "3 share 8 words in a row" in " ".join(internal.split())
    both = comparison_page(compare([run, run]))
    assert not any("<script>document.title" in each for each in (page, internal, both))
    assert both.count('<ul class="texts" aria-label="Samples of label a in S2') == 2
    assert both.count("data:image") == 0


@pytest.mark.slow
def test_texts_are_shown_folded_in_their_own_direction_and_are_found_whatever_their_case_and_accents(
    browser, run
):
    show(browser, write_report(run.folder))
    browser.find_element(By.ID, "iteration").send_keys(Keys.HOME)
    shown = {one.get_attribute("textContent"): one for one in displayed(browser, ".generation li")}
    assert shown.keys() == set(TOLD)
    direction = "return getComputedStyle(arguments[0].querySelector('[dir]')).direction"
    for text, one in shown.items():
        assert browser.execute_script(direction, one) == ("rtl" if text == TOLD[1] else "ltr")
    small = shown[TOLD[2]].size["height"]
    shown[TOLD[2]].find_element(By.TAG_NAME, "summary").click()
    assert shown[TOLD[2]].size["height"] > 2 * small
    for words, text in (("NAIVE cafe", TOLD[3]), ("日本", TOLD[2])):
        field = browser.find_element(By.ID, "search")
        field.clear()
        field.send_keys(words)
        assert {
            one.get_attribute("textContent") for one in displayed(browser, ".generation li")
        } == {text}
    assert "in all iterations" in browser.find_element(By.ID, "hits").text
    check_readable(browser)
    show(browser, write_report(run.folder, confidential=True))
    assert [one.text for one in browser.find_elements(By.CSS_SELECTOR, ".pairs .pair")] == [
        TOLD[0],
        f"{SECRET} 1",
    ]
    check_readable(browser)
