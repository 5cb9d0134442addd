"""The real server, started by its command in a session of its own."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.adapters.server.asking import ask
from tests.cluster.processes import end_session, of_session, title, wait_until

PATIENCE = 150.0
"""Seconds for a start or an end, on a machine that does other things, too."""


@dataclass(eq=False)
class Server:
    url: str
    process: subprocess.Popen[bytes]
    folder: Path

    def titles(self) -> dict[int, str]:
        """The processes that came from the command, and what they call themselves."""
        return {pid: title(pid) for pid in of_session(self.process.pid)}

    def replicas(self) -> list[int]:
        return [
            pid
            for pid, name in self.titles().items()
            if name.startswith("ray::ServeReplica:pe:Server")
        ]

    def logs(self) -> str:
        """All that was logged, by Ray as well, and printed."""
        files = [
            file for file in self.folder.rglob("*") if file.is_file() and not file.is_symlink()
        ]
        return "\n".join(
            file.read_text(errors="replace") for file in files if file.stat().st_size < 2**24
        )

    def lines(self) -> list[tuple[str, str, float]]:
        """Name, labels and value of each metric."""
        lines = ask(f"{self.url}/metrics")[1].decode().splitlines()
        parts = [line.rpartition(" ") for line in lines if not line.startswith("#")]
        return [
            (said.partition("{")[0], said.partition("{")[2], float(value))
            for said, _, value in parts
        ]

    def metrics(self) -> Counter[str]:
        """Each counter's sum over the replicas."""
        found: Counter[str] = Counter()
        for name, _, value in self.lines():
            found[name.removeprefix("pe_server_")] += value
        return found

    def end(self) -> int:
        """Ask it to end, as a person does; the status it ends with."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@contextmanager
def served(model: str, *options: str, **environment: str) -> Iterator[Server]:
    """A server that answers; nothing of it is left after the block."""
    with tempfile.TemporaryDirectory(
        prefix="pe-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:  # Ray's sockets
        port = free_port()
        command = [
            str(Path(sys.executable).with_name("pe")),
            "serve",
            model,
            "--port",
            str(port),
            *options,
        ]
        # one thread each: several for a tiny model wait for one another where the machine does
        # other things, too
        ours = {
            "RAY_TMPDIR": folder,
            "RAY_metrics_report_interval_ms": "1000",
            "OMP_NUM_THREADS": "1",
        }
        with Path(folder, "printed").open("wb") as printed:
            process = subprocess.Popen(
                command,
                stdout=printed,
                stderr=printed,
                env=os.environ | ours | environment,
                start_new_session=True,
            )
        server = Server(f"http://127.0.0.1:{port}", process, Path(folder))
        try:
            said = Path(folder, "printed")
            wait_until(
                lambda: f"at {server.url}" in said.read_text() or process.poll() is not None,
                PATIENCE,
            )
            assert process.poll() is None, said.read_text()
            yield server
            if process.poll() is None:
                server.end()
        finally:
            end_session(process.pid)
            process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
