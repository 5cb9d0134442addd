"""A small run over images, and what it tells."""

from contextlib import contextmanager

import numpy as np

import pe
from pe.progress import Task
from tests.generators import Mean, Shades

SETTINGS = {"epsilon": 50.0, "delta": 1e-5, "population": 20, "iterations": 2, "lookahead": 0}


class Told(pe.Progress):
    """Keeps what it is told."""

    def __init__(self):
        self.warnings, self.lines, self.phases = [], [], []

    def warn(self, message):
        self.warnings.append(message)

    def tell(self, message):
        self.lines.append(message)

    @contextmanager
    def task(self, description, total):
        self.phases.append(description)
        yield Task()


def but(plugin, **attributes):
    """The plug-in with other attributes."""
    vars(plugin).update(attributes)
    return plugin


def records_in(folder, name="private", dark=30, light=30, seed=0):
    rng = np.random.default_rng(seed)
    images = np.concatenate(
        [rng.integers(0, 60, (dark, 4, 4, 1)), rng.integers(190, 255, (light, 4, 4, 1))]
    )
    labels = np.array(["dark"] * dark + ["light"] * light)
    np.savez(folder / f"{name}.npz", images=images.astype(np.uint8), labels=labels)
    return pe.ImageNpz(
        folder / f"{name}.npz", size=4, channels=1, classes=["dark", "light"], declared_size=60
    )


def evolve(private, out, api=None, **changes):
    given = {"embedding": Mean(), "progress": pe.Progress()} | SETTINGS | changes
    return pe.evolve(private, Shades() if api is None else api, out=out, **given)
