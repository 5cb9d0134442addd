"""A run that is told to stop ends with the status that a supervisor expects, and goes on where it stopped."""

import os
import re
import signal
import time
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.cli.typed import begin, pe

LONG = ("--set", "evolution.iterations=12", "--set", "evolution.lookahead=4")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_stopped_by_a_signal_says_which_and_goes_on(recipe, tmp_path, number, status):
    process, streams = begin("run", recipe, *LONG, "--out", "out", cwd=recipe.parent, streams=tmp_path)
    images = recipe.parent / "out" / "populations" / "001" / "images.npy"
    while process.is_alive() and not images.parent.exists():
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == status
    assert "pe: Stopped as asked, with everything that was answered committed." in streams[2].read_text()
    before = images.read_bytes()
    assert pe("run", "out", cwd=recipe.parent).returncode == 0
    assert images.read_bytes() == before


def test_a_run_is_watched_and_stopped_at_an_address_that_ends_with_it(recipe, tmp_path):
    changes = (*LONG, "--set", "evolution.iterations=300")
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
