"""The time that is left is told once it means something."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from pe.data.images import Images
from pe.engine.loggers import Bars
from pe.evaluation.features import CachedEmbedding
from pe.evaluation.fidelity import fidelity
from pe.progress import Progress
from tests.generators import Mean


def test_a_bar_tells_no_time_left_before_half_a_minute_or_a_tenth() -> None:
    now = [0.0]
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    assert isinstance(console.file, io.StringIO)
    unknown, known = [], []
    with Bars(console=console, clock=lambda: now[0]).task("population 0", 1000) as task:
        for second in range(1, 40):
            now[0] = float(second)
            start = console.file.tell()
            task.advance(1)
            console.file.seek(start)
            (unknown if second < 30 else known).append(console.file.read())
    assert all("-:--:--" in line for line in unknown)
    assert all("-:--:--" not in line and "0:16:" in line for line in known)
    with Bars(console=console, clock=lambda: now[0]).task("population 1", 20) as task:
        for _ in range(3):
            now[0] += 1
            task.advance(1)
            start = console.file.tell()
        task.advance(0)
        console.file.seek(start)
        assert "0:00:17" in console.file.read()


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_waited_for_is_told_and_vanishes(terminal: bool, capsys: pytest.CaptureFixture[str]) -> None:
    words = "rate limited [by the server] until 14:32:05"
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    assert isinstance(console.file, io.StringIO)
    with Bars(console=console, clock=lambda: 0.0).task("population 0", 1000) as task:
        task.wait(words)
        start = console.file.tell()
        task.wait("")
        console.file.seek(start)
        after = console.file.read()
    assert (words in console.file.getvalue()) == terminal
    assert words not in after
    assert capsys.readouterr().err.startswith("" if terminal else f"population 0: {words}\npopulation 0: 1000 done")


def test_what_an_embedding_takes_to_load_is_not_counted_into_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [0.0], []
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    class Slow(Mean):
        def embed(self, samples: Images) -> np.ndarray:
            now[0] += 1000.0 * (now[0] == 0) + len(samples)
            return super().embed(samples)

    class Told(Progress):
        def tell(self, message: str) -> None:
            told.append(message)

    images = [Images(np.random.default_rng(i).integers(0, 255, (20, 4, 4, 1)).astype(np.uint8)) for i in range(4)]
    sets = {"synthetic": images[1], "unevolved": images[2], "real": images[3]}
    fidelity(CachedEmbedding("slow", Slow()), sets=sets, reference=images[0], seed=0, progress=Told())
    assert told == ["embedding with slow: about 40 s left"]
