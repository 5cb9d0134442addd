"""A run that is told to stop ends with the status that a supervisor expects, and goes on where it stopped."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner

from pe.cli.run import run
from tests.cli.test_commands import public, recipe, scans
from tests.cli.typed import begin, pe

__all__ = ["public", "recipe", "scans"]  # fixtures


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_stopped_by_a_signal_says_which_and_goes_on(
    recipe: Path, tmp_path: Path, number: int, status: int
) -> None:
    changes = [word for change in ("iterations=25", "lookahead=4") for word in ("--set", f"evolution.{change}")]
    process, streams = begin("run", recipe, *changes, "--out", "out", cwd=recipe.parent, streams=tmp_path)
    while process.is_alive() and not (recipe.parent / "out" / "populations" / "001").exists():
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == status
    assert "pe: Stopped as asked, with everything that was answered committed." in streams[2].read_text()
    before = (recipe.parent / "out" / "populations" / "001" / "images.npy").read_bytes()
    assert pe("resume", "out", cwd=recipe.parent).returncode == 0
    assert (recipe.parent / "out" / "populations" / "001" / "images.npy").read_bytes() == before


def test_a_run_is_watched_and_stopped_at_an_address_that_ends_with_it(recipe: Path, tmp_path: Path) -> None:
    changes = [word for change in ("iterations=300", "lookahead=4") for word in ("--set", f"evolution.{change}")]
    process, streams = begin("run", recipe, *changes, "--out", "out", "--watch", cwd=tmp_path, streams=tmp_path)
    while process.is_alive() and not (streams[2].exists() and "Live page: " in streams[2].read_text()):
        time.sleep(0.01)
    (address,) = re.findall(r"^Live page: (http://127\.0\.0\.1:\d+/[\w-]+/)$", streams[2].read_text(), re.M)
    with urlopen(f"{address}events") as answer:
        stop = Request(f"{address}stop", b"", {"Origin": re.sub(r"(:\d+)/.*", r"\1", address)})
        assert urlopen(stop).read().startswith(b"It stops when the requests under way are answered")
        told = answer.read().decode()  # until it ends
    process.join(60)
    assert process.exitcode == 143
    assert re.findall(r'data-state=\\"(\w+)', told)[-1] == "stopped"
    with pytest.raises(URLError):
        urlopen(address)
    assert "--watch needs --out" in CliRunner().invoke(run, [str(recipe), "--watch"]).output
