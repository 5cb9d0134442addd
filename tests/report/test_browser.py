"""The pages in a real browser."""

import json
import shutil

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from pe.engine.report import write_report
from pe.engine.viewing import ViewServer
from pe.report.compare import compare, comparison_page
from pe.store.run import Run
from tests.report.conftest import check_readable, findings, metrics_of, show

METRICS = metrics_of(synthetic=6.0, unevolved=4.0) | {
    "fidelity": {
        "pixels": {
            "frechet": 12.5,
            "kernel": {"mean": 0.1, "standard_error": 0.01},
            "precision": 0.5,
        }
    },
    "memorisation": {
        "embedding": "pixels",
        "generated_to_private": {"levels": [0, 0.5, 1], "quantiles": [1.0, 2.0, 5.0]},
        "heldout_to_private": {"levels": [0, 0.5, 1], "quantiles": [0.5, 2.5, 6.0]},
        "membership": {"auc": 0.51, "low": 0.45, "high": 0.57, "level": 0.95},
    },
    "notes": ["A note."],
}


def displayed(browser, selector):
    return [one for one in browser.find_elements(By.CSS_SELECTOR, selector) if one.is_displayed()]


def test_the_confidential_page_can_be_read_by_all_and_asks_nobody_for_anything(browser, run):
    (run / "confidential" / "metrics.json").write_text(json.dumps(METRICS))
    path = write_report(run, confidential=True)
    show(browser, path)
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [one["params"] for one in events if one["method"] == "Network.requestWillBeSent"]
    # a browser that has just begun may still ask for its own first page
    urls = {one["request"]["url"] for one in requests if one["documentURL"] == path.as_uri()}
    assert [url for url in urls if not url.startswith("data:")] == [path.as_uri()]
    (banner,) = browser.find_elements(By.CSS_SELECTOR, ".banner")
    assert banner.text.startswith("Confidential.")
    check_readable(browser)
    browser.execute_script(
        "[...document.images].at(-1).removeAttribute('alt')"
    )  # one that is shown
    assert findings(browser)[0].startswith("image-alt: <img")
    small, large = displayed(browser, "main img")[0], browser.find_element(By.TAG_NAME, "dialog")
    small.send_keys(Keys.ENTER)
    assert large.find_element(By.TAG_NAME, "img").size["height"] > 2 * small.size["height"]
    large.click()
    assert displayed(browser, "dialog") == []
    slider = browser.find_element(By.ID, "iteration")
    for key, name in (
        (Keys.END, "S3, after 3 rounds of votes, varied by degree 0.1"),
        (Keys.HOME, "S0, straight from the generator"),
        (Keys.ARROW_RIGHT, "S1, after 1 round of votes, varied by degree 0.5"),
    ):
        slider.send_keys(key)
        assert [one.get_attribute("data-name") for one in displayed(browser, ".generation")] == [
            name
        ]
        assert (
            slider.get_attribute("aria-valuetext")
            == browser.find_element(By.ID, "shown").text
            == name
        )
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert len(displayed(browser, ".generation")) == 4
    assert displayed(browser, ".slider") == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shareable", "comparison"])
def test_the_other_pages_can_be_read_by_all(browser, run, kind):
    path = write_report(run)
    if kind == "comparison":
        (run / "confidential" / "metrics.json").write_text(json.dumps(METRICS))
        path = run.with_name("comparison.html")
        path.write_text(comparison_page(compare([Run.open(run)] * 3)), encoding="utf-8")
    show(browser, path)
    check_readable(browser)


@pytest.mark.parametrize("confidential", [False, True])
def test_the_pages_of_a_folder_of_runs_lead_to_one_another_and_can_be_read_by_all(
    browser, run, confidential
):
    shutil.copytree(run, run.parent / "other <b>")
    (run / "confidential" / "metrics.json").write_text(json.dumps(METRICS))

    def follow(link, title):
        browser.find_element(By.LINK_TEXT, link).click()
        WebDriverWait(browser, 30).until(
            lambda _: browser.find_element(By.TAG_NAME, "h1").text == title
        )
        check_readable(browser)

    with ViewServer([run.parent], confidential) as server:
        show(browser, server.address)
        check_readable(browser)
        follow("other <b>", "other <b>")
        follow("Live", "other <b>")
        assert [one.text for one in displayed(browser, "nav a")][:3] == [
            "All runs",
            "Live",
            "Report",
        ]
        if confidential:
            browser.execute_script("scrollTo(0, document.body.scrollHeight)")
            assert (
                browser.execute_script(
                    "return document.querySelector('.banner').getBoundingClientRect().top"
                )
                == 0
            )
            follow("Confidential report", "other <b>: for its owner")
        follow("Report", "other <b>")
        follow("All runs", "All runs")
        for box in browser.find_elements(By.NAME, "run"):
            box.click()
        browser.find_element(By.TAG_NAME, "button").click()
        WebDriverWait(browser, 30).until(lambda _: browser.title == "Runs compared")
        check_readable(browser)
        assert ("Internal, not for sharing" in browser.page_source) == confidential
        follow("run", "run")
