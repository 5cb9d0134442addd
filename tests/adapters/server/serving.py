"""The real server, started by its command in a session of its own; one at a time, since each takes gigabytes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = "tests/adapters/server/"
"""Where the tests of servers lie."""

STARTING = ("tests/adapters/hosts/", "tests/adapters/test_job_hosts.py")
"""Tests that are run while the first server starts."""

HELD = ("tests/adapters/http/",)
"""Tests that are run while the second one starts and its proxy is held up."""

LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
"""127.0.0.1, ::1 and ::ffff:127.0.0.1, as /proc/net/tcp has them."""

PATIENCE = 150.0
"""Seconds for a start, on a machine that does other things, too."""


@dataclass(frozen=True)
class Asked:
    """What a server is started with."""

    model: str
    options: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(eq=False)
class Server:
    """A server that runs."""

    asked: Asked
    url: str
    process: subprocess.Popen[bytes]
    folder: Path

    def pids(self) -> dict[int, str]:
        """The processes that came from the command, and what they call themselves."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and self._is_ours(int(entry.name)):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return found

    def replicas(self, deployment: str = "engine") -> list[int]:
        """The processes of a deployment's replicas."""
        return [pid for pid, name in self.pids().items() if name.startswith(f"ray::ServeReplica:pe:{deployment}")]

    def logs(self) -> str:
        """All that was logged, by Ray as well, and printed."""
        files = [file for file in self.folder.rglob("*") if file.is_file() and not file.is_symlink()]
        return "\n".join(file.read_text(errors="replace") for file in files if file.stat().st_size < 2**24)

    def get(self, path: str, key: str | None = None) -> tuple[int, Any]:
        """Status and JSON of a GET."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=20) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def status(self, method: str, path: str) -> int:
        """The status of an answer."""
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, method=method), timeout=20) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def text(self, path: str) -> str:
        """The text of a page."""
        with urllib.request.urlopen(self.url + path, timeout=20) as answer:
            return answer.read().decode()

    def listening(self) -> list[tuple[str, int]]:
        """Addresses (in hexadecimal) and ports on which any of its processes listens."""
        return listening(self.pids())

    def metrics(self, key: str | None = None) -> dict[str, float]:
        """Each counter's sum over the replicas."""
        found: dict[str, float] = {}
        for name, _, value in self._lines(key):
            found[name] = found.get(name, 0.0) + value
        return found

    def shares(self) -> dict[str, float]:
        """The images that each replica made."""
        return {labels: value for name, labels, value in self._lines(None) if name == "pe_server_images_total"}

    def _lines(self, key: str | None) -> list[tuple[str, str, float]]:
        """Name, labels and value of each metric."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/metrics", headers=headers), timeout=20) as page:
            lines = [line for line in page.read().decode().splitlines() if not line.startswith("#")]
        return [(line.partition("{")[0], line.rpartition(" ")[0], float(line.rpartition(" ")[2])) for line in lines]

    def wait_for(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.process.poll() is None:
            if f"at {self.url}" in (self.folder / "printed").read_text():
                return
            time.sleep(0.02)
        said = (self.folder / "printed").read_text()
        self.kill()
        raise AssertionError(f"the server did not start: {said}")

    def hold_up_proxy(self, seconds: float) -> None:
        """Stop for a while the process that is to be the proxy, as on a machine with much to do."""
        self._wait(lambda: any(name.startswith("ray::ServeController") for name in self.pids().values()))
        held = [pid for pid, name in self.pids().items() if name == "ray::IDLE"]
        for pid in held:
            os.kill(pid, signal.SIGSTOP)
        self._wait(lambda: "Starting proxy" in self.logs())
        time.sleep(seconds)
        for pid in held:
            os.kill(pid, signal.SIGCONT)

    def _wait(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not until():
            if time.monotonic() > deadline:
                raise TimeoutError("the server does not begin")
            time.sleep(0.05)

    def images_made(self, key: str | None = None, at_least: int = 0) -> int:
        """Images that the engines made so far, once the counters have come to rest, at `at_least` or above."""
        before = -1.0
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            now = self.metrics(key).get("pe_server_images_total", 0.0)
            if now < at_least:
                time.sleep(0.2)
                continue
            if now == before:
                return int(now)
            before = now
            time.sleep(1.6)  # more than the counters' way takes, which Ray sends once a second at the most
        raise TimeoutError(f"the counters do not come to rest at {at_least} or above")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end, as a person does; the status it ends with."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """Leave nothing of it, whatever state it is in."""
        if self.process.poll() is None:
            try:
                self.end()
            except subprocess.TimeoutExpired:
                self.process.kill()
        for _ in range(250):
            left = self.pids()
            for pid in left:
                if pid != self.process.pid:
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.02)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _is_ours(self, pid: int) -> bool:
        try:
            return os.getsid(pid) == self.process.pid
        except OSError:
            return False


def listening(pids: Iterable[int]) -> list[tuple[str, int]]:
    """Addresses (in hexadecimal) and ports on which any of these processes listens."""
    files = [file for pid in pids for file in Path(f"/proc/{pid}/fd").iterdir()]
    sockets = {str(file.readlink()) for file in files if file.is_symlink()}
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [row.split() for table in tables for row in table]
    ours = [row[1].split(":") for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]
    return [(address, int(port, 16)) for address, port in ours]


class Servers:
    """Whichever server a test asks for, started when it is not the one that runs."""

    def __init__(self) -> None:
        self._running: Server | None = None

    def running(self, asked: Asked) -> Server:
        """The server, once it answers."""
        server = self.begun(asked)
        server.wait_for()
        return server

    def begun(self, asked: Asked) -> Server:
        """The server, which may answer only later; the one before ends while this one begins."""
        before = self._running
        if not self.runs(asked):
            self._running = begin(asked)
            if before is not None:
                before.kill()
        assert self._running is not None
        return self._running

    def runs(self, asked: Asked) -> bool:
        """Whether this is the one that runs, or begins."""
        there = self._running
        return there is not None and there.asked == asked and there.process.poll() is None

    def stop(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running = None


def begin(asked: Asked) -> Server:
    """Start a server."""
    folder = Path(tempfile.mkdtemp(prefix="pe-"))  # short, since Ray puts sockets in it
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("pe")), "serve", asked.model, "--port", str(port), *asked.options]
    # one thread each: several for a tiny model wait for one another where the machine does other things, too
    ours = {"RAY_TMPDIR": str(folder), "RAY_metrics_report_interval_ms": "1000", "OMP_NUM_THREADS": "1"}
    environment = os.environ | dict(asked.environment) | ours
    with (folder / "printed").open("wb") as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=printed, env=environment, start_new_session=True)
    return Server(asked, f"http://127.0.0.1:{port}", process, folder)
