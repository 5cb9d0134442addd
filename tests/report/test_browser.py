"""The pages in a real browser."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import axe_core_python
import numpy as np
import pytest
from PIL import Image
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from pe.engine.report import write_report
from pe.report.compare import compare, comparison_page
from pe.store.run import Run
from tests.report.conftest import make_run

CONTRAST = """
const luminance = ([r, g, b]) => {
  const part = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
};
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const ground = (node) => {
  for (; node; node = node.parentElement) {
    const found = rgb(getComputedStyle(node).backgroundColor);
    if (found.length < 4 || found[3] > 0) return found;
  }
  return [255, 255, 255];
};
const found = [];
for (const node of document.querySelectorAll("body *")) {
  const text = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  if (!text || !node.getClientRects().length || ["SCRIPT", "STYLE"].includes(node.tagName)) continue;
  const style = getComputedStyle(node);
  const ink = rgb(node instanceof SVGElement ? style.fill : style.color);
  const [a, b] = [luminance(ink), luminance(ground(node))].sort((x, y) => y - x);
  found.push([(a + 0.05) / (b + 0.05), node.tagName, node.textContent.slice(0, 40)]);
}
return found;
"""


AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def look(browser: Chrome, scheme: str, width: int) -> None:
    """Have the page that is shown, and those after it, in these colours and as wide as this."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def show(browser: Chrome, page: Path | str, scheme: str = "light", width: int = 1100) -> None:
    browser.get("about:blank")  # else what the last page asks for, whose server is gone, may be logged late
    browser.get_log("browser")
    browser.get_log("performance")
    look(browser, scheme, width)
    browser.get(page if isinstance(page, str) else page.as_uri())


def findings(browser: Chrome) -> list[str]:
    """What axe-core finds serious or critical on the page that is shown."""
    browser.execute_script(AXE)
    found = browser.execute_async_script("axe.run().then(arguments[0])")
    assert len(found["passes"]) > 10
    bad = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    return [f"{one['id']}: {node['html']}" for one in bad for node in one["nodes"]]


@pytest.fixture(params=[False, True], ids=["shareable", "confidential"])
def page(run: Path, request: pytest.FixtureRequest) -> Path:
    metrics = {
        "version": 1,
        "utility": {
            "mlp": {
                "synthetic": {
                    "accuracy": {"mean": 0.8, "std": 0.01, "values": [0.79, 0.81]},
                    "per_class": {"a": 0.9, "b": None},
                    "confusion": [[9, 1], [0, 0]],
                },
                "real": {"accuracy": {"mean": 0.9, "std": None, "values": [0.9]}, "per_class": {}, "confusion": []},
            }
        },
        "chosen_classifier": {"synthetic": "mlp"},
        "fidelity": {"pixels": {"frechet": 12.5, "kernel": {"mean": 0.1, "standard_error": 0.01}, "precision": 0.5}},
        "memorisation": {
            "embedding": "pixels",
            "generated_to_private": {"levels": [0, 0.5, 1], "quantiles": [1.0, 2.0, 5.0]},
            "heldout_to_private": {"levels": [0, 0.5, 1], "quantiles": [0.5, 2.5, 6.0]},
            "membership": {"auc": 0.51, "low": 0.45, "high": 0.57, "level": 0.95},
        },
        "notes": ["A note."],
    }
    (run / "confidential" / "metrics.json").write_text(json.dumps(metrics))
    return write_report(run, confidential=request.param)


def test_it_opens_without_an_error_and_asks_nobody_for_anything(browser: Chrome, page: Path) -> None:
    show(browser, page)
    assert not browser.get_log("browser")
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [one["params"] for one in events if one["method"] == "Network.requestWillBeSent"]
    # a browser that has just begun may still ask for its own first page
    urls = {one["request"]["url"] for one in requests if one["documentURL"] == page.as_uri()}
    assert page.as_uri() in urls
    assert [url for url in urls if url != page.as_uri() and not url.startswith("data:")] == []


