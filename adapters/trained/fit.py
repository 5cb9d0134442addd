"""The tools of fitted methods, each of which is one function, `_fit`.

The function runs to fit the method, and to plan what it releases and costs.

It gets the tools of a `Fit`. A plan gives it a `Recording` in their place, which notes the releases
that are declared.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from pe.data.arrays import Float64Array, Int64Array
from pe.data.bounded import read_bytes
from pe.errors import APIError, Interrupted, PEError, PrivacyError, RecipeError, quoted
from pe.fit.trainer import FIT, DryRun, FitTerms, Fitting, PrivateRecords
from pe.plugins.protocols import Generator
from pe.plugins.weights import check_whole
from pe.privacy.calibration import calibrate
from pe.privacy.ledger import Budget
from pe.privacy.noise import Noise, grid_for
from pe.privacy.release import Poisson, Relation, Release

if TYPE_CHECKING:
    from torch import Tensor

Array = TypeVar("Array", bound=npt.NDArray[np.generic])

# Function from a record, such as an image, uint8 (h, w, c), to a vector, float64 (length,).
Vector = Callable[[npt.NDArray[Any]], Float64Array]

# To be called after each step of a training; an exception ends the training.
StepDone = Callable[[], None]

# A grid for any release until its own is known.
_FINE = 2**20

# Factor that keeps a vector's norm at most 1, whatever rounding does.
BELOW_ONE = 1 - 1e-9


def on_grid(vector: Float64Array, grid: int) -> Int64Array:
    """Return `vector`, of L2 norm ≤ 1, in integer grid steps.

    It is rounded toward zero, so its norm does not grow.
    """
    return np.trunc(vector * (grid * BELOW_ONE)).astype(np.int64)


def in_ball(vector: Float64Array) -> Float64Array:
    """Return a vector of L2 norm at most 1: a longer one is scaled, one that is not finite is 0.

    A mistake in a method then costs quality and no privacy.
    """
    length = float(np.linalg.norm(vector))
    if not math.isfinite(length):
        return np.zeros_like(vector)
    # Rounding alone can exceed 1, and `on_grid` allows for that.
    return vector / length if length > 1 / BELOW_ONE else vector


def noisy_sums(
    records: PrivateRecords,
    classes: int,
    vector: Vector,
    length: int,
    release: Release,
    noise: Noise,
) -> Int64Array:
    """Return noisy sums of vectors by subset and label, in grid steps.

    The sums are int64 (subsets, classes, length).

    Guarantee: the release's, over all `count` subsets, if the vector of an image, float64
    (length,), depends on that image and on public values alone, to the last bit. Its L2 norm is
    cut to 1. Each subset tosses a coin for every unit. A unit's records share a weight of 1;
    vectors are rounded toward zero on the grid. So adding or removing a unit changes a subset's
    clean sums by at most 1 in L2 norm, replacing one by at most 2. There may be no records.
    """
    unit, sizes = records.by_unit()
    sums = np.zeros((release.count, classes, length), dtype=np.int64)
    rate = 1.0 if release.sampling is None else release.sampling.rate
    # All coins are tossed before a vector is computed: a row for each subset.
    drawn = np.stack(
        [noise.coins(len(sizes), rate) if rate < 1 else np.ones(len(sizes), bool) for _ in sums]
    )
    for image, label, owner in zip(records.samples, records.labels, unit, strict=True):
        sums[drawn[:, owner], label] += on_grid(in_ball(vector(image)) / sizes[owner], release.grid)
    return sums + noise.discrete_gaussian(sums.shape, release.scale)


def with_share(terms: FitTerms, share: float) -> FitTerms:
    """Return `terms` with `share` of the budget's ε, and the whole δ."""
    return replace(terms, budget=Budget(share * terms.budget.epsilon, terms.budget.delta))


@lru_cache(maxsize=64)
def _calibrated(release: Release, budget: Budget, fractional: bool | None) -> Release:
    """Return `release` with the least noise that meets the budget, and with the grid for it.

    The grid stays if `fractional` is None.

    Raises PrivacyError if no noise suffices. Cached: where records are sampled, the search takes
    seconds.
    """

    def with_noise(z: float) -> Release:
        grid = (
            release.grid
            if fractional is None
            else grid_for(z, release.sensitivity, fractional=fractional)
        )
        return replace(release, noise_multiplier=z, grid=grid)

    return with_noise(calibrate(lambda z: [with_noise(z)], budget))


