"""The check `replicas` of `pe doctor --gpu`, on a processor."""

from __future__ import annotations

import pytest

from adapters.gpu_check.replicas import CHECK


@pytest.mark.slow
def test_a_server_without_a_gpu_makes_what_this_process_makes() -> None:
    found = CHECK.run("cpu", "tiny")
    assert found.state == "pass", found
    assert found.figures["1 with 0 GPU each: grey levels apart"] <= 1
