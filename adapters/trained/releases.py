"""What a fit releases beside DP-SGD: one sum, with discrete Gaussian noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from adapters.diffusion.device import choose_devices
from adapters.trained.settings import DPSGD, GRID, FineTuning
from pe.errors import Interrupted, PrivacyError, RecipeError
from pe.fit.trainer import FIT, FitTerms, Fitting, PrivateRecords
from pe.plugins.devices import words_for
from pe.privacy.calibration import calibrate
from pe.privacy.ledger import Budget
from pe.privacy.noise import Noise, grid_for
from pe.privacy.release import Poisson, Relation, Release

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from adapters.trained.dp_sgd.training import FloatArray, Training


BELOW_ONE = 1 - 1e-9
"""Keeps a vector's norm at most 1 whatever rounding does."""


@lru_cache(maxsize=64)
def sum_release(
    name: str,
    sensitivity: float,
    budget: Budget,
    relation: Relation,
    unit: str,
    fractional: bool = False,
    sampling: Poisson | None = None,
    count: int = 1,
    grid: int | None = None,
) -> Release:
    """The release of a sum, or of sums over subsets, with the least noise that alone meets `budget`.

    It is found once per process: where records are sampled, it takes seconds.

    Args:
        name: of the release.
        sensitivity: L2, > 0, for the relation.
        budget: (ε, δ).
        relation: between neighbouring data sets.
        unit: of protection.
        fractional: whether a record adds fractions, and not whole numbers alone.
        sampling: how the subsets are drawn; None: all records are in it.
        count: how many sums.
        grid: steps per unit of the sum; None: as few as suffice.

    Raises:
        PrivacyError: no noise meets the budget.
    """

    def release(z: float) -> Release:
        steps = grid or grid_for(z, sensitivity, fractional=fractional)
        return Release(name, "discrete_gaussian", sensitivity, z, relation, unit, sampling, count, steps)

    return release(calibrate(lambda z: [release(z)], budget))


def on_grid(vector: npt.NDArray[np.float64], grid: int) -> npt.NDArray[np.int64]:
    """What a record adds, float64 of an L2 norm of at most 1, in grid steps: rounded toward zero, so no norm grows."""
    return np.trunc(vector * (grid * BELOW_ONE)).astype(np.int64)


# What a training costs, and how much noise a budget asks for.


def releases(settings: DPSGD, name: str, relation: Relation, unit: str = "record") -> tuple[Release, ...]:
    """One release per block, in order, named `name`/1, `name`/2 and so on.

    Each declares the Poisson-sampled discrete Gaussian that `Training.block` does `count` times, in units of the clip.
    Under replace-one a record's gradient goes and another comes, so the sensitivity is 2, and the multiplier, which
    counts in sensitivities, σ/2.

    Raises:
        PrivacyError: a unit larger than a record, or noise that protects nothing.
    """
    if unit != "record":
        raise PrivacyError(
            f"DP-SGD clips the gradient of a record, so it protects no '{unit}': take private.privacy_unit: record."
        )
    moved = 2 if Relation(relation) is Relation.REPLACE_ONE else 1
    sampling = Poisson(settings.rate) if settings.rate < 1 else None
    return tuple(
        Release(
            name=f"{name}/{block + 1}",
            mechanism="discrete_gaussian",
            sensitivity=moved,
            noise_multiplier=settings.settled / moved,
            relation=relation,
            unit=unit,
            sampling=sampling,
            count=settings.steps_from(block * settings.block),
            grid=GRID,
        )
        for block in range(settings.blocks)
    )


def calibrated(settings: DPSGD, budget: Budget, relation: Relation, others: Sequence[Release] = ()) -> DPSGD:
    """`settings` with the least noise for which the training and `others` meet `budget`.

    Args:
        settings: the rest of the training; its own noise_multiplier is not looked at.
        budget: for everything that the ledger holds.
        relation: of the ledger.
        others: what else is, or will be, on the ledger.

    Raises:
        PrivacyError: the others take all of the budget, or what they leave is too little for one useful step.
    """
    found = settings.with_noise(_least(settings, budget, relation, others))
    if found.settled > settings.expected_batch:
        _check_single_step(settings, budget, relation, others)
    return found


def _least(settings: DPSGD, budget: Budget, relation: Relation, others: Sequence[Release]) -> float:
    def all_of(noise_multiplier: float) -> list[Release]:
        return [*others, *releases(settings.with_noise(noise_multiplier), "fit", relation)]

    return calibrate(all_of, budget)


def _check_single_step(settings: DPSGD, budget: Budget, relation: Relation, others: Sequence[Release]) -> None:
    """Refuse when, in one step alone, the noise in any direction exceeds what all its records could add there."""
    single = _least(settings.model_copy(update={"steps": 1}), budget, relation, others)
    if single > settings.expected_batch:
        raise PrivacyError(
            f"What a training has of its ε = {budget.epsilon:g} asks for a noise multiplier of {single:,.1f} for one "
            f"single step, which expects {settings.expected_batch} records: the noise drowns even what all of them "
            "agree on; raise privacy.epsilon, or the training's share of it."
        )


# DP-SGD in a fit: the noise that the budget asks for, and one release after the other.


TRAINING = f"{FIT}training"


