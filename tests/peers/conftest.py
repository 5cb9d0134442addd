"""The servers, each started once for all tests, and the page of what was found."""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions, version
from pathlib import Path

import pytest

from tests.peers import models, servers
from tests.peers.routes import KEYS, ROUTES, Route

PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "peers.md"
TITLE = """# Foreign servers

Written by `make test-peers`, which installs servers of the package index, starts them on this machine
and asks them through our adapters.
"""
IMAGES = """Models are built from configurations; parents are flat, so that a distance (mean difference, grey levels)
tells how far a variation went from its parent."""
TEXTS = """Asked by `chat`. Behind transformers' server is a tiny model of random weights; LiteLLM answers with mocked
texts, or hands on to a scripted server of OpenAI's format."""
COLUMNS = ("RANDOM_API", "VARIATION_API", "distance at 0.1, 0.5, 1", "equal seeds", "several parents", "a run of 40")
CHATS = ("transformers serve", "LiteLLM's proxy")
CHAT_COLUMNS = ("tokens", "`n`", "`pe doctor`", "a run of 20")

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
    """Route → column → what was found; when all was found, its part of the page of results is written anew."""
    found: Findings = {route.name: {} for route in ROUTES}
    yield found
    if all(set(COLUMNS) <= set(columns) for columns in found.values()):
        sd = "stable-diffusion.cpp of stable-diffusion-cpp-python"
        versions = {"LiteLLM": _version("litellm"), "Xinference": _version("xinference"), sd: _sd_version()}
        _write("Images", [IMAGES, "", *_measured(versions), *_tables("route", COLUMNS, found)])


@pytest.fixture(scope="session")
def chat_findings() -> Iterator[Findings]:
    """As `findings`, of the servers that `chat` asks."""
    found: Findings = {name: {} for name in CHATS}
    yield found
    if all(set(CHAT_COLUMNS) <= set(columns) for columns in found.values()):
        versions = {"transformers": version("transformers"), "LiteLLM": _version("litellm")}
        _write("Texts", [TEXTS, "", *_measured(versions), *_tables("server", CHAT_COLUMNS, found)])


def cell(said: object, names: Mapping[str, str] | None = None) -> str:
    """A server's words in a table's cell; what is of one start alone has a name."""
    words = re.sub(r"127\.0\.0\.1:\d+", "HOST", str(said)).replace("|", "\\|")
    for found, name in (names or {}).items():
        words = words.replace(found, name)
    return words


def _write(name: str, lines: list[str]) -> None:
    """Put a part of the page in place of its last writing; the others stay."""
    parts = dict(part.split("\n", 1) for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:])
    parts[name] = "\n".join(["", *lines, ""])
    PAGE.write_text(
        TITLE + "".join(f"\n## {part}\n{parts[part].rstrip()}\n" for part in sorted(parts)), encoding="utf-8"
    )


def _measured(versions: dict[str, str]) -> list[str]:
    told = "; ".join(f"{name} {number}" for name, number in versions.items())
    cores = f"{os.cpu_count()} cores of {_processor()}"
    return [f"{datetime.date.today()}; {told}; Python {platform.python_version()}, {cores}.", ""]


def _tables(what: str, columns: tuple[str, ...], found: Findings) -> list[str]:
    return [
        f"| {what} | {' | '.join(columns)} |",
        f"| --- |{' --- |' * len(columns)}",
        *(f"| {name} | {' | '.join(cells[each] for each in columns)} |" for name, cells in found.items()),
        "",
        "What they say:",
        "",
        f"| {what} | of | words |",
        "| --- | --- | --- |",
        *(
            f"| {name} | {case} | {words} |"
            for name, cells in found.items()
            for case, words in cells.items()
            if case not in columns
        ),
    ]


def _version(package: str) -> str:
    site = [str(path) for path in (servers.ENVIRONMENTS / package).glob("lib/python*/site-packages")]
    return next(each.version for each in distributions(name=package, path=site))


def _sd_version() -> str:
    home = servers.ENVIRONMENTS / "stable-diffusion.cpp"
    return next(home.glob("stable_diffusion_cpp_python-*.tar.gz")).name.split("-")[-1].removesuffix(".tar.gz")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
