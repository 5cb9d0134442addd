"""For all tests of fitted generators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The last bits of a result on a CPU depend on the number of threads; and these fits are too
    small for two.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    assert torch.get_num_threads() == 1
    torch.set_num_threads(threads)
