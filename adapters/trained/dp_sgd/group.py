"""How a process that shares a training is started, and what it is told."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_PROGRAM = """
import sys
from multiprocessing.connection import Connection

from adapters.trained.dp_sgd.worker import work

work(Connection(int(sys.argv[1])))
"""


@dataclass(frozen=True)
class Start:
    """What a process is told first: where it computes, and with how many threads."""

    device: str
    threads: int


@dataclass(frozen=True)
class Task:
    """Model, loss and settings until others come, as torch saves them; tensors on a key of `places` go to its value."""

    content: bytes
    places: dict[str, str]


class Part(NamedTuple):
    """CONFIDENTIAL: the records of one micro-batch, and the seeds of what the loss draws.

    Attributes:
        images: uint8 n×h×w×c.
        labels: integers (n,).
        seeds: uint64, one for each place of a micro-batch, those without a record included.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.integer]
    seeds: npt.NDArray[np.uint64]


def start() -> tuple[subprocess.Popen[bytes], Connection]:
    """A new process that does `work`, and the pipe to it.

    It is in a session of its own, so that a Ctrl-C that asks the fit to stop after its block does not end it.
    """
    ours, theirs = Pipe()
    paths = [path or str(Path.cwd()) for path in sys.path]
    popen = subprocess.Popen(  # noqa: S603 - this program's own module
        [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # what a library says there may be about a private record
        pass_fds=[theirs.fileno()],
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    theirs.close()
    return popen, ours