class Fit:
    """The tools of a fitted method: they declare releases, and draw them.

    They give nothing else that depends on records.

    A method declares all that it releases, calls `begin`, and only then computes; trainings.py has
    tools for DP-SGD.

    Attributes:
        fitting: ledger, progress, folder and stop signal; its `private` reads the records once.
        terms: of the fit.
        releases: those declared so far, in the order in which they get their budget.
        trainings: how many trainings by DP-SGD are among them.
    """

    fitting: Fitting
    terms: FitTerms
    releases: tuple[Release, ...] = ()
    trainings: int = 0
    _has_begun: bool = False

    def __init__(self, fitting: Fitting) -> None:
        self.fitting = replace(fitting, private=cache(fitting.private))
        self.terms = fitting.terms

    @property
    def folder(self) -> Path:
        """The folder of the fitted model."""
        return self.fitting.folder

    # What is released.

    def sum(
        self,
        name: str,
        share: float = 1.0,
        sensitivities: tuple[float, float] = (1.0, 2.0),
        *,
        fractional: bool = True,
        sampling: Poisson | None = None,
        count: int = 1,
        grid: int | None = None,
    ) -> Release:
        """Declare a noisy sum, or several over drawn subsets.

        A privacy unit adds a vector of bounded L2 norm to each.

        Args:
            name: of the release, without the prefix FIT.
            share: the share of the fit's ε that the release costs, taken alone.
            sensitivities: L2 sensitivities: first under add/remove and zero-out, then under
                replace-one.
            fractional: whether a record may add fractions; if not, it adds whole numbers only.
            sampling: of the units of each subset; None: every subset holds all units.
            count: number of sums, one for each subset.
            grid: integer steps per 1 of the sum; None: as many as `grid_for` returns.
        """
        # The noise multiplier of 1 stands in until the one that the budget asks for is found.
        terms = self.terms
        sensitivity = sensitivities[terms.relation == Relation.REPLACE_ONE]
        release = Release(
            name=f"{FIT}{name}",
            mechanism="discrete_gaussian",
            sensitivity=sensitivity,
            noise_multiplier=1.0,
            relation=terms.relation,
            unit=terms.unit,
            sampling=sampling,
            count=count,
            grid=grid or _FINE,
        )
        release = _calibrated(
            release, with_share(terms, share).budget, None if grid else fractional
        )
        self.declare(release)
        return release

    def declare(self, *releases: Release) -> None:
        """Declare releases whose noise is known.

        They may be those of another method that is fitted within this one.
        """
        if self._has_begun:
            raise PrivacyError("Declare releases before `fit.begin()`, where a plan ends.")
        self.releases += releases

    def begin(self) -> None:
        """Say that all is declared. A plan ends here."""
        self._has_begun = True

    def is_drawn(self, release: Release) -> bool:
        """Return whether a declared release is stored."""
        return self.fitting.ledger.has_drawn(release)

    def release(
        self,
        release: Release,
        draw: Callable[[PrivateRecords, Noise], Array],
    ) -> Array:
        """Return the noisy value of a declared release: the stored one, or one that is drawn now.

        Guarantee: the release's, if `draw` keeps it. The records are read only while the value is
        drawn. Raises PrivacyError for a release that was not declared, and so is in no plan.
        """
        if release not in self.releases:
            raise PrivacyError(
                f"Release '{release.name}' is not declared: declare it before `fit.begin()`."
            )
        array = self.fitting.ledger.release(
            release, lambda noise: draw(self.fitting.private(), noise)
        )
        return cast(Array, array)

    def sums(
        self,
        release: Release,
        vector: Vector,
        shape: tuple[int, ...],
    ) -> Int64Array:
        """Return the noisy sums of the records' vectors, in grid steps: see `noisy_sums`.

        Args:
            release: what `sum` returned.
            vector: computes the vector of one image.
            shape: (length,) for one sum, (labels, length), or (subsets, labels, length).
        """

        def draw(records: PrivateRecords, noise: Noise) -> Int64Array:
            if len(shape) == 1:
                records = replace(records, labels=np.zeros_like(records.labels))
            return noisy_sums(records, (1, *shape)[-2], vector, shape[-1], release, noise).reshape(
                shape
            )

        return self.release(release, draw)

    # What is computed from public values and releases alone.

    def kept(self, name: str, compute: Callable[[], bytes]) -> bytes:
        """Return what an interrupted fit kept under `name`, or compute and keep it: see `Cache`."""
        return self.fitting.cache.get(name, compute)

    @contextmanager
    def steps(self, task: str, steps: int) -> Iterator[StepDone]:
        """Yield a function to call after each of `steps` steps.

        It raises Interrupted if a stop was requested.
        """
        with self.fitting.progress.task(task, steps) as progress:

            def step_done() -> None:
                progress.advance(1)
                self.check_stop()

            yield step_done

    def check_stop(self) -> None:
        """Raise Interrupted if a stop was requested."""
        if self.fitting.stop.is_set():
            raise Interrupted(
                "Stopped as asked. All that the fit released is kept, and `pe run "
                f"{quoted(self.folder.parent)}` goes on."
            )


