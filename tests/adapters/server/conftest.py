"""The servers that the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.adapters.server.serving import FOLDER, HELD, STARTING, Asked, Server, Servers

SMALL = Asked(
    "small",
    ("--replicas", "2", "--steps", "4", "--max-batch", "16", "--limit", "requests=80", "--limit", "steps=50"),
    (("RAY_ADDRESS", "127.0.0.1:9"),),  # of a cluster of somebody else, which is not to be joined
)
KEYS = ("first-key-of-the-tests", "second-key-of-the-tests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each server has all its tests in a row; tests of none are run while it starts."""
    places = [i for i, item in enumerate(items) if item.nodeid.startswith((FOLDER, *STARTING, *HELD))]
    ours = sorted((items[i] for i in places), key=_turn)
    for i, item in zip(places, ours, strict=True):
        items[i] = item


def _turn(item: pytest.Item) -> int:
    asked = item.fixturenames if isinstance(item, pytest.Function) else ()
    turns = (
        item.nodeid.startswith(STARTING),
        "small" in asked,
        "held_up" in asked and "text" not in asked,
        item.nodeid.startswith(HELD),
        "text" in asked,
    )
    return turns.index(True) if any(turns) else -1


@pytest.fixture(scope="session", autouse=True)
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    held = Servers()
    try:
        if any("small" in item.fixturenames for item in request.session.items if isinstance(item, pytest.Function)):
            held.begun(SMALL)  # while the tests that come before its own run
        yield held
    finally:
        held.stop()


@pytest.fixture(scope="session")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Stable Diffusion, saved as real ones are."""
    import torch

    from tests.adapters.diffusion import tiny

    folder = tmp_path_factory.mktemp("text") / "model"
    torch.manual_seed(0)
    tiny.stable_diffusion(faithful=True).save_pretrained(folder)
    return folder


@pytest.fixture
def small(servers: Servers) -> Server:
    """The model that ships with the project, in two replicas, for the machine itself."""
    return servers.running(SMALL)


HELD_UP = 20.0
"""Seconds; by itself Ray kills a proxy that has not come after 15."""


@pytest.fixture(scope="session")
def held_up(servers: Servers, text_model: Path) -> Iterator[tuple[Server, Future[None]]]:
    """A server of a model that takes prompts, behind keys, with narrow limits; its proxy is slow to come."""
    limits = {"requests": 2, "waiting": 40, "n": 4, "images": 32, "steps": 8, "pixels": 4096, "body": 2**20}
    options = tuple(part for name, value in limits.items() for part in ("--limit", f"{name}={value}"))
    options += (
        "--api-key-env",
        "TEST_KEYS",
        "--steps",
        "2",
        "--guidance",
        "2",
        "--replicas",
        "1",
        "--set",
        "sampler=euler",
    )
    server = servers.begun(Asked(str(text_model), options, (("TEST_KEYS", ",".join(KEYS)),)))
    with ThreadPoolExecutor(1) as beside:
        yield server, beside.submit(server.hold_up_proxy, HELD_UP)


@pytest.fixture
def text(held_up: tuple[Server, Future[None]]) -> Server:
    """The server of prompts, once it answers."""
    server, held = held_up
    held.result()
    server.wait_for()
    return server
