"""Limits on the threads of the libraries beneath scikit-learn."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from pe.evaluation.classifiers import _libraries, on_one_thread


def test_libraries_with_threads_are_looked_for_again_only_when_a_module_was_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with threadpool_limits(2), on_one_thread():
        assert {pool["num_threads"] for pool in threadpool_info()} == {1}
    searches = _libraries.cache_info().misses
    with on_one_thread():
        assert _libraries.cache_info().misses == searches
    monkeypatch.setitem(sys.modules, "one_more", ModuleType("one_more"))
    with on_one_thread():
        assert _libraries.cache_info().misses == searches + 1