class _Recorded(Exception):
    """Ends a method of which enough is recorded."""


class Recording(Fit):
    """Runs a method to record what it declares. Reads no record and draws nothing.

    Args:
        terms: of the fit.
        tries: whether its trainings are tried, too, on made-up images, to measure what they cost
            here. A method is then run up to the last training by DP-SGD that it declared; otherwise
            up to `begin`.

    Attributes:
        costs: of the trainings that were tried.
    """

    def __init__(self, terms: FitTerms, tries: bool = False) -> None:
        self.terms = terms
        self._tries = tries
        self.costs: list[DryRun] = []

    def record(self, method: Callable[[Fit], None]) -> Recording:
        """Run `method`. Raise what it raises if it cannot be fitted on these terms."""
        with suppress(_Recorded):
            method(self)
        return self

    def begin(self) -> None:
        """End the method, unless it has trainings to try."""
        if not (self._tries and self.trainings):
            raise _Recorded

    def is_drawn(self, release: Release) -> bool:
        """Return True: nothing that prepares a release is done."""
        return True

    def kept(self, name: str, compute: Callable[[], bytes]) -> bytes:
        """Return what is computed."""
        return compute()

    def add_cost(self, cost: DryRun) -> None:
        """Record the cost of a training. End the method after its last training by DP-SGD."""
        self.costs.append(cost)
        self.trainings -= bool(cost.blocks)
        if not self.trainings:
            raise _Recorded


class FittedMethod(Generator, ABC):
    """A generator that is fitted before it answers: a `Trainer`.

    The method is one function, `_fit`.
    """

    @abstractmethod
    def _fit(self, fit: Fit) -> None:
        """Declare all releases, call `fit.begin`, then fit the model and write it to `fit.folder`.

        The same function is run to plan (`Recording`). Raises RecipeError or PrivacyError, before
        `fit.begin`, if the method cannot be fitted on `fit.terms`. The model may depend on records
        through declared releases only.
        """

    def plan_releases(self, terms: FitTerms) -> Sequence[Release]:
        """See `Trainer`.

        Raise PrivacyError if the budget is too small, or the unit larger than the method protects.
        """
        return Recording(terms).record(self._fit).releases

    def dry_run(self, terms: FitTerms, measured: bool = True) -> Sequence[DryRun]:
        """See `Rehearsing`."""
        return Recording(terms, tries=True).record(self._fit).costs if measured else []

    def fit(self, fitting: Fitting) -> None:
        """See `Trainer`.

        Raise what `plan_releases` does, and RecipeError if memory does not suffice.

        Guarantee: the declared releases'; everything besides is post-processing of them, or public.
        The private records are read only while a release is drawn. A resumed fit takes stored
        releases and weights, and repeats the rest.
        """
        self._fit(Fit(fitting))


# Fitted models on disk, and the labels they know.


def label_numbers(labels: Sequence[str], classes: Sequence[str]) -> Int64Array:
    """Return the number of each label, int64 (n,).

    Raise RecipeError for a label that the model was not fitted for.
    """
    unknown = sorted(set(labels) - set(classes))
    if unknown:
        names = ", ".join(f"'{name}'" for name in sorted(set(classes)))
        raise RecipeError(
            f"The model was fitted for the labels {names}, but not for '{unknown[0]}'. Use the "
            "`private.classes` that it was fitted with."
        )
    return np.array([classes.index(label) for label in labels], dtype=np.int64)


def not_fitted() -> APIError:
    """Return the error for a generator that is asked before it is fitted."""
    return APIError("This generator is not fitted yet. `pe run` fits it first.")


@contextmanager
def reading(folder: Path, model: str) -> Iterator[None]:
    """Raise RecipeError if a fitted model's files, read within the block, are missing or damaged.

    `model`: its kind.
    """
    try:
        yield
    except PEError:
        raise
    except Exception as error:  # whatever a reader makes of a broken or foreign file
        check_whole(folder)
        raise RecipeError(f"{folder} holds no {model}. Fit it in a new run.") from error


def rng_of(seed: np.uint64) -> np.random.Generator:
    """Return a generator of the randomness of one sample, by its seed."""
    return np.random.Generator(np.random.Philox(key=int(seed)))


def load_json(file: Path) -> Any:
    """Return what a JSON file holds. Raise OSError or ValueError if it is missing or damaged."""
    return json.loads(read_bytes(file))


def write_json(content: object, file: Path) -> None:
    """Write a JSON file of one line."""
    file.write_text(json.dumps(content) + "\n", encoding="utf-8")


def write_weights(weights: Mapping[str, Tensor], file: Path) -> None:
    """Write a .safetensors file."""
    from safetensors.torch import save_file

    # Tensors may share memory, and the file holds each by itself.
    save_file({name: value.cpu().contiguous().clone() for name, value in weights.items()}, file)
