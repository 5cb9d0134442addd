"""What an answer says that it cost: kept where it can be, and else counted as if it were not stated."""

from __future__ import annotations

import logging
import math
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.chat import billed as billed_by_chat
from adapters.openai_images import billed as billed_by_images
from pe.dispatch.dispatcher import Dispatcher
from pe.errors import ContractError
from pe.plugins import protocols as usage_module
from pe.plugins.protocols import Answer, RandomRequest, Usage
from pe.store.journal import Journal
from pe.store.writer import RunWriter
from tests.generators import Shades

ABSURD = [2**63, 2**62, 10**13, 10**400, -1, 12.5, math.nan, math.inf, True, "12", [1], {"a": 1}]
FINE = [(7, 7), (7.0, 7), (np.int64(7), 7), (10**12, 10**12), (None, 0)]


class Billing(Shades):
    """Shades, with a usage."""

    def __init__(self, usage: Any) -> None:
        super().__init__()
        self._usage = usage

    def random_api(self, request: RandomRequest) -> Answer:
        answer = super().random_api(request)
        return Answer(answer.samples, answer.conditions, answer.missing, self._usage)


def spent(folder: Path, usage: Any) -> Usage:
    """What a phase of seven items cost, as a journal says that is opened again."""
    run = RunWriter.create(folder, {"recipe.yaml": b""})
    Dispatcher(Billing(usage), run, ("cat",), seed=3).random(np.zeros(7, np.int32))
    run.lock.release()
    return RunWriter.reopen(folder).journal.totals().usage


@pytest.mark.parametrize("stated", ABSURD, ids=lambda stated: str(stated)[:20])
def test_a_usage_that_cannot_be_is_as_if_it_were_not_stated(
    stated: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    usage_module._log_once.cache_clear()
    with caplog.at_level(logging.WARNING, "pe.plugins.protocols"):
        assert billed_by_chat({"prompt_tokens": stated, "completion_tokens": 5}).tokens == 5
        assert billed_by_images({"total_tokens": stated, "input_tokens": 3, "output_tokens": 2}).tokens == 5
        everything = [stated] * 7 + [stated if stated == 12.5 or isinstance(stated, str) else -1.0] * 2
        found = spent(tmp_path / "run", Usage(*everything))
    assert (found.calls, found.images, found.tokens, found.image_out) == (1, 7, 0, 0)
    assert [record.message[:42] for record in caplog.records] == ["An answer states a usage that no request c"]


@pytest.mark.parametrize(("stated", "counted"), FINE)
def test_a_usage_that_can_be_is_kept(stated: Any, counted: int, tmp_path: Path) -> None:
    assert billed_by_chat({"prompt_tokens": stated}).text_in == counted
    found = spent(tmp_path / "run", Usage(2, 3, stated, megapixels=0.5))
    assert (found.calls, found.images, found.tokens, found.megapixels) == (2, 3, counted, 0.5)


def test_a_usage_of_another_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"returned a usage that is dict: return pe\.Usage"):
        spent(tmp_path / "run", {"calls": 1})


def test_a_journal_with_absurd_numbers_from_before_can_be_read(tmp_path: Path) -> None:
    spent(tmp_path / "run", Usage(1, 7, 5))
    journal = next((tmp_path / "run").rglob("journal.sqlite"))
    with sqlite3.connect(journal) as connection:
        for _ in range(2):
            connection.execute(
                "INSERT INTO chunks (phase, answered, calls, images, tokens, seconds) VALUES ('x', 0, 1, 0, ?, 0)",
                (2**62,),
            )
    assert Journal(journal, reading=True).totals().usage.tokens >= 2**63
