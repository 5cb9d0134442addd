"""A run over texts is shown as text: escaped, each in its own direction, folded, searchable."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

import pe
from pe.data.samples import Conditions
from pe.data.texts import Texts
from pe.engine.report import write_report
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, VariationRequest
from pe.private.tables import TextTable
from pe.report.compare import compare, comparison_page
from tests.report.test_browser import CONTRAST, show

TOLD = [
    "<script>document.title = 'broken'</script> & <b>bold</b>",
    "שלום לכולם, זה טקסט בעברית.",
    "これは日本語の文章です。" * 40,
    "Naïve café\nwith a second line",
    "safe \u202eevil",
]
SECRET = "PRIVATE <i>record</i> number"


class Speaker:
    """Says one of TOLD; a variation another one."""

    info = PluginInfo(modality="texts", hosts=())
    capabilities = Capabilities(max_chunk=64)

    def random_api(self, request: RandomRequest) -> Answer:
        return Answer(Texts.of([TOLD[int(seed) % len(TOLD)] for seed in request.seeds]), Conditions())

    def variation_api(self, request: VariationRequest) -> Answer:
        return Answer(Texts.of([TOLD[int(seed) % len(TOLD)] for seed in request.seeds]))


class Letters:
    """Embeds a text as how often it has some letters, and its length."""

    info = PluginInfo(modality="texts", hosts=())
    batch_size = 32

    def embed(self, samples: Texts) -> npt.NDArray[np.float32]:
        rows = [[*(text.count(letter) for letter in "aeinstל本"), len(text) / 100] for text in samples.strings]
        return np.array(rows, np.float32)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    with (folder / "private.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        rows.writerows([f"{SECRET} {i}", "ab"[i % 2]] for i in range(40))
    private = TextTable(folder / "private.csv", classes=["a", "b"], label_column="label", declared_size=40)
    terms = {"epsilon": 5.0, "delta": 1e-3, "population": 20, "iterations": 2, "degree": [0.5, 0.2]}
    run = pe.evolve(private, Speaker(), embedding=Letters(), out=folder / "run", **terms)
    evaluated = Path(run.folder / "confidential" / "metrics.json")
    pairs = [{"generated": TOLD[0], "private": f"{SECRET} 1", "distance": 0.5}]
    (evaluated.parent / "nearest_pairs.json").write_text(json.dumps(pairs))
    metrics = {
        "version": 1,
        "run": {"noun": "texts", "images": 20, "finished": True, "iteration": 2},
        "test": {"images": 9, "path": "t.csv"},
        "texts": {
            "levels": [0.05, 0.5, 0.95],
            "sets": {
                "synthetic": {
                    "samples": 2,
                    "words": [1, 2, 3],
                    "bytes": [1, 2, 3],
                    "vocabulary": 7,
                    "covered": 0.5,
                    "divergence": 0.25,
                }
            },
        },
        "memorisation": {
            "nearest_pairs": {"files": ["confidential/nearest_pairs.json"]},
            "overlap": {"run": 8, "generated": 20, "with_a_run": 3, "heldout": 9, "heldout_with_a_run": 1},
            "canaries": [{"canary": "<u>planted</u>", "private": 1, "generated": 0, "longest_part": 0.5}],
        },
    }
    evaluated.write_text(json.dumps(metrics))
    return run.folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def test_texts_are_shown_escaped_folded_and_in_their_own_direction(browser: Chrome, run: Path) -> None:
    show(browser, write_report(run))
    assert "broken" not in browser.title
    shown = [one for one in browser.find_elements(By.CSS_SELECTOR, ".generation li") if one.is_displayed()]
    found = {one.get_attribute("textContent") for one in shown}
    assert set(TOLD) >= found
    assert TOLD[0] in found
    direction = "return getComputedStyle(arguments[0].querySelector('[dir]')).direction"
    for one in shown:
        hebrew = one.get_attribute("textContent") == TOLD[1]
        assert browser.execute_script(direction, one) == ("rtl" if hebrew else "ltr")
    folded = next(one for one in shown if one.get_attribute("textContent") == TOLD[2])
    small = folded.size["height"]
    folded.find_element(By.TAG_NAME, "summary").click()
    assert folded.size["height"] > 2 * small
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert not browser.get_log("browser")


def test_a_word_is_found_whatever_its_case_and_accents(browser: Chrome, run: Path) -> None:
    show(browser, write_report(run))
    field = browser.find_element(By.ID, "search")
    field.send_keys("NAIVE cafe")
    shown = [one for one in browser.find_elements(By.CSS_SELECTOR, ".generation li") if one.is_displayed()]
    assert {one.get_attribute("textContent") for one in shown} == {TOLD[3]}
    assert "in all iterations" in browser.find_element(By.ID, "hits").text
    field.clear()
    field.send_keys("日本")
    shown = [one for one in browser.find_elements(By.CSS_SELECTOR, ".generation li") if one.is_displayed()]
    assert {one.get_attribute("textContent") for one in shown} == {TOLD[2]}


def test_only_the_confidential_page_shows_private_texts(browser: Chrome, run: Path) -> None:
    assert "PRIVATE" not in write_report(run).read_text()
    page = write_report(run, confidential=True)
    show(browser, page, width=420)
    assert [one.text for one in browser.find_elements(By.CSS_SELECTOR, ".pairs .pair")] == [TOLD[0], f"{SECRET} 1"]
    words = browser.find_element(By.TAG_NAME, "main").text
    assert "3 share 8 words in a row" in " ".join(words.split())
    assert "<u>planted</u>" in words
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_in_both_schemes(browser: Chrome, run: Path, scheme: str) -> None:
    show(browser, write_report(run), scheme)
    low = [one for one in browser.execute_script(CONTRAST) if one[0] < 4.5]
    assert not low


def test_the_sheet_has_texts_as_large_as_they_are_written_and_a_comparison_has_them_as_text(made: Path) -> None:
    run = pe.Run(made)
    last = run.synthetic
    with Image.open(made / "evolution.png") as sheet:
        found = np.asarray(sheet.convert("RGB"))
    card = np.asarray(last.samples.take([int(np.flatnonzero(last.labels == 0)[0])]).pictures()[0])[1:100]
    height, width, _ = card.shape
    rows = [y for y in range(len(found) - height) if (found[y : y + height, 56 : 56 + width] == card).all()]
    assert rows  # a line of the sheet is above it
    page = comparison_page(compare([run, run]))
    assert "<script>document.title" not in page
    assert page.count('<ul class="texts" aria-label="Samples of label a in S2') == 2
    assert page.count("data:image") == 0
