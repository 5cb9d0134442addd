"""Runs to report on, and a real browser to open the reports with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

import pe
from tests.durability.driver import make_private
from tests.generators import Mean, Shades

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def make_run(folder: Path, **settings: object) -> pe.Run:
    """A small run with two labels."""
    make_private(folder / "private.npz")
    data = pe.ImageNpz(folder / "private.npz", size=4, channels=1, classes=["a", "b"], declared_size=60)
    given = {"population": 40, "iterations": 3, "lookahead": 2, "degree": [0.5, 0.3, 0.1], "epsilon": 2, "delta": 1e-5}
    return pe.evolve(data, Shades(), embedding=Mean(), out=folder / "run", **given | settings)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made")).folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, to do with as a test likes."""
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service("/usr/bin/chromedriver"))
    yield driver
    driver.quit()
