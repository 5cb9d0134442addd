"""Private work between requests ends at its deadline, and a run is named once its records were read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pe
from pe.engine import execution as start
from pe.engine.private_side import PrivateSide
from pe.progress import Progress
from pe.store.writer import read_journal
from tests.engine.test_start import evolve, private
from tests.generators import Mean, Shades

__all__ = ["private"]  # a fixture


class Timed(Shades):
    """Notes when it was asked and when it had answered."""

    info = pe.PluginInfo(hosts=("api.example",))

    def __init__(self) -> None:
        super().__init__(max_chunk=100)
        self.times: list[tuple[float, float]] = []

    def random_api(self, request: pe.RandomRequest) -> pe.Answer:
        asked = time.monotonic()
        answer = super().random_api(request)
        self.times.append((asked, time.monotonic()))
        return answer

    def variation_api(self, request: pe.VariationRequest) -> pe.Answer:
        asked = time.monotonic()
        answer = super().variation_api(request)
        self.times.append((asked, time.monotonic()))
        return answer


def test_where_requests_leave_the_machine_private_work_between_them_ends_at_its_deadline(
    private: pe.ImageNpz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe.planning.clock._AT_LEAST", 1.0)  # far from what a loaded machine takes without a clock
    for clock, waits in (("auto", True), ("never", False)):
        api = Timed()
        run = evolve(private, tmp_path / clock, api, iterations=1, lookahead=0, public_clock=clock, max_images=99)
        (_, answered), (asked, _) = api.times
        assert (asked - answered >= 1) == waits
        with read_journal(run) as journal:
            assert not [event for _, event in journal.events() if "overran" in event]


def test_private_work_that_misses_its_deadline_is_told_and_counted_on_the_confidential_side(
    private: pe.ImageNpz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe.planning.clock._AT_LEAST", 0.01)  # so that 4 s are late on a loaded machine, too

    class Stalling(Mean):
        """Takes its time over the first private images: the third block that is not black, after two made-up ones."""

        seen = 0

        def embed(self, samples: pe.Images) -> np.ndarray:
            self.seen += bool(samples.pixels.any())
            if self.seen == 3:
                time.sleep(4.0)
            return super().embed(samples)

    class Listening(Progress):
        def __init__(self) -> None:
            self.warnings: list[str] = []

        def warn(self, message: str) -> None:
            self.warnings.append(message)

    heard = Listening()
    changes = {"embedding": Stalling(), "iterations": 1, "lookahead": 0, "progress": heard}
    run = evolve(private, tmp_path / "run", Timed(), max_images=99, **changes)
    told = "Private work (embedding) took longer than its public deadline of "
    (warning,) = (one for one in heard.warnings if one.startswith(told))  # on a loaded machine releases are late, too
    assert "raise privacy.clock_slack" in warning
    record = json.loads((run.folder / "confidential" / "audit-record.json").read_text())
    first, second, *_, last = [one["event"] for one in record["when"]]
    assert (first, second, last) == ("started", "overran embedding", "finished")


def test_a_run_is_named_when_the_private_records_have_been_read(
    private: pe.ImageNpz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    def telling(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def told(*arguments: Any) -> Any:
            happened.append(what)
            return function(*arguments)

        return told

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PrivateSide, "preflight", telling("read", PrivateSide.preflight))
    monkeypatch.setattr(start, "new_name", telling("named", start.new_name))
    evolve(private, None)
    assert happened == ["read", "named"]
