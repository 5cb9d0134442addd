"""Trainer: a generator that is fitted on the private records, under a budget, before it answers.

Any class with these methods serves, beside RANDOM_API and VARIATION_API (pe/plugins/protocols.py), that an entry
point of `pe.adapters` names: its fit is planned before there is a run. It is part of the private side: it is handed
the records, and must let nothing of them out but through the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pe.data.samples import Array, Shape
from pe.privacy.ledger import Budget, Ledger
from pe.privacy.release import Relation, Release
from pe.private.dataset import PrivateDataset
from pe.progress import Progress
from pe.store.durable import write_durably

MODEL = "model"
"""The folder of the fitted model, in the run. Shareable: it is computed from releases alone."""

FIT = "fit/"
"""What the names of all releases of a fit begin with."""

_BLOCK = 1024


class Kept:
    """What a fit computed from public values and releases alone, so that one that goes on need not do so again.

    Args:
        folder: where it lies until the fit is done; None: nothing is kept.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def find(self, name: str) -> bytes | None:
        """What was kept under `name`, whole; None if nothing was."""
        path = None if self._folder is None else self._folder / name
        return path.read_bytes() if path is not None and path.is_file() else None

    def keep(self, name: str, content: bytes) -> None:
        """Keep `content`, durably; never anything that depends on a private record but through a release.

        Raises:
            RunError: the disk refuses it.
        """
        if self._folder is not None:
            self._folder.mkdir(exist_ok=True)
            write_durably(self._folder / name, content)


@dataclass(frozen=True)
class FitTerms:
    """What a fit is planned from; all of it public.

    Attributes:
        classes: the label names.
        shape: of every private sample.
        declared_size: the public number of records.
        relation: the neighbouring relation.
        unit: the privacy unit's name.
        budget: the most that the fit may cost.
        seed: of everything but noise and sampling coins.
    """

    classes: tuple[str, ...]
    shape: Shape
    declared_size: int
    relation: Relation
    unit: str
    budget: Budget
    seed: int = 0

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels, where the samples are images."""
        height, width, channels = self.shape
        return height, width, channels


@dataclass(frozen=True)
class Fitting:
    """What a fit works with.

    Attributes:
        terms: what it was planned from.
        private: gives the private records. CONFIDENTIAL: to be called only while a release is drawn, so that a run
            whose releases are all stored needs them no more.
        ledger: the door to noise.
        folder: where the fitted model goes.
        progress: told of steps done, never of anything private.
        stop: set to stop between two releases.
        kept: what it computed from public values and releases before it was broken off.
    """

    terms: FitTerms
    private: Callable[[], PrivateRecords]
    ledger: Ledger
    folder: Path
    progress: Progress = field(default_factory=Progress)
    stop: Event = field(default_factory=Event)
    kept: Kept = field(default_factory=Kept)


@dataclass(frozen=True, eq=False)
class PrivateRecords:
    """CONFIDENTIAL: readable private records in memory, their number included.

    Attributes:
        samples: n of them, as their modality stores them; images: uint8 (n, h, w, c).
        labels: int32 (n,).
        units: int64 (n,), whose record each is.
    """

    samples: Array
    labels: npt.NDArray[np.int32]
    units: npt.NDArray[np.int64]

    @classmethod
    def of(cls, dataset: PrivateDataset) -> PrivateRecords:
        """All records of a data set that can be decoded; what cannot contributes nothing."""
        samples, valid = [dataset.modality.stack([], dataset.shape).array], []
        for block, good in dataset.blocks(_BLOCK):
            samples.append(block.array[good])
            valid.append(good)
        kept = np.concatenate([np.zeros(0, dtype=np.bool_), *valid])[: len(dataset)]
        return cls(np.concatenate(samples), dataset.labels[kept], dataset.units[kept])


@runtime_checkable
class Trainer(Protocol):
    """A generator with a fit."""

    def planned(self, terms: FitTerms) -> Sequence[Release]:
        """Every release of the fit, calibrated to `terms.budget`; names begin with FIT.

        Raises:
            RecipeError: it cannot be fitted on these terms.
        """
        ...

    def fit(self, fitting: Fitting) -> None:
        """Draw the planned releases through the ledger, and put the model that follows from them into the folder.

        Whatever is stored already is not drawn again, so a fit that was broken off goes on.

        Raises:
            Interrupted: it was told to stop.
        """
        ...

    def load(self, folder: Path) -> None:
        """Answer from the model in `folder` from now on."""
        ...


@dataclass(frozen=True)
class DryRun:
    """What a part of a fit will take, measured where it will run.

    Attributes:
        part: what its releases are named by, or what it does where it releases nothing.
        steps: how many.
        seconds_per_step: on average.
        parameters: how many numbers are trained.
        memory: bytes that it holds at most, beside the model; None where the system does not tell.
        blocks: in how many releases.
        state_bytes: of one release.
        noise_multiplier: σ of DP-SGD; None where no noise is added, or no budget has settled it yet.
    """

    part: str
    steps: int
    seconds_per_step: float
    parameters: int
    memory: int | None
    blocks: int = 0
    state_bytes: int = 0
    noise_multiplier: float | None = None

    @property
    def seconds(self) -> float:
        """For all steps."""
        return self.steps * self.seconds_per_step

    def to_dict(self) -> dict[str, str | int | float | None]:
        """As JSON values, `seconds` with them."""
        return {**asdict(self), "seconds": self.seconds}


@runtime_checkable
class Rehearsing(Protocol):
    """A `Trainer` that can tell what its fit will take."""

    def dry_run(self, terms: FitTerms) -> Sequence[DryRun]:
        """A few steps of each part on random images; no record is read, nothing is kept.

        Raises:
            RecipeError: it cannot be fitted on these terms, or memory does not suffice.
        """
        ...


@runtime_checkable
class HasRecordLoss(Protocol):
    """A `Trainer` whose fitted model has a loss of its own on a record, by which an evaluation attacks it."""

    def record_losses(self, folder: Path, samples: Array, labels: Sequence[str]) -> npt.NDArray[np.float64]:
        """The loss of the model in `folder` on each sample, float64 (n,): the smaller, the better the model knows it.

        A loss is a function of that sample, its label and the model alone: what else it needs is fixed and public.

        Args:
            folder: of a fitted model, as `load` takes it.
            samples: as the records of the fit were stored.
            labels: the label name of each.

        Raises:
            RecipeError: there is no such model, or it was fitted for other labels.
        """
        ...


def load_model(api: object, run: Path) -> None:
    """Let a generator that was fitted in the run's folder `run` answer from that model; others need nothing."""
    if isinstance(api, Trainer) and (run / MODEL).is_dir():
        api.load(run / MODEL)
