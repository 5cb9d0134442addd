"""The servers, each started once for all tests, and the page of what was found."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.peers import models, servers
from tests.peers.routes import KEYS, ROUTES, Route

PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "peers.md"
COLUMNS = ("RANDOM_API", "VARIATION_API", "distance at 0.1, 0.5, 1", "equal seeds", "several parents", "a run of 40")

Findings = dict[str, dict[str, str]]


@pytest.fixture(scope="session", autouse=True)
def keys() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        for name, key in KEYS.items():
            patched.setenv(name, key)
        yield


@pytest.fixture(scope="session")
def litellm(tmp_path_factory: pytest.TempPathFactory, keys: None) -> Iterator[str]:
    with servers.litellm(tmp_path_factory.mktemp("litellm")) as url:
        yield url


@pytest.fixture(scope="session")
def xinference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("xinference")
    with servers.xinference(folder, models.tiny_stable_diffusion(folder / "model")) as url:
        yield url


@pytest.fixture(scope="session")
def stable_diffusion_cpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("sd_cpp")
    model = models.blank_stable_diffusion(folder / "model")
    autoencoder = models.faithful_autoencoder(folder / "taesd.safetensors")
    with servers.stable_diffusion_cpp(folder, model, autoencoder) as url:
        yield url


@pytest.fixture(scope="session", params=ROUTES, ids=lambda route: route.name)
def route(request: pytest.FixtureRequest) -> Route:
    return request.param


@pytest.fixture
def url(route: Route, request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(route.server)


@pytest.fixture(scope="session")
def findings() -> Iterator[Findings]:
    """Route → column → what was found; when all was found, the page of results is written anew."""
    found: Findings = {route.name: {} for route in ROUTES}
    yield found
    if all(set(COLUMNS) <= set(columns) for columns in found.values()):
        PAGE.write_text(_page(found), encoding="utf-8")


def _page(found: Findings) -> str:
    versions = [
        f"{name} {_version(folder, package)}"
        for name, folder, package in (
            ("LiteLLM", "litellm", "litellm"),
            ("Xinference", "xinference", "xinference"),
            ("stable-diffusion.cpp of stable-diffusion-cpp-python", "stable-diffusion.cpp", ""),
        )
    ]
    rows = [f"| {name} | {' | '.join(columns[each] for each in COLUMNS)} |" for name, columns in found.items()]
    said = [
        f"| {name} | {case} | {words} |"
        for name, columns in found.items()
        for case, words in columns.items()
        if case not in COLUMNS
    ]
    return "\n".join(
        [
            "# Foreign servers",
            "",
            "Written by `make test-peers`, which installs servers of the package index, starts them on this machine",
            "and asks them through our adapters. Models are built from configurations; parents are flat, so that a",
            "distance (mean difference, grey levels) tells how far a variation went from its parent.",
            "",
            f"{datetime.date.today()}; {'; '.join(versions)}; Python {platform.python_version()}, "
            f"{os.cpu_count()} cores of {_processor()}.",
            "",
            f"| route | {' | '.join(COLUMNS)} |",
            f"| --- |{' --- |' * len(COLUMNS)}",
            *rows,
            "",
            "What they say:",
            "",
            "| route | of | words |",
            "| --- | --- | --- |",
            *said,
            "",
        ]
    )


def _version(folder: str, package: str) -> str:
    home = servers.ENVIRONMENTS / folder
    if not package:
        return next(home.glob("stable_diffusion_cpp_python-*.tar.gz")).name.split("-")[-1].removesuffix(".tar.gz")
    site = [str(path) for path in home.glob("lib/python*/site-packages")]
    return next(each.version for each in distributions(name=package, path=site))


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
