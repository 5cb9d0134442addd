"""How the tests are spread over processes (`pytest -n 2`)."""

from __future__ import annotations

from typing import Any

import pytest

SERVER = "tests/adapters/server/"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each test wherever there is room, but those of the server in one process, so that it is started once.

    xdist's own `--dist loadgroup` would do, but its marks have no effect with pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return SERVER if nodeid.startswith(SERVER) else nodeid

    return Together(config, log)
