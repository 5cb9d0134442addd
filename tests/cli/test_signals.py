"""A run that is told to stop ends with the status that a supervisor expects, and goes on where it
stopped.
"""

import json
import os
import re
import signal
import time
from contextlib import suppress
from http.client import HTTPException
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.cli.typed import begin, pe

LONG = ("--set", "evolution.iterations=12", "--set", "evolution.lookahead=4")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_stopped_by_a_signal_says_which_and_goes_on(recipe, tmp_path, number, status):
    process, streams = begin(
        "run", recipe, *LONG, "--out", "out", cwd=recipe.parent, streams=tmp_path
    )
    images = recipe.parent / "out" / "populations" / "001" / "images.npy"
    while process.is_alive() and not images.parent.exists():
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == status
    assert (
        "pe: Stopped as asked, with everything that was answered committed."
        in streams[2].read_text()
    )
    before = images.read_bytes()
    assert pe("run", "out", cwd=recipe.parent).returncode == 0
    assert images.read_bytes() == before


def test_where_a_run_stands_is_printed_and_its_pages_are_served_until_ctrl_c(finished, tmp_path):
    process, streams = begin("view", "out", cwd=finished, streams=tmp_path)
    while process.is_alive() and not (
        streams[1].exists() and "/out/report\n" in streams[1].read_text()
    ):
        time.sleep(0.01)
    printed = streams[1].read_text()
    (address,) = re.findall(r"^http://127\.0\.0\.1:\d+/[\w-]+/out/report$", printed, re.M)
    assert printed.startswith("out: finished\n  Iteration   2 of 2\n")
    assert "<h1>out</h1>" in urlopen(address).read().decode()
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 0


def test_each_run_of_a_folder_has_a_line_and_a_report_goes_where_it_is_wanted(finished, tmp_path):
    assert (
        pe("view", ".", "--text", cwd=finished).stdout == "out: finished\n"
    )  # the recipe beside it is of no run
    (values,) = json.loads(pe("view", ".", "--json", cwd=finished).stdout)
    assert (values["run"], values["state"]) == ("out", "finished")
    assert (
        pe("view", "out", "--html", tmp_path / "page.html", cwd=finished).stdout
        == f"{tmp_path / 'page.html'}\n"
    )
    assert "<h1>out</h1>" in (tmp_path / "page.html").read_text()
    for words, sentence in (
        (
            ["out", "--html", "out/page.html"],
            "out/page.html lies inside a run, whose certificate would not cover it",
        ),
        (
            ["out", "out", "--write"],
            "`--write` writes the report of one run. For a comparison, give `--html` a FILE",
        ),
        ([], "runs is not a run, and holds none: name a run, or a folder of runs"),
    ):
        assert sentence in pe("view", *words, cwd=finished).stderr


def test_a_run_is_watched_and_stopped_at_an_address_that_ends_with_it(recipe, tmp_path):
    changes = (*LONG, "--set", "evolution.iterations=300")
    process, streams = begin(
        "run", recipe, *changes, "--out", "out", "--view", cwd=tmp_path, streams=tmp_path
    )
    while process.is_alive() and not (
        streams[2].exists() and "Live page: " in streams[2].read_text()
    ):
        time.sleep(0.01)
    (address,) = re.findall(
        r"^Live page: (http://127\.0\.0\.1:\d+/[\w-]+/out/)$", streams[2].read_text(), re.M
    )
    urlopen(f"{address}pieces").read()  # as an open page does: the server waits for it at the end
    stop = Request(f"{address}stop", b"", {"Origin": re.sub(r"(:\d+)/.*", r"\1", address)})
    assert urlopen(stop).read().startswith(b"It stops when the requests under way are answered")
    told = ""
    while process.is_alive():
        with suppress(OSError, HTTPException):  # it has just ended
            told += urlopen(f"{address}pieces").read().decode()
        time.sleep(0.2)
    process.join(60)
    assert process.exitcode == 143
    assert re.findall(r'data-state=\\"(\w+)', told)[-1] == "stopped"
    with pytest.raises(URLError):
        urlopen(address)
