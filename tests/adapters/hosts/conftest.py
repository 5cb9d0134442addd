"""A host's adapter and its scripted server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from adapters.http import policy as policy_module
from tests.endpoints.bedrock_server import ACCESS
from tests.endpoints.faults import Script
from tests.endpoints.hosts import HOSTS, Generator, Make
from tests.endpoints.serving import serving


@pytest.fixture
def canary() -> str:
    """The key."""
    return "canary-8c05"


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, canary: str) -> Iterator[Make]:
    """An adapter, and the script of the server that it talks to."""
    monkeypatch.setenv("THE_KEY", canary)
    for name, value in ACCESS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(policy_module, "FIRST", 0.02)
    monkeypatch.setattr(policy_module, "MOST", 0.2)
    with ExitStack() as stack:

        def made(
            host: str, script: Script | None = None, path: str = "", **settings: object
        ) -> tuple[Generator, Script]:
            script = script or Script()
            url = stack.enter_context(serving(HOSTS[host].serve(script)))
            return HOSTS[host].make(url + path, **{"key_env": "THE_KEY", "timeout": 1.0} | settings), script

        yield made
