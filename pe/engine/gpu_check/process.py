"""One check in this process: `python -m pe.engine.gpu_check.process NAME DEVICE SIZE ANSWER` writes what it found."""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

from pe.engine.gpu_check.runner import GROUP
from pe.errors import printable
from pe.plugins.gpu_checks import Found, Size
from pe.plugins.registry import load


def perform(name: str, device: str, size: Size) -> Found:
    """What the check found; an error is a failure with its first words, and is printed whole."""
    try:
        found: Found = load(GROUP, name).run(device, size)
    except Exception as error:
        traceback.print_exc()
        return Found("fail", printable(f"{type(error).__name__}: {error}"[:300]))
    return found


if __name__ == "__main__":
    name, device, size, answer = sys.argv[1:]
    Path(answer).write_text(json.dumps(asdict(perform(name, device, size))), encoding="utf-8")  # type: ignore[arg-type]
