"""Run the checks of `pe doctor --gpu` one after the other, each in a process of its own with a deadline.

A crash, an out-of-memory or a hang of one check spoils no other: its process group is killed, and its files, which lie
in a temporary folder of its own, are deleted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pe.errors import MissingDependency, PEError, RecipeError
from pe.plugins.devices import FITTING_TORCH, count_cards, require_torch, unseen_cards
from pe.plugins.gpu_checks import Found, GPUCheck, Size
from pe.plugins.registry import Group, check_name, load, plugins, require
from pe.version import __version__

GROUP: Group = "pe.gpu_checks"
DEVICE = "cuda:0"
_FIRST = "versions"
_LOG = 4000
"""Characters of what a failed check printed that are kept."""


@dataclass(frozen=True)
class Checked:
    """A check that ran.

    Attributes:
        name: of its entry point.
        seconds: that it took, the start of its process included.
        found: what it found.
        log: the end of what it printed, where it failed; for whoever mends it.
    """

    name: str
    seconds: float
    found: Found
    log: str = ""

    def __str__(self) -> str:
        """A few lines, as the table has them."""
        reason = f": {self.found.reason}" if self.found.reason else ""
        head = f"{self.found.state:7}  {self.name} ({self.seconds:.0f} s){reason}"
        return "\n".join([head, *(f"           {name}: {_shown(value)}" for name, value in self.found.figures.items())])


def check_names(only: tuple[str, ...] = ()) -> list[str]:
    """The names of the checks to run, the versions first; all that are installed, or `only` these.

    Raises:
        PluginError: there is none of such a name.
    """
    for name in only:
        check_name(GROUP, name)
    names = [name for name in plugins(GROUP) if not only or name in only]
    return sorted(names, key=lambda name: (name != _FIRST, name))


def require_gpu() -> None:
    """Refuse to go on without a GPU that torch can use.

    Raises:
        MissingDependency: torch is not installed.
        RecipeError: torch sees no NVIDIA GPU.
    """
    require_torch("diffusion", "pe doctor --gpu")
    if unseen := unseen_cards():
        raise RecipeError(f"{unseen[:1].upper()}{unseen[1:]}: {FITTING_TORCH}.")
    if not count_cards():
        raise RecipeError(
            "torch sees no NVIDIA GPU to check: run `pe doctor --gpu` where there is one; if this machine has one, "
            "`pe doctor` says what is wrong."
        )


def run_check(name: str, device: str = DEVICE, size: Size = "real") -> Checked:
    """Run one check in a process of its own; whatever happens there is its result."""
    started = time.monotonic()
    try:
        require(GROUP, name)
        check = load(GROUP, name)
        found, log = _carry_out(name, check, device, size)
    except MissingDependency as error:
        found, log = Found("skipped", str(error)), ""
    except PEError as error:
        found, log = Found("fail", str(error)), ""
    return Checked(name, round(time.monotonic() - started, 1), found, log)


def report(checked: list[Checked], device: str, size: Size) -> dict[str, Any]:
    """What `--json` prints."""
    rows = [asdict(each) for each in checked]
    return {"version": __version__, "device": device, "size": size, "checks": rows}


def _carry_out(name: str, check: GPUCheck, device: str, size: Size) -> tuple[Found, str]:
    with tempfile.TemporaryDirectory(prefix="pe-gpu-", ignore_cleanup_errors=True) as folder:
        answer, printed = Path(folder) / "answer.json", Path(folder) / "printed.txt"
        command = [sys.executable, "-P", "-m", "pe.engine.gpu_check.process", name, device, size, str(answer)]
        with printed.open("wb") as stream:
            process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                env=os.environ | {"TMPDIR": folder},
            )
            try:
                found = _ended(process.wait(check.seconds), answer)
            except subprocess.TimeoutExpired:
                found = Found("fail", f"it was not done within {check.seconds:g} seconds, and was ended")
            finally:
                with suppress(ProcessLookupError):  # what it left running goes with it
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        log = printed.read_text(encoding="utf-8", errors="replace")[-_LOG:] if found.state == "fail" else ""
    return found, log


def _ended(status: int, answer: Path) -> Found:
    """What a process that ended with this status found."""
    if status == 0 and answer.is_file():
        given: Mapping[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return Found(**given)
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return Found("fail", f"its process {how}")


def _shown(value: float | int | str) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
