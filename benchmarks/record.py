"""Where and when a benchmark ran, and the file that keeps what it found."""

from __future__ import annotations

import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path

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


def keep(name: str, text: str) -> None:
    """Print `text` and write it to results/`name`; a text that begins with `## ` replaces its part
    of that page.
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
