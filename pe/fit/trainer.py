"""A generator that is fitted on the private records, under a budget, before it answers.

Any class with the methods of `Trainer` and of a generator (pe/plugins/protocols.py) works if an
entry point of `pe.adapters` names it. It belongs to the private side: only releases through the
ledger tell others of the records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pe.data.arrays import Float64Array, ImageShape, Int32Array, Int64Array
from pe.data.bounded import read_bytes
from pe.data.samples import Array, Shape
from pe.errors import PrivacyError, RecipeError
from pe.plugins.specs import PluginSpec
from pe.privacy.covered import sha256
from pe.privacy.ledger import Budget, Ledger
from pe.privacy.release import Relation, Release
from pe.private.dataset import PrivateDataset
from pe.progress import Progress
from pe.store.certified import read_json
from pe.store.durable import write_durably
from pe.store.machine import is_own as is_own
from pe.store.places import CERTIFICATE

# The folder of the fitted model, in the run's folder. Shareable: it is computed from releases
# alone.
MODEL = "model"

# Prefix of the names of all releases of a fit.
FIT = "fit/"

_BLOCK = 256


class Cache:
    """Intermediate results that spare a resumed fit work.

    They are computed from public values and releases alone.

    Args:
        folder: holds them until the fit is done; None: nothing is kept.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def get(self, name: str, compute: Callable[[], bytes]) -> bytes:
        """Return what is kept under `name`, or compute it, keep it durably and return it.

        It must depend on private records through releases only.

        Raises:
            RunError: the disk refuses it.
        """
        if self._folder is None:
            return compute()
        path = self._folder / name
        if path.is_file():
            return path.read_bytes()
        content = compute()
        self._folder.mkdir(exist_ok=True)
        write_durably(path, content)
        return content


@dataclass(frozen=True)
class FitTerms:
    """The public values from which a fit is planned.

    Attributes:
        classes: the label names.
        shape: of every private sample.
        declared_size: the public number of records.
        relation: the neighbouring relation.
        unit: the privacy unit's name.
        budget: the most that the fit may cost.
        seed: of everything but noise and sampling coins.
        embedding: the run's own; None: it is an object.
    """

    classes: tuple[str, ...]
    shape: Shape
    declared_size: int
    relation: Relation
    unit: str
    budget: Budget
    seed: int = 0
    embedding: PluginSpec | None = field(default=None, compare=False)

    @property
    def image_shape(self) -> ImageShape:
        """Height, width and channels, if the samples are images."""
        height, width, channels = self.shape
        return height, width, channels


@dataclass(frozen=True)
class Fitting:
    """The tools of a fit.

    Attributes:
        terms: the public values from which the fit was planned.
        private: gives the private records. CONFIDENTIAL: to be called only while a release is
            drawn, so that a run whose releases are all stored no longer needs the records.
        ledger: charges and draws each release; nothing else adds noise.
        folder: where the fitted model goes.
        progress: told of steps done, never of anything private.
        stop: set to stop between two releases.
        cache: what the fit computed from public values and releases before it was interrupted.
    """

    terms: FitTerms
    private: Callable[[], PrivateRecords]
    ledger: Ledger
    folder: Path
    progress: Progress = field(default_factory=Progress)
    stop: Event = field(default_factory=Event)
    cache: Cache = field(default_factory=Cache)


@dataclass(frozen=True, eq=False)
class PrivateRecords:
    """CONFIDENTIAL: the readable private records, in memory.

    Their number is confidential, too.

    Attributes:
        samples: n of them, as their modality stores them; images: uint8 (n, h, w, c).
        labels: int32 (n,).
        units: int64 (n,), the privacy-unit id of each record.
    """

    samples: Array
    labels: Int32Array
    units: Int64Array

    def by_unit(self) -> tuple[Int64Array, Int64Array]:
        """Return the place of each record's unit, int64 (n,), and each unit's number of records."""
        _, place, sizes = np.unique(self.units, return_inverse=True, return_counts=True)
        return place, sizes

    @classmethod
    def of(cls, dataset: PrivateDataset) -> PrivateRecords:
        """Decode all records of a data set. Records that cannot be decoded are left out."""
        samples = [dataset.modality.stack([], dataset.shape).array]
        valid = []
        for block, good in dataset.blocks(_BLOCK):
            samples.append(block.array[good])
            valid.append(good)
        mask = np.concatenate([np.zeros(0, dtype=np.bool_), *valid])[: len(dataset)]
        return cls(np.concatenate(samples), dataset.labels[mask], dataset.units[mask])


@runtime_checkable
class Trainer(Protocol):
    """A generator that is fitted on the private records before it answers."""

    def plan_releases(self, terms: FitTerms) -> Sequence[Release]:
        """Return every release of the fit, calibrated to `terms.budget`. Names begin with FIT.

        Raises:
            RecipeError: it cannot be fitted on these terms.
        """
        ...

    def fit(self, fitting: Fitting) -> None:
        """Draw the planned releases through the ledger, and write the model to the folder.

        The model follows from the releases.

        A release that is stored already is not drawn again, so an interrupted fit can be resumed.

        Raises:
            Interrupted: a stop was requested.
        """
        ...

    def load(self, folder: Path) -> None:
        """Answer from the model in `folder` from now on."""
        ...


