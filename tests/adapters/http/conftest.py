"""An environment that names no proxy and no authority; a proxy; an authority; and no long waits between tries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from adapters.http import policy as policy_module
from tests.endpoints.authority import Authority
from tests.endpoints.proxy import proxying


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.setattr(policy_module, "FIRST", 0.01)
    monkeypatch.setattr(policy_module, "MOST", 0.2)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a proxy was asked, which HTTP_PROXY and HTTPS_PROXY name."""
    asked: list[str] = []
    with proxying(asked) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        yield asked
