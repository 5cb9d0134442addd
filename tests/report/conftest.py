"""Runs to report on, and a real browser to open the reports with."""

import shutil
from pathlib import Path

import axe_core_python
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

import pe
from pe.engine.report import write_report
from tests.durability.driver import make_private
from tests.generators import Mean, Shades

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
)
FLAGS += ("--disable-background-networking", "--disable-component-update", "--disable-sync")
AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def make_run(folder, api=None, **settings):
    """A small run with two labels."""
    make_private(folder / "private.npz")
    data = pe.ImageNpz(
        folder / "private.npz", size=4, channels=1, classes=["a", "b"], declared_size=60
    )
    given = {
        "population": 40,
        "iterations": 3,
        "lookahead": 2,
        "degree": [0.5, 0.3, 0.1],
        "epsilon": 2,
        "delta": 1e-5,
    }
    return pe.evolve(
        data, api or Shades(), embedding=Mean(), out=folder / "run", **given | settings
    )


def metrics_of(**scores):
    """Metrics by which a classifier reaches these scores after learning from each set."""
    trained = {
        name: {
            "place": {
                "value": 0.5 + score / 20,
                "score": score,
                "low": score - 1,
                "high": min(score + 1, 10),
                "learner": "network",
            },
            "samples": 40,
            "accuracy": 0.8,
            "log_loss": 0.5,
            "recalls": {"a": 0.9, "b": None},
            "confusion": [[9, 1], [0, 0]],
        }
        for name, score in (scores | {"real": 10.0}).items()
    }
    brought = {
        name: {
            "score": scores["synthetic"] - score,
            "low": scores["synthetic"] - score - 0.5,
            "high": scores["synthetic"] - score + 0.5,
        }
        for name, score in scores.items()
        if name != "synthetic"
    }
    judgement = {"measure": "AUC", "trained": trained, "brought": brought}
    words = {"lines": [["summary", "Fair for training."]], "next": "Wait.", "more": ["Ask."]}
    return {"version": 2, "judgement": judgement | words}


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("made")).folder


@pytest.fixture(scope="session")
def page(made, tmp_path_factory):
    """The shareable page of that run."""
    return write_report(shutil.copytree(made, tmp_path_factory.mktemp("page") / "run")).read_text(
        encoding="utf-8"
    )


@pytest.fixture
def run(made, tmp_path):
    """A copy of a finished run, to do with as a test likes."""
    return shutil.copytree(made, tmp_path / "run")


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


def show(browser, page, width=1100):
    browser.get(
        "about:blank"
    )  # else what the last page asks for, whose server is gone, may be logged late
    browser.get_log("browser")
    browser.get_log("performance")
    look(browser, "light", width)
    browser.get(page if isinstance(page, str) else page.as_uri())


def look(browser, scheme, width):
    """Have the page that is shown, and those after it, in these colours and as wide as this."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def findings(browser):
    """What axe-core finds serious or critical on the page that is shown: contrast, names, what a
    keyboard needs.
    """
    browser.execute_script(AXE)
    found = browser.execute_async_script("axe.run().then(arguments[0])")
    assert len(found["passes"]) > 10
    bad = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    return [f"{one['id']}: {node['html']}" for one in bad for node in one["nodes"]]


def check_readable(browser):
    """Check the page that is shown by day and by night, wide and on a phone."""
    for scheme, width, paper in (
        ("light", 1100, "rgb(253, 253, 252)"),
        ("dark", 390, "rgb(21, 24, 27)"),
    ):
        look(browser, scheme, width)
        assert (
            browser.execute_script("return getComputedStyle(document.body).backgroundColor")
            == paper
        )
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert findings(browser) == []
    unnamed = (
        'return document.querySelectorAll(\'img:not([alt]), img[alt=""], '
        "svg:not([aria-label])').length"
    )
    assert browser.execute_script(unnamed) == 0
    assert not browser.get_log("browser")
