"""What holds for all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

settings.register_profile(
    "without timings", deadline=None
)  # how long an example takes is the machine's affair
settings.load_profile("without timings")

os.environ["NO_PROXY"] = os.environ["no_proxy"] = (
    "127.0.0.1,localhost"  # servers of tests are behind no proxy
)
_state = TemporaryDirectory()  # the secret of this machine, which the tests begin with none of
os.environ["XDG_STATE_HOME"] = _state.name


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Give each process whole files, those of most tests first, so that none makes what another has
    made already.
    """
    return LoadFileScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect garbage more seldom, and never look through torch and all that is imported by now."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000)
        gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()