def test_the_slider_shows_one_iteration_and_obeys_the_keyboard(browser: Chrome, page: Path) -> None:
    show(browser, page)
    slider = browser.find_element(By.ID, "iteration")

    def shown() -> list[str]:
        figures = browser.find_elements(By.CSS_SELECTOR, ".generation")
        assert len(figures) == 4
        return [figure.get_attribute("data-name") for figure in figures if figure.is_displayed()]

    assert shown()[0].startswith("S3, after 3 rounds")
    slider.send_keys(Keys.HOME)
    assert shown() == ["S0, straight from the generator"]
    slider.send_keys(Keys.ARROW_RIGHT)
    assert shown() == ["S1, after 1 round of votes, varied by degree 0.5"]
    assert slider.get_attribute("aria-valuetext") == shown()[0]
    assert browser.find_element(By.ID, "shown").text == shown()[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_the_contrast_of_wcag_aa(browser: Chrome, page: Path, scheme: str) -> None:
    show(browser, page, scheme)
    found = browser.execute_script(CONTRAST)
    assert len(found) > 50
    assert min(found)[0] >= 4.5, min(found)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_screen_reader_and_a_keyboard_find_their_way(browser: Chrome, page: Path, scheme: str) -> None:
    show(browser, page, scheme)
    assert findings(browser) == []
    browser.execute_script("[...document.images].at(-1).removeAttribute('alt')")  # one that is shown
    assert findings(browser)[0].startswith("image-alt: <img")


@pytest.mark.parametrize(("scheme", "bright"), [("light", True), ("dark", False)])
def test_it_is_light_or_dark_as_the_reader_wants(browser: Chrome, page: Path, scheme: str, bright: bool) -> None:
    show(browser, page, scheme)
    picture = np.asarray(Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("L"))
    assert (np.median(picture) > 200) == bright
    assert (np.median(picture) < 60) != bright
    assert picture.std() > 10


def test_it_fits_on_a_phone(browser: Chrome, page: Path) -> None:
    show(browser, page, width=390)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390


def test_every_picture_says_what_it_shows(browser: Chrome, page: Path) -> None:
    show(browser, page)
    pictures = browser.find_elements(By.CSS_SELECTOR, "img")
    assert len(pictures) >= 8
    assert all(picture.get_attribute("alt") for picture in pictures)
    assert all(chart.get_attribute("aria-label") for chart in browser.find_elements(By.CSS_SELECTOR, "svg"))


def test_on_paper_every_iteration_is_there_and_no_slider(browser: Chrome, page: Path) -> None:
    show(browser, page)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert all(figure.is_displayed() for figure in browser.find_elements(By.CSS_SELECTOR, ".generation"))
    assert not browser.find_element(By.CSS_SELECTOR, ".slider").is_displayed()


def test_the_confidential_page_says_so_in_red(browser: Chrome, page: Path) -> None:
    show(browser, page)
    banners = browser.find_elements(By.CSS_SELECTOR, ".banner")
    said = [banner.text.startswith("Confidential.") for banner in banners]
    assert said == ([True] if page.parent.name == "confidential" else [])


@pytest.fixture
def comparison(run: Path) -> Path:
    """Three runs with names as long as they come, one of them evaluated."""
    names = [f"camelyon17-imagenet64-cond-2025112{k}T080000Z-ab1{k}" for k in range(3)]
    folders = [Path(shutil.copytree(run, run.with_name(name))) for name in names]
    metrics = {"version": 1, "utility": {"mlp": {"synthetic": {"accuracy": {"mean": 0.75, "std": 0.0}}}}}
    (folders[0] / "confidential" / "metrics.json").write_text(json.dumps(metrics))
    path = run.with_name("comparison.html")
    path.write_text(comparison_page(compare([Run.open(folder) for folder in folders])), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [1200, 500])
def test_three_runs_are_compared_without_scrolling(browser: Chrome, comparison: Path, width: int) -> None:
    show(browser, comparison, width=width)
    tables = "return [...document.querySelectorAll('.scroll')].map((one) => one.scrollWidth - one.clientWidth)"
    assert browser.execute_script(tables) == [0] * 5
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_comparison_has_the_colours_that_the_reader_wants(browser: Chrome, comparison: Path, scheme: str) -> None:
    show(browser, comparison, scheme, width=500)
    assert min(browser.execute_script(CONTRAST))[0] >= 4.5
    sheet = browser.find_element(By.CSS_SELECTOR, ".sheet")
    picture = np.asarray(Image.open(io.BytesIO(sheet.screenshot_as_png)).convert("L"))
    assert (picture[:3].min() > 200, picture[:3].max() < 60) == (scheme == "light", scheme == "dark")
    assert (picture[:, :3].min() > 200, picture[:, :3].max() < 60) == (scheme == "light", scheme == "dark")


def test_where_nothing_evolved_the_caption_is_seen(browser: Chrome, tmp_path: Path) -> None:
    show(browser, write_report(make_run(tmp_path, iterations=0, degree=0.5).folder))
    assert browser.find_element(By.CSS_SELECTOR, ".generation figcaption").is_displayed()
    assert not browser.find_elements(By.CSS_SELECTOR, ".slider")
