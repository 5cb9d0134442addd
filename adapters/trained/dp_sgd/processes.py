"""The other processes that share the steps of a training: started, given their micro-batches, and ended.

Model, loss, parameters, the records of their micro-batches and the sums that they answer go through pipes that they
inherit: no other process can read them, and nothing reaches a disk or a network. A sum is of integers, so it is the
same to the last bit in whatever order it is made.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from signal import Signals
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pe.errors import RunError

_PROGRAM = """
import sys
from multiprocessing.connection import Connection

from adapters.trained.dp_sgd.worker import work

work(Connection(int(sys.argv[1])))
"""


@dataclass(frozen=True)
class Start:
    """The first message to a process."""

    device: str
    threads: int


@dataclass(frozen=True)
class Task:
    """Model, loss and settings until others come, as torch saves them; `places` maps the devices of their tensors."""

    content: bytes
    places: dict[str, str]


class Part(NamedTuple):
    """CONFIDENTIAL: the records of one micro-batch, and the seeds of the loss's randomness.

    Attributes:
        images: uint8 n×h×w×c.
        labels: integers (n,).
        seeds: uint64, one for each place of a micro-batch, those without a record included.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.integer]
    seeds: npt.NDArray[np.uint64]


@dataclass(frozen=True)
class _Process:
    popen: subprocess.Popen[bytes]
    connection: Connection
    device: torch.device

    @classmethod
    def start(cls, device: torch.device) -> _Process:
        ours, theirs = Pipe()
        paths = [path or str(Path.cwd()) for path in sys.path]
        popen = subprocess.Popen(  # noqa: S603 - this program's own module
            [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # a library's words there may be about a private record
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # a Ctrl-C that stops the fit after its block must not end it
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
        theirs.close()
        return cls(popen, ours, device)


class Processes:
    """One process for each of `devices`; they end with this one, or by `close`.

    The processor's threads are divided among them and this process.

    Args:
        devices: where they compute.

    Raises:
        RunError: one of them ended at its start.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._all: list[_Process] = []
        self._threads = torch.get_num_threads()
        threads = max(1, self._threads // (1 + len(devices)))
        torch.set_num_threads(threads)
        try:
            self._all.extend(map(_Process.start, devices))
            for process in self._all:
                self._send(process, Start(str(process.device), threads))
            self._answers()
        except BaseException:
            self.close()
            raise

    def assign(self, content: object, place: torch.device) -> None:
        """Send model, loss and settings, as they are now, with their tensors on `place`, to all."""
        stream = BytesIO()
        torch.save(content, stream)
        source = f"cuda:{place.index or 0}" if place.type == "cuda" else str(place)
        for process in self._all:
            self._send(process, Task(stream.getvalue(), {source: str(process.device)}))

    def total(self, parameters: Tensor, shares: Sequence[Iterable[Part]], own: Callable[[], Tensor]) -> Tensor:
        """Return the sum over all parts, int64 (p,), on the device of `own`'s.

        Args:
            parameters: float32 (p,).
            shares: the parts of each process, in order.
            own: computes the sum over this process's parts, while the others compute theirs.

        Raises:
            RunError: a process ended.
            PEError: what ended the work of one of them.
            RuntimeError: a library's error did; its words may be about a private record.
        """
        flat = parameters.cpu().numpy()
        for process, share in zip(self._all, shares, strict=True):
            self._send(process, (flat, list(share)))
        own_sum = own()
        total = sum(map(torch.from_numpy, self._answers()), start=own_sum.cpu())
        return total.to(own_sum.device)

    def close(self) -> None:
        """End them all, whatever they are doing; this process has its threads again."""
        torch.set_num_threads(self._threads)
        for process in self._all:
            process.popen.kill()
            process.popen.wait()
            process.connection.close()
        self._all.clear()

    def _send(self, process: _Process, message: object) -> None:
        try:
            process.connection.send(message)
        except OSError as error:
            raise self._error(process) from error

    def _answers(self) -> list[Any]:
        """Wait for the answer of each; raise the first error."""
        answers = []
        for process in self._all:
            try:
                answer = process.connection.recv()
            except (EOFError, OSError) as error:
                raise self._error(process) from error
            if isinstance(answer, Exception):
                raise answer
            answers.append(answer)
        return answers

    def _error(self, process: _Process) -> RunError:
        first = next((one for one in self._all if one.popen.poll() is not None), process)
        with suppress(subprocess.TimeoutExpired):
            first.popen.wait(10)
        status = first.popen.returncode
        how = "did not answer" if status is None else f"ended with status {status}"
        if status is not None and status < 0:
            how = f"was ended by {Signals(-status).name}"
        return RunError(
            f"Process {self._all.index(first) + 2} of {len(self._all) + 1} of the training, on {first.device}, {how}: "
            "see that memory suffices, or take fewer training.processes; `pe resume` goes on after the last block."
        )
