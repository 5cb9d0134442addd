"""Processes of this machine, as /proc has them."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

# 127.0.0.1, ::1 and ::ffff:127.0.0.1, as /proc/net/tcp has them
LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


def wait_until(condition: Callable[[], object], seconds: float = 150) -> None:
    """Return as soon as the condition holds; TimeoutError if it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{condition} still does not hold.")
        time.sleep(0.01)


def title(pid: int) -> str:
    """What a process calls itself; empty: it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""


def of_session(session: int) -> list[int]:
    """The processes of a session, but for those that have ended."""
    found = []
    for pid in _pids():
        with suppress(OSError):
            if os.getsid(pid) == session and title(pid):
                found.append(pid)
    return found


def end_session(session: int) -> None:
    while left := of_session(session):
        kill(left)
        time.sleep(0.02)


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    parents = {}
    for one in _pids():
        with suppress(OSError):
            parents[one] = int(Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def listening(pids: Iterable[int]) -> list[tuple[str, int]]:
    """Addresses (in hexadecimal) and ports on which any of these processes listens."""
    files = [file for pid in pids for file in Path(f"/proc/{pid}/fd").iterdir()]
    sockets = {str(file.readlink()) for file in files if file.is_symlink()}
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [row.split() for table in tables for row in table]
    ours = [row[1].split(":") for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]
    return [(address, int(port, 16)) for address, port in ours]


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