def settled(training: FineTuning, terms: FitTerms, others: tuple[Release, ...], budget: Budget | None = None) -> DPSGD:
    """The fine-tuning with the least noise for which it and `others` meet a budget, the fit's unless another is given.

    It is found once per process: where records are sampled, it takes many seconds.

    Raises:
        RecipeError: a setting out of range.
        PrivacyError: too little is left for one useful step, or the unit is larger than a record.
    """
    open_ = training.dp_sgd(terms.declared_size)
    blocks_of(open_.with_noise(1.0), terms)  # a unit that it cannot protect, before the long search
    return _calibrated(open_, budget or terms.budget, Relation(terms.relation), others)


def blocks_of(settings: DPSGD, terms: FitTerms, name: str = TRAINING) -> tuple[Release, ...]:
    """The release of each block of steps, in order."""
    return releases(settings, name, terms.relation, terms.unit)


def train_blocks(
    training: Training,
    blocks: tuple[Release, ...],
    fitting: Fitting,
    private: Callable[[], PrivateRecords],
    what: str = "training on the private records",
    after: Callable[[FloatArray], None] | None = None,
) -> FloatArray:
    """The state after all `blocks`: stored ones are taken as they are, the others are drawn.

    Guarantee: the releases'. The private records are asked for only while a block is drawn.

    Args:
        training: what a block does.
        blocks: in order.
        fitting: ledger, progress, and the signal to stop.
        private: gives the records.
        what: the task's name.
        after: told of each block's state, which is released.

    Raises:
        Interrupted: the fit was told to stop.
        RecipeError: memory does not suffice.
        RunError: another process of the training ended.
    """
    state = training.start()
    with closing(training), fitting.progress.task(what, training.settings.steps) as task:
        if not all(fitting.ledger.drawn(release) for release in blocks):
            training.gather()
        for release in blocks:
            check_stop(fitting)
            state = fitting.ledger.release(release, _next(training, state, private))
            if after is not None:
                after(state)
            task.advance(release.count)
    return state


@contextmanager
def counted_steps(fitting: Fitting, what: str, steps: int) -> Iterator[Callable[[], None]]:
    """A task of so many steps; call what it yields after each: it raises Interrupted if a stop was requested."""
    with fitting.progress.task(what, steps) as task:

        def step_done() -> None:
            task.advance(1)
            check_stop(fitting)

        yield step_done


def training_device(wanted: str | list[str]) -> torch.device:
    """Where to train; MPS lacks float64, in which gradients are summed.

    Raises:
        RecipeError: there is no such device.
    """
    import torch

    found = choose_devices(wanted)[0]
    return found if found.type != "mps" else torch.device("cpu")


def training_devices(wanted: str | list[str], training: FineTuning) -> list[torch.device]:
    """Where each process of a training computes: a GPU of its own, or all on the processor; see `training_device`.

    Raises:
        RecipeError: there is no such device, or there are fewer GPUs than processes.
    """
    first, count = training_device(wanted), training.processes
    if first.type == "cpu":
        return [first] * count
    found = choose_devices(wanted)
    if len(found) < count:
        raise RecipeError(
            f"{training.section}.processes is {count}, and device names {words_for(len(found))}: name as many GPUs, or "
            f"take {training.section}.processes: {len(found)}."
        )
    return found[:count]


def check_stop(fitting: Fitting) -> None:
    """Raise Interrupted if a stop was requested."""
    if fitting.stop.is_set():
        raise Interrupted(
            "Stopped as asked, with every block of the fit that was released kept; "
            f"`pe resume {fitting.folder.parent}` goes on."
        )


def _next(
    training: Training, state: FloatArray, private: Callable[[], PrivateRecords]
) -> Callable[[Noise], FloatArray]:
    """Draws the block after `state`."""

    def draw(noise: Noise) -> FloatArray:
        records = private()
        return training.block(state, records.samples, records.labels, noise)

    return draw


@lru_cache(maxsize=64)
def _calibrated(settings: DPSGD, budget: Budget, relation: Relation, others: tuple[Release, ...]) -> DPSGD:
    return calibrated(settings, budget, relation, others)


# Features of images, and their noisy sum per label.


Floats = npt.NDArray[np.float64]


class Features(Protocol):
    """Features of an image; all that they are computed from but the image is public."""

    @property
    def size(self) -> int:
        """D, how many there are."""
        ...

    def of_record(self, image: npt.NDArray[np.uint8]) -> Floats:
        """φ(x), float64 (D,), of one private image (h, w, c).

        Guarantee: ‖φ(x)‖₂ ≤ 1, and no bit of it depends on anything but this image and public values.
        """
        ...

    def of_batch(self, images: Tensor) -> Tensor:
        """c·φ(x) of made images, float32 (n, h, w, c) in [0, 1] → (n, D), with one c > 0 for all; differentiable."""
        ...


def noisy_sum(
    records: PrivateRecords, classes: int, features: Features, release: Release, noise: Noise
) -> npt.NDArray[np.int64]:
    """The noisy sum of the features of each label's records, int64 (classes, D), in the release's grid steps.

    Guarantee: the release's. A unit's records share a weight of 1, each vector is rounded toward zero on the grid,
    and a record's features depend on that record alone to the last bit: one unit more changes the clean sum by at
    most 1 in L2 norm, another in its place by at most 2.
    """
    _, unit, of_unit = np.unique(records.units, return_inverse=True, return_counts=True)
    total = np.zeros((classes, features.size), dtype=np.int64)
    for image, label, owner in zip(records.samples, records.labels, unit, strict=True):
        total[label] += on_grid(features.of_record(image) / of_unit[owner], release.grid)
    return total + noise.discrete_gaussian(total.shape, release.scale)
