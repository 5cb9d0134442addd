"""Where and when a benchmark ran, what a command took, and the page that keeps the result."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"


def where() -> str:
    """Date, processor, cores and versions, in one line."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    name = next(
        (line.split(": ")[1] for line in lines if line.startswith("model name")),
        platform.processor(),
    )
    return (
        f"{datetime.now(UTC):%Y-%m-%d}; {name}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}; Python {platform.python_version()}, numpy {np.__version__}"
    )


def timed(
    command: Sequence[str | Path], environment: Mapping[str, str] | None = None, **options: Any
) -> dict[str, float]:
    """Run a command, and return its `seconds`, `cpu` seconds and most `gigabytes` of memory.

    Raises:
        SystemExit: the command failed; the message is the end of what it printed.
    """
    started = time.monotonic()
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(command, env=environment, stdout=told, stderr=told, **options)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            told.seek(0)
            raise SystemExit(told.read().decode(errors="replace")[-3000:])
    return {
        "seconds": time.monotonic() - started,
        "cpu": usage.ru_utime + usage.ru_stime,
        "gigabytes": usage.ru_maxrss / 2**20,
    }


def keep(name: str, text: str) -> None:
    """Print `text` and write it to results/`name`.

    A text that begins with `## ` replaces that part of the page.
    """
    print(text)
    page = RESULTS / name
    if text.startswith("## "):
        head, *parts = re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.M)
        title = text.splitlines()[0]
        parts = [text if part.startswith(title) else part for part in parts]
        text = "\n\n".join(
            part.rstrip() for part in (head, *parts, *([] if text in parts else [text]))
        )
    page.write_text(text.rstrip() + "\n", encoding="utf-8")
