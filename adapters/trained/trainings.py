"""DP-SGD on the private records within a fit, whose releases are declared.

A `Recording` in place of a `Fit` measures it on made-up images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from adapters.trained.fit import Fit, Recording, with_share
from adapters.trained.settings import DPSGD, GRID, FineTuning
from pe.data.arrays import Float32Array
from pe.errors import PrivacyError
from pe.fit.trainer import FIT, PrivateRecords
from pe.plugins.devices import choose_devices
from pe.plugins.settings import Devices
from pe.plugins.specs import plugin
from pe.privacy.calibration import calibrate
from pe.privacy.ledger import Budget
from pe.privacy.noise import Noise
from pe.privacy.release import Poisson, Relation, Release

if TYPE_CHECKING:
    import torch
    from torch import nn

    from adapters.trained.dp_sgd.gradients import Loss
    from adapters.trained.dp_sgd.training import Training

TRAINING = f"{FIT}training"


def block_releases(
    settings: DPSGD,
    name: str,
    relation: Relation,
) -> tuple[Release, ...]:
    """Return one release per block of DP-SGD, in order, named `name`/1, `name`/2 and so on.

    Each declares the Poisson-sampled discrete Gaussian that `Training.block` draws `count` times,
    in units of the clip. Under replace-one, one record's gradient takes another's place: the
    sensitivity is 2, and the noise multiplier, which counts in sensitivities, is σ/2. The unit is a
    record. Raises PrivacyError for σ out of range.
    """
    sensitivity = 2 if relation == Relation.REPLACE_ONE else 1
    sampling = Poisson(settings.rate) if settings.rate < 1 else None
    return tuple(
        Release(
            name=f"{name}/{block + 1}",
            mechanism="discrete_gaussian",
            sensitivity=sensitivity,
            noise_multiplier=settings.sigma / sensitivity,
            relation=relation,
            sampling=sampling,
            count=settings.steps_from(block * settings.block),
            grid=GRID,
        )
        for block in range(settings.blocks)
    )


@lru_cache(maxsize=64)
def calibrate_training(
    settings: DPSGD,
    budget: Budget,
    relation: Relation,
    others: tuple[Release, ...] = (),
) -> DPSGD:
    """Return `settings` with the least noise that meets `budget` together with `others`.

    Raises PrivacyError if `others` take all of the budget, or leave too little for one useful step.
    Cached: where records are sampled, the search takes many seconds.
    """

    def least(settings: DPSGD) -> float:
        return calibrate(
            lambda z: [*others, *block_releases(settings.with_noise(z), "fit", relation)],
            budget,
        )

    sigma = least(settings)
    if sigma > settings.expected_batch:
        # Refuse if, in one step alone, the noise in any direction exceeds what all its records
        # could add there.
        single = least(settings.model_copy(update={"steps": 1}))
        if single > settings.expected_batch:
            raise PrivacyError(
                f"ε = {budget.epsilon:g} is too little for this training. It asks for a noise "
                f"multiplier of {single:,.1f} for one single step, which expects "
                f"{settings.expected_batch} records: the noise drowns even what all of them agree "
                "on. Raise `privacy.epsilon`, or the training's share of it."
            )
    return settings.with_noise(sigma)


@dataclass(frozen=True)
class PlannedTraining:
    """A training by DP-SGD that a fit has declared."""

    name: str  # also the prefix of its releases' names
    settings: DPSGD  # with the noise that its budget asks for
    releases: tuple[Release, ...]  # one for each block of steps


def declare_training(
    fit: Fit, training: FineTuning, name: str = TRAINING, share: float | None = None
) -> PlannedTraining:
    """Declare a training by DP-SGD, with the least noise that meets its budget.

    Raise RecipeError or PrivacyError.

    Args:
        fit: of which it is a part.
        training: the training's section of the recipe.
        name: of the training and, with a number after it, of its releases.
        share: the share of the fit's ε that it costs, taken alone; None: all that the releases
            before it leave.
    """
    terms = fit.terms
    settings = training.dp_sgd(terms.declared_size)
    if terms.unit != "record":
        raise PrivacyError(
            f"DP-SGD clips the gradient of a record, so it protects no '{terms.unit}'. Set "
            "`private.privacy_unit: record`."
        )
    others = fit.releases
    if share is not None:
        terms = with_share(terms, share)
        others = ()
    settings = calibrate_training(settings, terms.budget, terms.relation, others)
    releases = block_releases(settings, name, terms.relation)
    fit.declare(*releases)
    fit.trainings += 1
    return PlannedTraining(name, settings, releases)


@plugin
class ByDPSGD:
    """Settings of a method that trains by DP-SGD.

    Args:
        training: DP-SGD on the private records.
        device: auto, cpu, cuda, cuda:1, or a list of GPUs, which share each step of DP-SGD.
    """

    training: FineTuning = FineTuning()
    device: Devices = "auto"

    def check_machine(self) -> None:
        """Raise RecipeError if the device is not there."""
        choose_devices(self.device)

    def places(self) -> list[torch.device]:
        """Return the devices that share each step.

        The CPU takes the place of MPS, as DP-SGD needs float64.
        """
        import torch

        devices = choose_devices(self.device)
        return devices if devices[0].type == "cuda" else [torch.device("cpu")]

    def train_by_dp_sgd(
        self,
        fit: Fit,
        model: nn.Module,
        loss: Loss,
        training: PlannedTraining,
        *,
        task: str = "training on the private records",
        between: Callable[[Training, Float32Array], None] | None = None,
    ) -> None:
        """Train the model by all blocks of a declared training.

        Stored blocks are used again, the others are drawn.

        Guarantee: the releases'. The private records are read only while a block is drawn.

        Args:
            fit: in which it was declared. A `Recording` measures it; a network that learns between
                two blocks is left out.
            model: see `Training`; changed in place.
            loss: of one record.
            training: what `declare_training` returned.
            task: the training's name in messages.
            between: called with the training and its state, public or released, before the first
                block and after each.
        """
        from adapters.trained.dp_sgd.training import Training, dry_run

        if isinstance(fit, Recording):
            shape = fit.terms.image_shape
            fit.add_cost(
                dry_run(model, loss, shape, training.settings, self.places(), training.name)
            )
            return
        # All that leads from one block to the next is in the state, which is released, so a stored
        # block is not computed.
        engine = Training(model, loss, training.settings, *self.places())
        state = engine.start()
        if between is not None:
            between(engine, state)

        def draw(records: PrivateRecords, noise: Noise) -> Float32Array:
            return engine.block(state, records.samples, records.labels, noise)

        with fit.fitting.progress.task(task, training.settings.steps) as progress:
            for release in training.releases:
                fit.check_stop()
                state = fit.release(release, draw)
                if between is not None:
                    between(engine, state)
                progress.advance(release.count)
        engine.load(state)
