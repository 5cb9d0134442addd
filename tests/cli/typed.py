"""`pe` as a user types it, in processes that need not import anew what all commands import."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.durability.driver import forked


def pe(*arguments: object, cwd: Path, typed: str = "") -> subprocess.CompletedProcess[str]:
    """What the command does with these arguments in the folder `cwd`: its status, and what it printed."""
    words = ["pe", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(typed)
        process = forked(_carry_out, words, cwd, streams, dict(os.environ))
        process.join(120)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(words, 120)
        return subprocess.CompletedProcess(words, process.exitcode, *(path.read_text() for path in streams[1:]))


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
