"""`pe` as a user types it, in processes that need not import anew what all commands import."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.durability.driver import forked


def pe(*arguments: object, cwd: Path, typed: str = "") -> subprocess.CompletedProcess[str]:
    """What the command does with these arguments in the folder `cwd`: its status, and what it printed."""
    words = ["pe", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        process, streams = begin(*arguments, cwd=cwd, streams=Path(folder), typed=typed)
        process.join(120)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(words, 120)
        return subprocess.CompletedProcess(words, process.exitcode, *(path.read_text() for path in streams[1:]))


def begin(*arguments: object, cwd: Path, streams: Path, typed: str = "") -> tuple[BaseProcess, list[Path]]:
    """The command's process, and the files of its stdin, stdout and stderr in the folder `streams`."""
    files = [streams / name for name in ("stdin", "stdout", "stderr")]
    files[0].write_text(typed)
    return forked(_carry_out, ["pe", *map(str, arguments)], cwd, files, dict(os.environ)), files


def _carry_out(words: list[str], cwd: Path, streams: list[Path], environment: dict[str, str]) -> None:
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    sys.stdin = os.fdopen(0)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = words
    from pe.cli.main import main

    main()
