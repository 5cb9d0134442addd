"""Embeddings and arguments that misbehave on a worker; Ray's workers import this file."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pe.data.images import Images
from pe.histogram import Voting

CANARY = b"Canary, sing on!"
"""The 16 pixels of a private image."""


def die_once(marker: Path) -> None:
    """Kill this process as a machine's end would, if no process was killed by this marker before."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class Flat:
    """An image's pixels as they are."""

    batch_size = 16

    def embed(self, samples: Images) -> np.ndarray:
        return samples.pixels.reshape(len(samples), -1).astype(np.float32)


@dataclass
class Dies(Flat):
    """Kills the worker once, at a block with bright images."""

    marker: Path

    def embed(self, samples: Images) -> np.ndarray:
        if samples.pixels.mean(axis=(1, 2, 3)).max() > 250:
            die_once(self.marker)
        return super().embed(samples)


class OfThisProcess(Flat):
    """Gives other vectors in each process."""

    def embed(self, samples: Images) -> np.ndarray:
        return super().embed(samples) + np.float32(os.getpid())


class Broken(Flat):
    """Fails on everything."""

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
    """Rules of voting whose first reader on a worker is killed."""

    marker: Path = Path()

    def __reduce__(self) -> object:
        return _read_deadly, (self.neighbors, self.marker)


def _read_deadly(neighbors: int, marker: Path) -> Voting:
    die_once(marker)
    return Voting(neighbors)
