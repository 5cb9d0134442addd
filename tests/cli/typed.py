"""`pe` as a user types it, in processes that need not import anew what all commands import."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.durability.driver import forked

PE = str(Path(sys.executable).with_name("pe"))
Told = subprocess.CompletedProcess[str]


def pe(*arguments, cwd, typed=""):
    """What the command does with these arguments in the folder `cwd`: its status, and what it
    printed.
    """
    words = ["pe", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        process, streams = begin(*arguments, cwd=cwd, streams=Path(folder), typed=typed)
        process.join(120)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(words, 120)
        return subprocess.CompletedProcess(
            words, process.exitcode, *(path.read_text() for path in streams[1:])
        )


def begin(*arguments, cwd, streams, typed=""):
    """The command's process, and the files of its stdin, stdout and stderr in the folder
    `streams`.
    """
    files = [streams / name for name in ("stdin", "stdout", "stderr")]
    files[0].write_text(typed)
    return forked(_carry_out, ["pe", *map(str, arguments)], cwd, files, dict(os.environ)), files


def _carry_out(words, cwd, streams, environment):
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    sys.stdin = os.fdopen(0)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = words
    from pe.cli.main import main

    main()


def installed(*arguments, cwd, **environment):
    """The script itself; `pe` is quicker, and has only what is installed."""
    words, changed = [PE, *map(str, arguments)], os.environ | environment
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=120, env=changed)


def assert_one_sentence(told, sentence, status=2):
    assert told.returncode == status, told.stderr
    assert "Traceback" not in told.stderr
    last = told.stderr.strip().splitlines()[-1]
    assert last.startswith("pe: ")
    assert re.search(sentence, last), last
    assert told.stdout == ""
