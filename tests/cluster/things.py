"""Embeddings and arguments that misbehave on a worker; Ray's workers import this file."""

import logging
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pe.data.images import Images
from pe.histogram import Voting
from tests.cluster.processes import kill, wait_until

CANARY = b"Canary, sing on!"  # the 16 pixels of a private image


def die_once(marker: Path) -> None:
    """Kill this process as a machine's end would, if no process was killed by this marker
    before.
    """
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def end_node(processes: tuple[int, ...], marker: Path) -> None:
    """End the node of these processes at its second call, as a machine's end would; others wait for
    the marker.
    """
    if os.getppid() != processes[0]:
        wait_until(marker.exists)
        return
    calls = marker.with_suffix(".calls")
    with calls.open("a") as file:
        file.write(".")
    if calls.stat().st_size > 1:
        marker.touch()
        kill((*processes, os.getpid()))


class Flat:
    """An image's pixels as they are."""

    batch_size = 16

    def embed(self, samples: Images) -> np.ndarray:
        return samples.pixels.reshape(len(samples), -1).astype(np.float32)


@dataclass
class Dies(Flat):
    """Comes to its end at a block with bright images."""

    end: Callable[[], None]

    def embed(self, samples: Images) -> np.ndarray:
        if samples.pixels.mean(axis=(1, 2, 3)).max() > 250:
            self.end()
        return super().embed(samples)


@dataclass
class OfThisProcess(Flat):
    """Gives other vectors in each process, and waits until two have left a file in the folder."""

    seen: Path

    def embed(self, samples: Images) -> np.ndarray:
        (self.seen / str(os.getpid())).touch()
        wait_until(lambda: len(list(self.seen.iterdir())) > 1)
        return super().embed(samples) + np.float32(os.getpid())


class Broken(Flat):
    def embed(self, samples: Images) -> np.ndarray:
        raise ValueError("no weights")


class Chatty(Flat):
    """Says by all ways what it sees, and fails on the canary."""

    def embed(self, samples: Images) -> np.ndarray:
        for image in samples.pixels:
            if image.any():
                seen = image.tobytes().decode("latin-1")
                print(seen)
                print(seen, file=sys.stderr, flush=True)
                logging.getLogger("third.party").error(seen)
                logging.getLogger("pe.third").warning("saw %s", seen)
                warnings.warn(seen, stacklevel=2)
                subprocess.run(["echo", seen.replace("\0", "")], check=True)
                if seen.encode("latin-1") == CANARY:
                    raise ValueError(seen)
        return super().embed(samples)


@dataclass(frozen=True)
class Deadly(Voting):
    """Rules of voting whose reader on a worker comes to its end."""

    end: Callable[[], None] = int

    def __reduce__(self) -> object:
        return _read_deadly, (self.neighbors, self.end)


def _read_deadly(neighbors: int, end: Callable[[], None]) -> Voting:
    end()
    return Voting(neighbors)
