"""The server that most tests ask."""

from collections.abc import Iterator

import pytest

from tests.adapters.server.asking import near


@pytest.fixture(scope="module")
def small() -> Iterator[str]:
    """The address of the model that ships with the project, served without Ray."""
    with near("small", "--steps", "4", "--max-batch", "16", "--limit", "steps=50") as url:
        yield url


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/adapters/server/" in item.nodeid:
            for ours in (
                "__array__ implementation",
                "Using extra keyword arguments",
            ):  # diffusers and numpy 2; Ray
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{ours}:DeprecationWarning"))