@dataclass(frozen=True)
class DryRun:
    """Forecast of one part of a fit, measured on the machine where it will run.

    Attributes:
        part: prefix of the names of the part's releases; for a part that releases nothing, its
            task.
        steps: number of steps that the part takes.
        seconds_per_step: on average.
        parameters: how many numbers are trained.
        memory: bytes that the part holds at most, beside the model; None where the system does not
            tell.
        blocks: number of releases into which the steps are divided, each of a training state; 0:
            none is released.
        state_bytes: bytes of the state in one release.
        noise_multiplier: σ of DP-SGD; None where no noise is added, or no budget has fixed it yet.
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
        """Seconds for all steps."""
        return self.steps * self.seconds_per_step

    def to_dict(self) -> dict[str, str | int | float | None]:
        """Return JSON values, `seconds` included."""
        return {**asdict(self), "seconds": self.seconds}


@runtime_checkable
class Rehearsing(Protocol):
    """A `Trainer` that can forecast its fit."""

    def dry_run(self, terms: FitTerms, measured: bool = True) -> Sequence[DryRun]:
        """Forecast each part of the fit. No record is read, nothing is kept.

        Args:
            terms: of the fit.
            measured: whether some of the work is done here on made-up samples, to measure it. If
                not, only what follows from public numbers is told, at no cost: it is part of every
                plan.

        Raises:
            RecipeError: it cannot be fitted on these terms, or memory does not suffice.
        """
        ...


@runtime_checkable
class HasRecordLoss(Protocol):
    """A `Trainer` whose fitted model has a loss on each single record.

    An evaluation attacks the model by it.
    """

    def record_losses(
        self,
        folder: Path,
        samples: Array,
        labels: Sequence[str],
    ) -> Float64Array:
        """Return the loss of the model in `folder` on each sample, float64 (n,).

        It is small for a sample that the model knows well.

        A loss is a function of that sample, its label and the model alone; all other inputs are
        fixed and public.

        Args:
            folder: of a fitted model, as `load` takes it.
            samples: as the records of the fit were stored.
            labels: the label name of each.

        Raises:
            RecipeError: there is no such model, or it was fitted for other labels.
        """
        ...


def load_model(api: object, run: Path) -> None:
    """Let a generator answer from the model in the folder of a run.

    Do nothing for one that is not fitted.
    """
    if isinstance(api, Trainer) and (run / MODEL).is_dir():
        api.load(run / MODEL)


# A fitted model on disk, with its cost, so that other runs can answer from it and count that cost,
# too.

# The file that describes a fitted model and its cost, beside the model in the run's folder MODEL.
FITTED = "fitted.json"


@dataclass(frozen=True)
class Fitted:
    """The origin of a fitted model, all of it public or released."""

    run: str  # the name of the run that fitted it
    kind: str  # of the adapter
    settings: dict[str, Any]  # of the adapter
    classes: tuple[str, ...]  # the label names
    shape: Shape  # of every sample
    releases: tuple[Release, ...]  # of the fit, each as often as it was charged
    holds: bool  # whether only safe noise was used, so that there is a guarantee

    def write(self, folder: Path) -> None:
        """Write the description beside the model in `folder`."""
        content = vars(self) | {
            "releases": [release.to_dict() for release in self.releases],
        }
        (folder / FITTED).write_text(
            json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )

    @classmethod
    def read(cls, folder: Path) -> Fitted:
        """Read the file beside the model in `folder`.

        Raises:
            RecipeError: it is missing or damaged.
            RunError: it is no JSON.
        """
        try:
            content = read_json(read_bytes(folder / FITTED).decode(), folder / FITTED)
            if not all(
                one["counted"] for one in content.get("built_on", ())
            ):  # an earlier version's declaration
                raise PrivacyError("It lacks the cost of a model that it was built on.")
            return cls(
                run=str(content["run"]),
                kind=str(content["kind"]),
                settings=dict(content["settings"]),
                classes=tuple(map(str, content["classes"])),
                shape=tuple(map(int, content["shape"])),
                releases=tuple(Release.from_dict(one) for one in content["releases"]),
                holds=content["holds"] is True,
            )
        except OSError as error:
            raise RecipeError(
                f"{folder} holds no fitted model. Name a run whose generator was fitted."
            ) from error
        except (ValueError, KeyError, TypeError, PrivacyError) as error:
            raise RecipeError(f"{folder / FITTED} is damaged. Restore it from a copy.") from error

    @classmethod
    def of_run(cls, run: Path) -> Fitted:
        """Read the fitted model of a finished run, and compare it with the run's certificate.

        Raises:
            RecipeError: there is none, the run is not finished, or a file differs from the
                certified one.
        """
        try:
            certificate = read_json(read_bytes(run / CERTIFICATE).decode(), run / CERTIFICATE)
            digests = {str(one["file"]): str(one["sha256"]) for one in certificate["covered"]}
        except OSError as error:
            lacks = "is not finished. Finish it" if run.exists() else "does not exist. Name one"
            raise RecipeError(f"`api.path`: the run {run} {lacks}.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise RecipeError(f"{run / CERTIFICATE} is damaged. Restore it from a copy.") from error
        # The cost is that of the files that were certified, and of no others.
        origin = cls.read(run / MODEL)
        for path in sorted((run / MODEL).rglob("*")):
            name = path.relative_to(run).as_posix()
            if path.is_symlink() or (path.is_file() and digests.get(name) != sha256(path)):
                raise RecipeError(
                    f"{path} is not as {run}'s certificate has it. Restore it from a copy."
                )
        if not origin.holds:
            raise RecipeError(
                f"{run} was fitted with unsafe noise, so its model has no guarantee. Fit it anew."
            )
        return origin
